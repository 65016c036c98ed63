//! Device-independent memory management: safe code that knows no PJRT and no device.
//!
//! ```text
//!   Arena  one per device: the lock, ids, counters, waiting, the out-of-memory report
//!     |-- block_table  BlockId -> size asked for, address, place, provenance, state (live, pinned, retired)
//!     |-- history      the last events in a ring, and how to reconstruct an earlier instant from them
//!     |-- idle         when unused memory is returned to the system without being asked for: a pure rule
//!     |-- next_use     when arrays are used next, told from the past: which of them to spill
//!     |-- budget       one limit for the arena and the engine's own pool
//!     |-- group        one limit for several processes: who may take what, and who gives back: pure rules
//!     |-- compaction   which blocks to move, and where, so that room appears: a pure function of a snapshot
//!     `-- strategy     where blocks are placed; which regions are taken from the device and released
//!           |-- preallocate (tpu too), growing     regions, divided by
//!           |     |-- space              large blocks: best fit, split, coalesced
//!           |     `-- slab               up to 4 KiB: slots in pages in extents
//!           `-- platform                 one region per block
//!                 |
//!              Backing                   the device: allocates regions (host, fake, ..., imagined)
//! ```
//!
//! A *region* is one contiguous allocation of the device. A *block* is what a caller holds; a *hole* is a part of a
//! region that no block covers. A *live* block has an owner. A *retired* block's owner let go while the device may
//! still use its bytes; they are *pending* until it is freed. A *pinned* block is live, and an outsider holds its
//! address. *Slack* is what a block takes beyond the request; *reserved* is what is kept for programs' scratch.
//!
//! What always holds: blocks never overlap; in use + pending + slack + reserved + free = pool; a stale id is an error;
//! a pinned block never moves.
#![deny(unsafe_code)]

mod arena;
mod backing;
mod barrier;
mod block_table;
pub mod budget;
pub mod compaction;
pub mod group;
pub mod history;
pub mod idle;
mod imagined;
pub mod next_use;
mod oom;
mod provenance;
mod slab;
mod space;
mod stats;
mod strategy;
#[cfg(test)]
mod tests;
pub mod tiles;

pub use crate::memory::arena::Arena;
pub use crate::memory::arena::ArenaGuard;
pub use crate::memory::arena::Block;
pub use crate::memory::arena::BlockInfo;
pub use crate::memory::arena::BlockState;
pub use crate::memory::arena::Compaction;
pub use crate::memory::arena::Ends;
pub use crate::memory::arena::Goal;
pub use crate::memory::arena::Move;
pub use crate::memory::arena::Needs;
pub use crate::memory::arena::Obstacle;
pub use crate::memory::arena::PIN_BYTES;
pub use crate::memory::arena::PIN_NANOS;
pub use crate::memory::arena::ScopeId;
pub use crate::memory::arena::Scoped;
pub use crate::memory::arena::Surplus;
pub use crate::memory::arena::Survey;
pub use crate::memory::arena::{Exhaustion, MayMove};
pub use crate::memory::backing::Backing;
pub use crate::memory::backing::Strategy;
pub use crate::memory::barrier::MoveBarrier;
pub use crate::memory::block_table::BlockId;
pub use crate::memory::oom::CallPart;
pub use crate::memory::oom::Donation;
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
pub use crate::region::AddressRange;
pub use crate::region::Region;
