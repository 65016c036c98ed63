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
    engine::{EngineBuffer, EngineError, EngineEvent, Raw, Session},
    sys,
};

/// A device on which the engine does one run after another.
#[derive(Clone, Copy)]
pub struct ExecutionQueue {
    session: &'static Session,
    device: Raw<sys::PJRT_Device>,
}

impl ExecutionQueue {
    /// The queue of `device`, if the engine does its executions one after another.
    ///
    /// # Safety
    /// `device` must be one of the session's client.
    pub unsafe fn of(session: &'static Session, device: Raw<sys::PJRT_Device>) -> Option<Self> {
        session.orders_executions.then_some(Self { session, device })
    }
}

/// See the module's documentation.
pub struct Fence {
    /// Ready when all is over that the device was given before; with an error if that cannot be known.
    pub event: EngineEvent,
    /// The byte, to be destroyed after that.
    pub buffer: EngineBuffer,
}

impl Fence {
    /// Asks for the end of what the device was given so far. A few microseconds; nobody waits.
    ///
    /// # Errors
    /// The engine's, which has no memory for a byte, or no device any more; or that the client is gone.
    pub fn of(ExecutionQueue { session, device }: ExecutionQueue) -> Result<Self, EngineError> {
        let open = session.open().map_err(EngineError::Own)?;
        let byte = 0u8;
        // SAFETY: the client is open, the device is its own, and the byte outlives the call, which is all that the
        // engine relies on. Buffer and event are new.
        let buffer = unsafe {
            let made = open.engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
                client: open.handle.0,
                data: (&raw const byte).cast(),
                type_: sys::PJRT_Buffer_Type_U8,
                host_buffer_semantics: sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
                device: device.0,
                ..Default::default()
            })?;
            drop(EngineEvent::own(open.engine, made.done_with_host_buffer));
            EngineBuffer::own(session, made.buffer)
        };
        Ok(Self { event: buffer.ready_event()?, buffer })
    }
}
