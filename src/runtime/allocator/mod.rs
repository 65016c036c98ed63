//! Room for arrays, and for what the engine takes of the same memory.
//!
//! ```text
//!  core.rs         what every allocation of a client shares
//!  allocate.rs     a block for an array
//!  reclaim.rs      the reclaim loop: what happens when an arena has no room: drain, wait, compact, wait, error
//!  compaction.rs   an arena's plan carried out on live buffers
//!  call_needs.rs   what a call needs of a memory
//!  prospects.rs    whether a call can have what it needs at all
//!  spill.rs        arrays go to memory of the host where nothing else makes room
//!  prefetch.rs     spilled arrays come back before they are needed
//!  admission.rs    whether there is memory for what the engine takes from the same device
//!  group.rs        memory that moves between processes that share a device
//!  shared.rs       memory that moves between an arena and the engine's pool
//!  pinned_host.rs  memory of the host that a GPU reads and writes by itself
//!  output_cache.rs  outputs that are ready to be destinations again
//!  kept.rs         its lists, which keep nothing while somebody waits for memory
//!  oom.rs          the error of an allocation that found no room
//!  trimmer.rs      the thread that trims idle memory
//!  discard.rs      the pages of holes, a piece at a time
//!  warm.rs         what stays warm goes back before it would add to a peak
//! ```

pub mod admission;
pub mod allocate;
pub mod call_needs;
pub mod compaction;
pub mod core;
pub mod discard;
pub mod group;
mod kept;
pub mod oom;
pub mod output_cache;
pub mod pinned_host;
pub mod prefetch;
pub mod prospects;
pub mod reclaim;
pub mod shared;
pub mod sleep;
pub mod spill;
pub mod trimmer;
pub mod warm;

pub use core::Allocator;
