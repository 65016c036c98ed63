//! Why a launch found no place for what it needs.

use std::sync::Arc;

use crate::{
    engine::Failure,
    runtime::{
        allocator::{oom::exhausted, reclaim::NoRoom},
        client::Client,
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
    /// What the caller is told.
    #[cold]
    pub fn explain(self, client: &Client) -> Failure {
        match self {
            Self::NoRoom(full, shortage) => exhausted(&client.allocator, &full, shortage).into(),
            Self::Failed(failure) => failure,
        }
    }

    /// Whether there was no room.
    pub fn is_exhaustion(&self) -> bool {
        match self {
            Self::NoRoom(_, shortage) => shortage.interrupted.is_none(),
            Self::Failed(failure) => failure.is_exhausted(),
        }
    }

    /// Whether there might be room later, and it was not waited for.
    pub fn gave_up(&self) -> bool {
        matches!(self, Self::NoRoom(_, shortage) if shortage.gave_up)
    }
}

impl<T: Into<Failure>> From<T> for Unplaced {
    fn from(failure: T) -> Self {
        Self::Failed(failure.into())
    }
}
