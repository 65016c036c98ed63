//! One device's memory.
//!
//! ```text
//!  memory.rs       the arena, who lies in it, and what moves the bytes
//!  allocation.rs   a block, as the buffer that lies in it holds it
//!  residents.rs    who lies in which block, and what the mover asks of a resident
//!  scratch.rs      what is set aside for a program's scratch
//!  shared_pool.rs  what the engine takes of the same memory for itself
//!  origins.rs      where the contents of blocks come from, in words
//! ```

pub mod allocation;
pub mod memory;
pub mod origins;
pub mod residents;
pub mod scratch;
pub mod shared_pool;

pub use allocation::Allocation;
pub use memory::DeviceMemory;
pub use residents::{LockedForMove, Occupied, Resident, Residents};
pub use scratch::ScratchReservation;
pub use shared_pool::{SharedPool, Shortfall};
