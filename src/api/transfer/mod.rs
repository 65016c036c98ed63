//! Bytes on their way: from the host, between devices and memories, and back.
//!
//! ```text
//!  host.rs            PJRT_Client_BufferFromHostBuffer, PJRT_Buffer_ToHostBuffer
//!  async_transfer.rs  arrays first, their bytes later
//!  copy.rs            PJRT_Buffer_CopyToDevice, PJRT_Buffer_CopyToMemory
//!  arrival.rs         a block, and the array that is on its way into it
//! ```

pub mod arrival;
pub mod async_transfer;
pub mod copy;
pub mod host;
