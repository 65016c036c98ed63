//! Room for arrays, and for what the engine takes of the same memory.
//!
//! ```text
//!  core.rs         what every allocation of a client shares
//!  allocate.rs     a block for an array
//!  reclaim.rs      what happens when an arena has no room: drain, wait, compact, wait, error
//!  compaction.rs   an arena's plan carried out on live buffers
//!  admission.rs    whether there is memory for what the engine takes from the same device
//!  shared.rs       memory that goes back and forth between an arena and the engine's pool
//!  pinned_host.rs  memory of the host that a GPU reads and writes by itself
//!  oom.rs          what the error says where there is no room
//!  trimmer.rs      the thread that gives idle memory back
//! ```

pub mod admission;
pub mod allocate;
pub mod compaction;
pub mod core;
pub mod oom;
pub mod pinned_host;
pub mod reclaim;
pub mod shared;
pub mod trimmer;

pub use core::Allocator;
