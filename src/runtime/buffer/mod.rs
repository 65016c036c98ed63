//! Buffers: an array, the memory it lies in, and who uses it.
//!
//! ```text
//!  pjrt_buffer.rs  Buffer: what a caller's `PJRT_Buffer` is
//!  body.rs         the engine's handle and the memory behind it
//!  usage.rs        who uses, holds, frees and moves the bytes
//!  storage.rs      where the bytes are
//!  reading.rs      bytes that are read without the engine's knowledge
//!  layout.rs       how the array is laid out
//! ```

pub mod body;
pub mod layout;
pub mod pjrt_buffer;
pub mod reading;
pub mod storage;
pub mod usage;

pub use body::Body;
pub use pjrt_buffer::{Buffer, CacheSlot, CachedOutput, GONE, Hold, Place, Recycle, Recycled};
