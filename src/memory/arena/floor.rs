//! What is kept of the low end of a pool for programs' scratch.

use std::fmt;

use crate::{
    error::{Code, Error},
    memory::space::node::NodeId,
    units::{Bytes, short},
};

/// The scratch at the bottom of one arena.
#[derive(Debug, Default)]
pub(super) struct Floor {
    pub(super) span: Option<NodeId>,
    pub(super) bytes: Bytes,
    /// What the programs under way need.
    pub(super) under_way: Vec<Bytes>,
}

impl Floor {
    /// The span that is kept.
    pub(super) fn span(&self) -> Option<NodeId> {
        self.span
    }

    /// What is kept now.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// There is no room for a program's scratch. All numbers are of the instant of the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoScratch {
    /// What the program needs.
    pub wanted: Bytes,
    /// As in [`crate::memory::Stats::free_bytes`].
    pub free: Bytes,
    /// As in [`crate::memory::Stats::reserved_bytes`].
    pub reserved: Bytes,
}

impl fmt::Display for NoScratch {
    /// The TPU runtime's words (XLA, `docs/errors/error_0101.md`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reservable = self.free + self.reserved;
        write!(
            f,
            "Attempting to reserve {} at the bottom of memory. That was not possible. There are {} free, {} reserved, \
             and {} reservable.",
            short(self.wanted),
            short(self.free),
            short(self.reserved),
            short(reservable)
        )
    }
}

impl std::error::Error for NoScratch {}

impl From<NoScratch> for Error {
    fn from(error: NoScratch) -> Self {
        Self::new(Code::ResourceExhausted, error.to_string())
    }
}
