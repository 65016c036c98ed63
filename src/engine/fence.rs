//! The end of all that a device was given so far.
//!
//! ```text
//!  compute    [ run ][ run ][ kernels of a run that failed | those that never came ]
//!                                                          |
//!  transfers                                               '--> [ one byte ] --> the tail's event
//! ```
//!
//! A run that fails to start says so at once: while the device still does those before it, and the kernels of its own
//! that were launched before the one that was not. XLA:GPU's allocators need not know when that ends, because memory
//! that comes back is the next run's, behind it in the same stream. What a transfer is to write, they give in the same
//! order: the transfer begins when the compute stream has come to where the memory was asked for (XLA
//! `local_device_state.h`, `kComputeSynchronized`; `pjrt_stream_executor_client.cc`, `WaitForAllocation`). So a byte
//! that the engine puts into memory of its own is there when all before it is over.

use crate::{
    engine::{Engine, EngineError, EngineEvent, Raw, views},
    error::Error,
    sys,
};

/// A device on which the engine does one run after another.
#[derive(Clone, Copy)]
pub struct ExecutionQueue {
    /// The engine's client.
    pub client: Raw<sys::PJRT_Client>,
    /// The device.
    pub device: Raw<sys::PJRT_Device>,
}

/// See the module's documentation.
pub struct Fence {
    /// Ready when all is over that the device was given before; with an error if that cannot be known.
    pub event: EngineEvent,
    /// The byte, to be destroyed.
    pub buffer: Raw<sys::PJRT_Buffer>,
}

impl Fence {
    /// Asks for the end of what the device was given so far. A few microseconds; nobody waits.
    ///
    /// # Errors
    /// The engine's, which has no memory for a byte, or no device any more.
    ///
    /// # Safety
    /// The engine's client must be alive.
    pub unsafe fn of(queue: ExecutionQueue, engine: &'static Engine) -> Result<Self, EngineError> {
        let byte = 0u8;
        // SAFETY: the byte outlives the call, which is all that the engine relies on.
        let made = unsafe {
            engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
                client: queue.client.0,
                data: (&raw const byte).cast(),
                type_: sys::PJRT_Buffer_Type_U8,
                host_buffer_semantics: sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
                device: queue.device.0,
                ..Default::default()
            })?
        };
        // SAFETY: both are ours from here on.
        let event = unsafe {
            drop(EngineEvent::own(engine, made.done_with_host_buffer));
            engine
                .call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: made.buffer, ..Default::default() })
                .map(|ready| EngineEvent::own(engine, ready.event))
                .and_then(|event| event.ok_or_else(|| EngineError::Own(Error::internal("a buffer without an event"))))
        };
        // SAFETY: nobody else knows the buffer.
        let event = event.inspect_err(|_| unsafe { views::destroy(engine, made.buffer) })?;
        Ok(Self { event, buffer: Raw(made.buffer) })
    }
}
