//! Where the bytes of a buffer are, and what is known about those that are not ours.
//!
//! ```text
//!   Arena     a block of ours: counted in the arena's statistics, movable
//!   Engine    the engine's own memory: counted in `engine_bytes`, never moved
//!   Foreign   an outsider's, aliased: counted in `foreign_bytes`, never moved, never freed by us
//! ```
//!
//! The outsider learns from the engine when its memory is no longer looked at. Most outsiders go on looking at it
//! themselves (NumPy arrays, dlpack), so programs may only read it: the engine answers the donation of such a buffer with
//! a copy in memory of its own (XLA `cpu_client.cc`, `owns_buffers`), and [`crate::runtime::execute::donation_copy`] is there before it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use crate::{memory::budget::Charge, runtime::device_memory::Allocation};

/// Bytes outside of the arena that one buffer stands for, counted on its device for as long as this lives.
pub struct Counted {
    total: Arc<AtomicI64>,
    bytes: i64,
    _charge: Option<Charge>,
}

impl Counted {
    /// Counts `bytes` on `total`.
    pub fn new(total: Arc<AtomicI64>, bytes: usize) -> Self {
        Self::charged(total, bytes, None)
    }

    /// As [`Self::new`], of memory that has a limit.
    pub fn charged(total: Arc<AtomicI64>, bytes: usize, charge: Option<Charge>) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        total.fetch_add(bytes, Ordering::Relaxed);
        Self { total, bytes, _charge: charge }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What programs may do with the memory of a buffer. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it, and write a result into it once it was donated.
    Full,
    /// Only read it.
    ReadOnly,
}

/// Memory of an outsider.
pub struct Foreign {
    /// Where the array lies, if it lies dense in the default layout in memory that this process can read.
    pub dense_at: Option<usize>,
    _counted: Counted,
}

impl Foreign {
    /// Memory of `bytes` bytes, counted on `total`.
    pub fn new(dense_at: Option<usize>, total: Arc<AtomicI64>, bytes: usize) -> Self {
        Self { dense_at, _counted: Counted::new(total, bytes) }
    }
}

/// Where the bytes of a buffer are.
pub enum Storage {
    /// A block of ours.
    Arena(Allocation),
    /// Memory that the engine took from its own allocator.
    Engine(Counted),
    /// Memory of an outsider, who is told when we are done with it.
    Foreign(Foreign),
    /// Moved on to an output, or freed.
    Gone,
}

impl Storage {
    /// The block, if it is one of ours.
    pub fn held(&self) -> Option<&Allocation> {
        match self {
            Self::Arena(held) => Some(held),
            Self::Engine(_) | Self::Foreign(_) | Self::Gone => None,
        }
    }

    /// The block for good, if it is one of ours.
    pub fn into_allocation(self) -> Option<Allocation> {
        match self {
            Self::Arena(held) => Some(held),
            Self::Engine(_) | Self::Foreign(_) | Self::Gone => None,
        }
    }

    /// The block's address, if it is one of ours.
    pub fn address(&self) -> Option<usize> {
        self.held().map(Allocation::address)
    }

    /// Where the array lies dense in the default layout, if it is known to and this process can read it there.
    pub fn dense_address(&self) -> Option<usize> {
        match self {
            Self::Arena(held) => held.home().on_host.then(|| held.address()),
            Self::Foreign(foreign) => foreign.dense_at,
            Self::Engine(_) | Self::Gone => None,
        }
    }
}
