//! The runtime.

pub mod allocator;
pub mod buffer;
pub mod client;
pub mod device_memory;
pub mod executable;
pub mod execute;
pub mod in_flight;
pub mod nested;
pub mod report;
pub mod shape;
pub mod transfer;
