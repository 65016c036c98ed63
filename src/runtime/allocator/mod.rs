//! The allocator.

pub mod admission;
pub mod compaction;
pub mod oom;
pub mod pinned_host;
pub mod reclaim;
pub mod trimmer;
