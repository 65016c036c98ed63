//! One device's memory.
//!
//! ```text
//!  memory.rs       the arena, its blocks as their owners have them, who lies in which, and the carrier that moves them
//!  dropped.rs      arrays without an owner that programs use: places of later results
//!  scratch.rs      what is reserved for a program's scratch
//!  moves.rs        whether arrays are moved, and for how long
//!  spill_record.rs what is known of the arrays that are spilled
//!  group_part.rs   the part in a group of processes that share the device
//!  shared_pool.rs  what the engine takes of the same memory for itself
//!  origins.rs      where the contents of blocks come from, in words
//! ```

pub mod dropped;
pub mod group_part;
pub mod memory;
pub mod moves;
pub mod origins;
pub mod scratch;
pub mod shared_pool;
pub mod spill_record;

pub use group_part::{Asking, GroupPart, Refusal};
pub use memory::{Allocation, DeviceMemory, LockedForMove, Occupied, Resident, Residents, Spillable, Tier};
pub use scratch::ScratchReservation;
pub use shared_pool::{SharedPool, Shortfall};
