//! Executions that do not run in the caller's thread.
//!
//! A CPU client that is made with `asynchronous=false` runs a program in the thread that executes it, unless the
//! program has to wait: for an argument, or for the program before it on its device (engine behaviour T44).
//! The C API has no field that asks for the other way (XLA's `ExecuteOptions::execution_mode`). So a program that is to
//! run on a thread of the engine is given something to wait for, until it has been executed:
//!
//! ```text
//!  [`EngineBuffer::wait_for`]    a destination or a donated argument: the same memory as a buffer that waits
//!  dropping the [`Dependency`]   what the program waited for is there, so a thread of the engine runs it
//! ```
//!
//! Nothing that waits is given to the engine before the program itself: other threads' programs would come behind it on
//! the device, take all places there (32), and leave none for the program that ends the wait.

use std::ffi::c_void;

use crate::{
    engine::{Engine, EngineBuffer, EngineError, Live, Session, order},
    error::Error,
    sys,
};

/// The first version of the C API of which an engine is known whose buffers can be made to wait: 0.106 has the
/// function, but does not implement it.
const FIRST: i32 = 115;

/// Whether the engine's programs can be made to wait.
pub fn is_possible(engine: &Engine) -> bool {
    engine.minor() >= FIRST
}

/// What a program waits for. Dropped, it is there: also where the program was refused.
pub struct Dependency {
    callback: unsafe extern "C" fn(*mut sys::PJRT_Buffer_DonateWithControlDependency_Callback_Args),
    data: *mut c_void,
}

impl Dependency {
    /// The same memory as another buffer, which waits for this; `buffer` is used up, and must still be destroyed.
    ///
    /// # Errors
    /// The engine's; the buffer is as it was then, unless the engine threw.
    fn of<'a>(buffer: Live<'a, sys::PJRT_Buffer>) -> Result<(Live<'a, sys::PJRT_Buffer>, Self), EngineError> {
        let engine = buffer.engine();
        // SAFETY: the buffer is alive. The other one is new, and as long alive as its owner has it so.
        unsafe {
            let args = sys::PJRT_Buffer_DonateWithControlDependency_Args { buffer: buffer.raw(), ..Default::default() };
            let made = engine.call(args)?;
            let callback = made.dependency_ready_callback.ok_or_else(|| {
                EngineError::Own(Error::internal("the engine gave no callback for a buffer that waits"))
            })?;
            Ok((Live::new(engine, made.out_buffer), Self { callback, data: made.callback_data }))
        }
    }
}

impl Drop for Dependency {
    fn drop(&mut self) {
        let mut args = sys::PJRT_Buffer_DonateWithControlDependency_Callback_Args {
            struct_size: size_of::<sys::PJRT_Buffer_DonateWithControlDependency_Callback_Args>(),
            callback_data: self.data,
            error_code: sys::PJRT_Error_Code_OK,
            ..Default::default()
        };
        order::given(&raw const order::CALLS);
        // SAFETY: the data is the engine's for this callback, which is called this one time.
        unsafe { (self.callback)(&raw mut args) };
    }
}

impl EngineBuffer {
    /// The memory of `buffer` as another one: programs that are passed it wait for what is given back. `buffer` is used
    /// up, and has yet to be destroyed.
    ///
    /// # Errors
    /// The engine's; the buffer is as it was then, unless the engine threw.
    ///
    /// # Safety
    /// The buffer must be one of the session's client.
    pub unsafe fn waiting(
        session: &'static Session,
        buffer: Live<'_, sys::PJRT_Buffer>,
    ) -> Result<(Self, Dependency), EngineError> {
        let (waiting, dependency) = Dependency::of(buffer)?;
        // SAFETY: the buffer is a new one of the same client, and nobody else's.
        Ok((unsafe { Self::own(session, waiting.raw()) }, dependency))
    }

    /// Has the programs that are passed this buffer from here on wait for what is given back.
    ///
    /// # Errors
    /// As [`Self::waiting`], or that the client is gone.
    pub fn wait_for(&mut self) -> Result<Dependency, EngineError> {
        // SAFETY: the buffer is one of its own session's client.
        let (waiting, dependency) = unsafe { Self::waiting(self.session(), self.live()?)? };
        *self = waiting;
        Ok(dependency)
    }
}
