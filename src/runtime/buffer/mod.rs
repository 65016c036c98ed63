//! Buffers: an array, the memory that it lies in, and what uses it.
//!
//! ```text
//!  pjrt_buffer.rs    Buffer: what a caller's `PJRT_Buffer` is
//!                    pjrt_buffer/ending.rs: deletion, destruction, and the reuse of block and handle
//!  vacant.rs         a buffer without an array, whose block and view a result may take
//!  buffer_ref.rs     a caller's handle, for the time of a call
//!  donation_hold.rs  a buffer that one call of the engine may consume
//!  reading.rs        bytes that are read without the engine's knowledge
//!  usage.rs          what uses, references, frees and moves the bytes; its lock
//!                    usage/state.rs: what is known, and how each event changes it
//!                    usage/last_use.rs: whether what a program could be donated is used after it
//!  body.rs           the engine's handle and the memory behind it
//!  storage.rs        where the bytes are
//!  layout.rs         how the array is laid out
//!  moving.rs         a buffer as compaction and spilling know it
//!  number.rs         a number for an array that no program made
//! ```

pub mod body;
pub mod buffer_ref;
pub mod donation_hold;
pub mod layout;
pub mod moving;
pub mod number;
pub mod pjrt_buffer;
pub mod reading;
pub mod storage;
pub mod usage;
pub mod vacant;

pub use body::{Body, Vacated};
pub use buffer_ref::BufferRef;
pub use donation_hold::{DonationHold, borrowed};
pub use pjrt_buffer::{Buffer, CacheSlot, GONE, Hold, Place, Recycle};
pub use vacant::VacantBuffer;
