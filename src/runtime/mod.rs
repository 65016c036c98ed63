//! The runtime.

pub mod allocator;
pub mod buffer;
pub mod callbacks;
pub mod client;
pub mod device_memory;
pub mod executable;
pub mod execute;
pub mod in_flight;
pub mod nested_sessions;
pub mod shape;
pub mod transfer;
