//! The runtime.

pub mod allocator;
pub mod buffer;
pub mod client;
pub mod counters;
pub mod device_memory;
pub mod executable;
pub mod execute;
pub mod host_memories;
pub mod in_flight;
pub mod nested;
pub mod report;
pub mod shape;
pub mod transfer;
