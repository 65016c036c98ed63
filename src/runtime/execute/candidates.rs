//! Memory that a result may lie in: of a destination, or of an argument that the engine consumed.

use std::sync::Arc;

use crate::runtime::{
    buffer::{Buffer, storage::Storage},
    device_memory::Allocation,
    executable::loaded::Origin,
};

/// See the module's documentation.
pub struct Candidate {
    /// What it was.
    pub origin: Origin,
    /// Where it is; 0 for memory that is not ours.
    pub address: usize,
    /// The block, until a result takes it.
    pub allocation: Option<Allocation>,
    /// The buffer that lay there in the execution before, where its owner gave it back.
    pub reused: Option<Arc<Buffer>>,
}

impl Candidate {
    /// A block of ours.
    pub fn new(origin: Origin, allocation: Allocation) -> Self {
        Self { origin, address: allocation.address(), allocation: Some(allocation), reused: None }
    }

    /// An argument that the engine consumed. Memory of the engine's own goes on in the result without us.
    pub fn consumed(argument: usize, storage: Storage) -> Self {
        let origin = Origin::Argument(argument);
        match storage.into_allocation() {
            Some(allocation) => Self::new(origin, allocation),
            None => Self { origin, address: 0, allocation: None, reused: None },
        }
    }
}
