//! Memory that a result may lie in: that of a destination, or of an argument that the engine consumed.

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
    /// Its address; 0 for memory outside of the arenas.
    pub address: usize,
    /// The block, until a result takes it.
    pub allocation: Option<Allocation>,
    /// The buffer that had the block in the execution before, if it comes from the output cache.
    pub reused: Option<Arc<Buffer>>,
}

impl Candidate {
    /// A block of an arena or of a tier, and the buffer that had it in the execution before, if it comes from the
    /// output cache.
    #[inline]
    pub fn new(origin: Origin, allocation: Allocation, reused: Option<Arc<Buffer>>) -> Self {
        Self { origin, address: allocation.address(), allocation: Some(allocation), reused }
    }

    /// An argument that the engine consumed, on the device or in its tier. If its memory is the engine's own, the
    /// engine passes it on to the result.
    pub fn consumed(argument: usize, storage: Storage) -> Self {
        let origin = Origin::Argument(argument);
        match storage.into_block() {
            Some(allocation) => Self::new(origin, allocation, None),
            None => Self { origin, address: 0, allocation: None, reused: None },
        }
    }
}
