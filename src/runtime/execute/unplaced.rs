//! Why a launch found no place for what it needs.

use std::sync::Arc;

use crate::{
    engine::Failure,
    runtime::{
        allocator::reclaim::{NoRoom, SearchEnd},
        device_memory::DeviceMemory,
    },
};

/// Why arguments did not come back, or destinations were not placed.
pub enum Unplaced {
    /// There is no room for one of them in this memory.
    NoRoom(Arc<DeviceMemory>, NoRoom),
    /// Another failure.
    Failed(Failure),
}

impl Unplaced {
    /// Whether there was no room.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Self::NoRoom(_, shortage) => !matches!(shortage.end, SearchEnd::Interrupted(_)),
            Self::Failed(failure) => failure.is_exhausted(),
        }
    }

    /// Whether there might be room later, and it was not waited for.
    pub fn gave_up(&self) -> bool {
        matches!(self, Self::NoRoom(_, shortage) if shortage.end == SearchEnd::GaveUp)
    }

    /// Whether it can never be had.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::NoRoom(_, shortage) if shortage.end == SearchEnd::Never)
    }
}

impl<T: Into<Failure>> From<T> for Unplaced {
    fn from(failure: T) -> Self {
        Self::Failed(failure.into())
    }
}
