//! Where the bytes of a buffer are, and what is known of memory outside of the arenas.
//!
//! ```text
//!   Arena     a block of an arena: counted in the arena's statistics, movable
//!   Copied    a block of an arena, which was spilled before and not written since: its copy is kept, so that it can be
//!             spilled again for nothing
//!   Spilled   a block of the host's memory beyond the device's limit, where the array waits: usable, but counted apart
//!   Engine    the engine's own memory: counted in `engine_bytes`, never moved
//!   Foreign   an outsider's memory, aliased: counted in `foreign_bytes`, never moved, never freed by pjrt-arena
//!   Successor another buffer's now, by a bitcast or an alias: in use there until the last use of this buffer ends
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

use crate::{
    memory::{BlockId, budget::Charge},
    runtime::device_memory::{Allocation, DeviceMemory},
    units::{Address, Bytes},
};

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

/// A block of an arena and what is kept of its contents in memory that the device's arrays are spilled to.
pub struct Copied {
    /// The block.
    allocation: Allocation,
    copy: CleanCopy,
}

/// A block that holds the same as another; counted in its memory for as long as this lives.
struct CleanCopy {
    copy: Allocation,
    _counted: CountedCopy,
}

impl CleanCopy {
    fn new(copy: Allocation) -> Self {
        let counted = CountedCopy::new(copy.memory(), copy.size());
        Self { copy, _counted: counted }
    }
}

/// Bytes of a copy, counted in the memory that it is in.
struct CountedCopy(Arc<DeviceMemory>, Bytes);

impl CountedCopy {
    fn new(memory: &Arc<DeviceMemory>, bytes: Bytes) -> Self {
        memory.copies.fetch_add(bytes.get(), Ordering::Relaxed);
        Self(Arc::clone(memory), bytes)
    }
}

impl Drop for CountedCopy {
    fn drop(&mut self) {
        self.0.copies.fetch_sub(self.1.get(), Ordering::Relaxed);
    }
}

/// A buffer that has the memory of another one, without a program in between.
pub trait Successor: Send + Sync {
    /// Ends the use that began when it got the memory: nothing uses the memory by the other buffer any more.
    fn end_use_of_source(&self);
}

/// The use of a successor by what still uses its memory through the buffer that had it before. Dropped without a lock.
pub struct SuccessorUse(Arc<dyn Successor>);

impl SuccessorUse {
    /// The use, which has begun.
    pub fn new(successor: Arc<dyn Successor>) -> Self {
        Self(successor)
    }
}

impl Drop for SuccessorUse {
    fn drop(&mut self) {
        self.0.end_use_of_source();
    }
}

/// Where the bytes of a buffer are.
pub enum Storage {
    /// A block of an arena.
    Arena(Allocation),
    /// A block of an arena, the same as a block of the memory that the device's arrays are spilled to.
    Copied(Box<Copied>),
    /// A block of the memory that the device's arrays are spilled to.
    Spilled(Allocation),
    /// Memory that the engine took from its own allocator.
    Engine(Counted),
    /// Memory of an outsider, whom the engine tells when the buffer is destroyed.
    Foreign(Foreign),
    /// Another buffer has the memory, without a program in between.
    Successor(SuccessorUse),
    /// Passed on to a result of a program, or freed.
    Gone,
}

impl Storage {
    /// The block, if the bytes are in an arena.
    pub fn allocation(&self) -> Option<&Allocation> {
        match self {
            Self::Arena(allocation) => Some(allocation),
            Self::Copied(copied) => Some(&copied.allocation),
            Self::Spilled(_) | Self::Engine(_) | Self::Foreign(_) | Self::Successor(_) | Self::Gone => None,
        }
    }

    /// As [`Self::allocation`].
    pub fn allocation_mut(&mut self) -> Option<&mut Allocation> {
        match self {
            Self::Arena(allocation) => Some(allocation),
            Self::Copied(copied) => Some(&mut copied.allocation),
            Self::Spilled(_) | Self::Engine(_) | Self::Foreign(_) | Self::Successor(_) | Self::Gone => None,
        }
    }

    /// The block, taken out, if the bytes are in an arena. What was kept of its contents is not kept any longer.
    pub fn into_allocation(self) -> Option<Allocation> {
        match self {
            Self::Arena(allocation) => Some(allocation),
            Self::Copied(copied) => Some(copied.allocation),
            Self::Spilled(_) | Self::Engine(_) | Self::Foreign(_) | Self::Successor(_) | Self::Gone => None,
        }
    }

    /// As [`Self::into_allocation`], or the block of the memory that the array is spilled to.
    pub fn into_block(self) -> Option<Allocation> {
        match self {
            Self::Spilled(allocation) => Some(allocation),
            other => other.into_allocation(),
        }
    }

    /// The block of the device's arena, or of the memory that the array is spilled to.
    pub fn block(&self) -> Option<&Allocation> {
        match self {
            Self::Spilled(allocation) => Some(allocation),
            _ => self.allocation(),
        }
    }

    /// Whether the array waits in memory of the host.
    pub fn is_spilled(&self) -> bool {
        matches!(self, Self::Spilled(_))
    }

    /// Whether the array waits in `tier`.
    pub fn is_in(&self, tier: &Arc<DeviceMemory>) -> bool {
        matches!(self, Self::Spilled(allocation) if Arc::ptr_eq(allocation.memory(), tier))
    }

    /// The block of a copy that is kept.
    pub fn copy_block(&self) -> Option<BlockId> {
        match self {
            Self::Copied(copied) => Some(copied.copy.copy.block().id),
            _ => None,
        }
    }

    /// The address of a copy that is kept.
    pub fn copy(&self) -> Option<Address> {
        match self {
            Self::Copied(copied) => Some(copied.copy.copy.block().address),
            _ => None,
        }
    }

    /// A spilled array is in `allocation` from now on, and where it was spilled to its copy is kept. The array is as
    /// before if it is not spilled.
    pub fn came_back(&mut self, allocation: Allocation) {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Spilled(copy) => Self::Copied(Box::new(Copied { allocation, copy: CleanCopy::new(copy) })),
            other => other,
        };
    }

    /// An array of which a copy is kept is where that is, from now on, and its block is returned.
    pub fn spill_to_copy(&mut self) -> Option<Allocation> {
        match std::mem::replace(self, Self::Gone) {
            Self::Copied(copied) => {
                let Copied { allocation, copy } = *copied;
                *self = Self::Spilled(copy.copy);
                Some(allocation)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Keeps a copy no longer; returns it, to be freed without a lock.
    #[must_use]
    pub fn forget_copy(&mut self) -> Option<Allocation> {
        match std::mem::replace(self, Self::Gone) {
            Self::Copied(copied) => {
                let Copied { allocation, copy } = *copied;
                *self = Self::Arena(allocation);
                Some(copy.copy)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// The block's address, if the bytes are in an arena, or are spilled.
    pub fn address(&self) -> Option<usize> {
        self.block().map(Allocation::address)
    }

    /// The address of an array that is known to be dense in the default layout, where this process can read it.
    pub fn dense_address(&self) -> Option<usize> {
        match self {
            Self::Foreign(foreign) => foreign.dense_at,
            _ => self.block().and_then(|block| block.memory().on_host.then(|| block.address())),
        }
    }
}
