//! What a program consumed of its arguments: memory that a result may lie in.

use crate::runtime::{buffer::storage::Storage, device_memory::Allocation};

/// The memory of an argument that the engine consumed, or of the copy that it was donated for it.
pub struct Candidate {
    /// The argument's number.
    pub argument: usize,
    /// Its address; 0 for memory outside of the arenas.
    pub address: usize,
    /// The block, on the device or in its tier, until a result takes it.
    pub allocation: Option<Allocation>,
}

impl Candidate {
    /// A block.
    pub fn new(argument: usize, allocation: Allocation) -> Self {
        Self { argument, address: allocation.address(), allocation: Some(allocation) }
    }

    /// What an argument lay in. If it was the engine's own, the engine passes it on to the result.
    pub fn consumed(argument: usize, storage: Storage) -> Self {
        match storage.into_block() {
            Some(allocation) => Self::new(argument, allocation),
            None => Self { argument, address: 0, allocation: None },
        }
    }
}
