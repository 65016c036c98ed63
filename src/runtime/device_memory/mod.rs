//! One device's memory.
//!
//! ```text
//!  memory.rs       the arena, its residents, and the carrier that moves their bytes
//!  allocation.rs   a block, as the buffer that lies in it has it
//!  residents.rs    which buffer lies in which block, and what compaction asks of it
//!  scratch.rs      what is reserved for a program's scratch
//!  spill_record.rs what is known of the arrays that are spilled
//!  shared_pool.rs  what the engine takes of the same memory for itself
//!  origins.rs      where the contents of blocks come from, in words
//! ```

pub mod allocation;
pub mod memory;
pub mod origins;
pub mod residents;
pub mod scratch;
pub mod shared_pool;
pub mod spill_record;

pub use allocation::Allocation;
pub use memory::{DeviceMemory, Tier};
pub use residents::{LockedForMove, Occupied, Resident, Residents};
pub use scratch::ScratchReservation;
pub use shared_pool::{SharedPool, Shortfall};
