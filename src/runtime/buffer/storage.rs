//! Where the bytes of a buffer are, and what is known of memory outside of the arenas.
//!
//! ```text
//!   Arena     a block of an arena: counted in the arena's statistics, movable
//!   Spilled   a block of the host's memory beyond the device's limit, where the array waits: usable, but counted apart
//!   Engine    the engine's own memory: counted in `engine_bytes`, never moved
//!   Foreign   an outsider's memory, aliased: counted in `foreign_bytes`, never moved, never freed by pjrt-arena
//! ```
//!
//! The engine tells the outsider when its memory is no longer used. Most outsiders go on reading the memory
//! themselves (NumPy arrays, dlpack), so programs may only read it: the engine answers the donation of such a buffer
//! with a copy in memory of its own (XLA `cpu_client.cc`, `owns_buffers`), and
//! [`crate::runtime::execute::donation_copy`] makes that copy in the arena first.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use crate::{memory::budget::Charge, runtime::device_memory::Allocation};

/// Bytes of one buffer outside of the arena, counted on its device for as long as this lives.
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

    /// As [`Self::new`], of memory with a limit, of which `charge` is a part.
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
    /// Programs read it, and write a result into it once it was donated.
    Full,
    /// Programs only read it.
    ReadOnly,
}

/// Memory of an outsider, as a buffer aliases it.
pub struct Foreign {
    /// The array's address, if it is dense in the default layout in memory that this process can read.
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
    /// A block of an arena.
    Arena(Allocation),
    /// A block of the memory that the device's arrays are spilled to.
    Spilled(Allocation),
    /// Memory that the engine took from its own allocator.
    Engine(Counted),
    /// Memory of an outsider, whom the engine tells when the buffer is destroyed.
    Foreign(Foreign),
    /// Passed on to a result, or freed.
    Gone,
}

impl Storage {
    /// The block, if the bytes are in an arena.
    pub fn allocation(&self) -> Option<&Allocation> {
        match self {
            Self::Arena(allocation) => Some(allocation),
            Self::Spilled(_) | Self::Engine(_) | Self::Foreign(_) | Self::Gone => None,
        }
    }

    /// The block, taken out, if the bytes are in an arena.
    pub fn into_allocation(self) -> Option<Allocation> {
        match self {
            Self::Arena(allocation) => Some(allocation),
            Self::Spilled(_) | Self::Engine(_) | Self::Foreign(_) | Self::Gone => None,
        }
    }

    /// The block of the device's arena, or of the memory that the array is spilled to.
    pub fn block(&self) -> Option<&Allocation> {
        match self {
            Self::Arena(allocation) | Self::Spilled(allocation) => Some(allocation),
            Self::Engine(_) | Self::Foreign(_) | Self::Gone => None,
        }
    }

    /// Whether the array waits in memory of the host.
    pub fn is_spilled(&self) -> bool {
        matches!(self, Self::Spilled(_))
    }

    /// The block's address, if the bytes are in an arena, or are spilled.
    pub fn address(&self) -> Option<usize> {
        self.block().map(Allocation::address)
    }

    /// The address of an array that is known to be dense in the default layout, where this process can read it.
    pub fn dense_address(&self) -> Option<usize> {
        match self {
            Self::Arena(block) | Self::Spilled(block) => block.memory().on_host.then(|| block.address()),
            Self::Foreign(foreign) => foreign.dense_at,
            Self::Engine(_) | Self::Gone => None,
        }
    }
}
