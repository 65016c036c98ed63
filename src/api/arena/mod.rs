//! One device's memory behind the C API.
//!
//! ```text
//!  devices.rs        which of the engine's devices get an arena, and whose memory it divides
//!  device_memory.rs  one device's arena, the buffers in it, and what moves their bytes; pinned_host.rs: the host's, for a GPU
//!  origins.rs        where blocks come from, in words
//!  room.rs           what happens when an arena has no room: drain, wait, compact, wait, error; patience.rs: for how long
//!  compaction.rs     the mover: carries an arena's plan out on live buffers
//!  admission.rs      whether there is memory for what the engine takes from the same device
//!  exhausted.rs      what the error says where there is none, and the report of it
//!  idle.rs           gives memory back that nobody uses any more
//! ```

pub mod admission;
pub mod compaction;
pub mod device_memory;
pub mod devices;
pub mod exhausted;
pub mod idle;
pub mod origins;
pub mod patience;
pub mod pinned_host;
pub mod room;
