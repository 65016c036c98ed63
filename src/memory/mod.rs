//! Device-independent memory management: safe code that knows no PJRT and no device.
//!
//! ```text
//!   Arena  one per device: the lock, ids, counters, waiting, the out-of-memory report
//!     |-- table      BlockId -> size asked for, address, place, who made it, live, pinned or retired
//!     |-- history    what happened last: a ring of events, and how to go back through them
//!     |-- idle       when memory goes back to the system though nobody asked: a pure rule
//!     |-- budget     one limit for the arena and the engine's own pool
//!     |-- compaction which blocks to move, and where, so that room appears: a pure function of a picture
//!     `-- strategy   where blocks go; what is taken from the device and given back
//!           |-- preallocate (tpu too), growing     regions, divided by
//!           |     |-- space              large blocks: best fit, split, coalesced
//!           |     `-- slab               up to 4 KiB: slots in pages in extents
//!           `-- platform                 one region per block
//!                 |
//!              Backing                   the device: hands out regions (host, fake, ...)
//! ```
//!
//! A *region* is memory that the device gave in one piece. A *block* is what a caller holds; a *hole* is a part of a
//! region that nobody holds. A *live* block has an owner. A *retired* block's owner let go while the device may
//! still use its bytes; they are *pending* until it is freed. A *pinned* block is live, and an outsider holds its address.
//! *Slack* is what a block takes beyond the request; *reserved* is what is kept for programs' scratch.
//!
//! What always holds: blocks never overlap; in use + pending + slack + reserved + free = pool; a stale id is an error;
//! a pinned block never moves.
#![deny(unsafe_code)]

mod arena;
mod barrier;
pub mod budget;
pub mod compaction;
pub mod history;
pub mod idle;
mod oom;
mod provenance;
mod slab;
mod space;
mod stats;
mod strategy;
mod table;
#[cfg(test)]
mod tests;
pub mod tiles;

use std::fmt;

pub use crate::memory::arena::Arena;
pub use crate::memory::arena::Block;
pub use crate::memory::arena::BlockInfo;
pub use crate::memory::arena::BlockState;
pub use crate::memory::arena::Compaction;
pub use crate::memory::arena::Goal;
pub use crate::memory::arena::Move;
pub use crate::memory::arena::NoScratch;
pub use crate::memory::arena::Obstacle;
pub use crate::memory::arena::ScopeId;
pub use crate::memory::arena::Scoped;
pub use crate::memory::arena::Surplus;
pub use crate::memory::arena::Survey;
pub use crate::memory::oom::Hint;
pub use crate::memory::oom::Holder;
pub use crate::memory::oom::OomDetails;
pub use crate::memory::oom::OutOfMemory;
pub use crate::memory::oom::Pinned;
pub use crate::memory::oom::Tried;
pub use crate::memory::provenance::Execution;
pub use crate::memory::provenance::OriginId;
pub use crate::memory::provenance::PinReason;
pub use crate::memory::provenance::Provenance;
pub use crate::memory::provenance::Request;
pub use crate::memory::provenance::Timestamp;
pub use crate::memory::provenance::began;
pub use crate::memory::stats::Stats;
pub use crate::memory::table::BlockId;
use crate::{
    error::Result,
    units::{Address, Bytes},
};
pub use barrier::MoveBarrier;

/// How an arena obtains the space that it hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One region of the whole limit, taken at the first allocation.
    Preallocate,
    /// Regions on demand, doubling in size; empty regions go back to the device.
    Growing,
    /// One device allocation per buffer, given back on free.
    Platform,
    /// As a TPU: all memory up front, programs' scratch reserved at the bottom while they run, compaction on failure.
    Tpu,
}

impl fmt::Display for Strategy {
    /// The name that settings use.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Preallocate => "preallocate",
            Self::Growing => "growing",
            Self::Platform => "platform",
            Self::Tpu => "tpu",
        })
    }
}

/// Memory that a device gave in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// The first address.
    pub address: Address,
    /// The length.
    pub bytes: Bytes,
}

/// A device as the arena sees it: something that gives regions and takes them back.
///
/// `reserve` is called while the arena is locked, so it must not call back into the arena. `release` is called without
/// the lock wherever a block's free is the cause.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Takes exactly `bytes`, a multiple of [`Self::granularity`], aligned to 256 bytes at least. The memory need not
    /// be touched, and should not be: first use pays for its pages.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when the device has no such region, with the device's reason.
    fn reserve(&self, bytes: Bytes) -> Result<Region>;

    /// As [`Self::reserve`], of the one region that an arena takes at its start. A device that has less memory may give a region whose
    /// parts find theirs when they are used.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region>;

    /// Gives a region back, exactly as it was reserved.
    ///
    /// # Errors
    /// The device's reason, when it refuses; the region counts as gone then.
    fn release(&self, region: Region) -> Result<()>;

    /// The unit of regions: a power of two, 256 bytes or more.
    fn granularity(&self) -> Bytes;

    /// How much more than an arena needs it may take at once, to grow less often; `None` is as much as it likes.
    fn most_in_advance(&self) -> Option<Bytes>;
}

/// Releases a region where nobody can be told of a failure: it is logged, and the region counts as gone.
fn give_back(backing: &dyn Backing, region: Region) {
    if let Err(error) = backing.release(region) {
        log::error!("region of {} at {} could not be given back: {error}", region.bytes, region.address);
    }
}
