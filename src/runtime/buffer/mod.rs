//! Buffers: an array, the memory it lies in, and who uses it.
//!
//! ```text
//!  buffer_ref.rs     a caller's handle, for the time of a call
//!  donation_hold.rs  a buffer that one call of the engine may consume
//!  reading.rs        bytes that are read without the engine's knowledge
//!  layout.rs         how the array is laid out
//!  moving.rs         a buffer as the mover knows it
//!  pjrt_buffer.rs    Buffer: what a caller's `PJRT_Buffer` is
//!  body.rs           the engine's handle and the memory behind it
//!  usage.rs          who uses, holds, frees and moves the bytes
//!  storage.rs        where the bytes are
//! ```

pub mod body;
pub mod buffer_ref;
pub mod donation_hold;
pub mod layout;
pub mod moving;
pub mod pjrt_buffer;
pub mod reading;
pub mod storage;
pub mod usage;

pub use body::Body;
pub use buffer_ref::BufferRef;
pub use donation_hold::{DonationHold, borrowed};
pub use pjrt_buffer::{Buffer, CacheSlot, CachedOutput, GONE, Hold, Place, Recycle, Recycled};
