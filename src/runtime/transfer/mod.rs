//! Transfers: arrays from the host, between devices and memories, and back.
//!
//! ```text
//!  upload.rs      an array that comes into an arena
//!  host.rs        arrays from the host and back
//!  copy.rs        copies between devices and memories
//!  own_layout.rs  copies of arrays in a layout of their own
//!  async_slot.rs  one array of an asynchronous transfer manager
//!  delivery.rs    when that is delivered, or fails
//!  specs.rs       what callers ask such a manager for, checked
//!  caller_layout.rs  a layout that a caller passes
//! ```

pub mod async_slot;
pub mod caller_layout;
pub mod copy;
mod delivery;
pub mod host;
pub mod own_layout;
pub mod specs;
pub mod upload;
