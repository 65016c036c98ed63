//! Executions that do not run in the caller's thread.
//!
//! A CPU client that is made with `asynchronous=false` runs a program in the thread that executes it, unless the program
//! has to wait: for an argument, or for the program before it on its device (engine behaviour T44).
//! The C API has no field that asks for the other way (XLA's `ExecuteOptions::execution_mode`). So a program that is to
//! run on a thread of the engine is given something to wait for, until it has been executed:
//!
//! ```text
//!  [`EngineBuffer::hold_back`]   a destination: the same view as a buffer that waits     [ program: waits ]
//!  [`EmptyProgram::hold_back`]   where there is none: an empty program that waits, and   [ empty program: waits ]
//!                                comes before it on the device                           [ program: waits for that ]
//!  dropping the [`Dependency`]   what it waited for is there                             on a thread of the engine
//! ```

use std::{ffi::c_void, ptr};

use once_cell::sync::OnceCell;

use crate::{
    engine::{
        Engine, EngineBuffer, EngineError, Live, Open, Raw, Session,
        executables::compile_text,
        failure::discard,
        order,
        views::{Array, ClientMemory, HostBytes, OwnedBuffer, from_host},
    },
    error::Error,
    sys,
};

/// The first version of the C API of which an engine is known whose buffers can be made to wait: 0.106 has the
/// function, but does not implement it.
const FIRST: i32 = 115;

/// A program that does nothing with a byte, in a text that each version of StableHLO reads.
const PROGRAM: &str = "module @empty { func.func @main(%byte: tensor<ui8>) { return } }";

/// `CompileOptionsProto { executable_build_options { num_replicas: 1, num_partitions: 1 }, compile_portable_executable:
/// true }`: it runs on each device.
const OPTIONS: [u8; 8] = [0x1a, 4, 0x20, 1, 0x28, 1, 0x20, 1];

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
    /// The same memory as another buffer, which waits for this; `buffer` is used up.
    ///
    /// # Errors
    /// The engine's; the buffer is as it was then.
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
    /// Has the programs that are passed this buffer from here on wait for what is given back.
    ///
    /// # Errors
    /// The engine's, or that the client is gone; the buffer is as it was then, unless the engine threw.
    pub fn hold_back(&mut self) -> Result<Dependency, EngineError> {
        let (waiting, dependency) = Dependency::of(self.live()?)?;
        // SAFETY: the buffer is a new one of the same client, and nobody else's.
        *self = unsafe { Self::own(self.session(), waiting.raw()) };
        Ok(dependency)
    }
}

/// A program that does nothing but wait; compiled for a client when it is needed first.
#[derive(Default)]
pub struct EmptyProgram(OnceCell<Raw<sys::PJRT_LoadedExecutable>>);

impl EmptyProgram {
    /// Has the next program that this thread executes on `device`, whose memory is `memory`, wait for what is given
    /// back. Some microseconds; the first time some milliseconds.
    ///
    /// # Errors
    /// The engine's, or that the client is gone.
    ///
    /// # Safety
    /// Device and memory must be the session's client's.
    pub unsafe fn hold_back(
        &self,
        session: &'static Session,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
    ) -> Result<Dependency, EngineError> {
        /// Read by nobody.
        #[repr(align(64))]
        struct Byte(u8);
        static BYTE: Byte = Byte(0);
        let open = session.open().map_err(EngineError::Own)?;
        let engine = open.engine;
        let executable = self.loaded(open)?.0;
        let address = (&raw const BYTE.0).expose_provenance();
        // SAFETY: the memory is the client's, as this function asks, and the client is open. The byte is aligned, and
        // there for ever; nobody writes to it. The buffer that waits is new.
        let (byte, dependency) = unsafe {
            let place = ClientMemory { client: open.client(), memory: Live::new(engine, memory.0) };
            let byte = from_host(place, address, Array::new(sys::PJRT_Buffer_Type_U8, &[]), HostBytes::Constant)?;
            let (waiting, dependency) = Dependency::of(byte.live())?;
            (OwnedBuffer::own(place.client, waiting.raw()), dependency)
        };
        let mut options =
            sys::PJRT_ExecuteOptions { struct_size: size_of::<sys::PJRT_ExecuteOptions>(), ..Default::default() };
        let arguments = [byte.live().raw()];
        let lists = [arguments.as_ptr()];
        let mut no_results: *mut sys::PJRT_Buffer = ptr::null_mut();
        let results = [&raw mut no_results];
        // SAFETY: executable, device and argument are alive, and lists and options outlive the call; there is one
        // argument, and no result.
        unsafe {
            engine.call(sys::PJRT_LoadedExecutable_Execute_Args {
                executable,
                options: &raw mut options,
                argument_lists: lists.as_ptr(),
                num_devices: 1,
                num_args: 1,
                output_lists: results.as_ptr(),
                execute_device: device.0,
                ..Default::default()
            })?;
        }
        Ok(dependency)
    }

    /// The program, compiled now if it was not yet.
    ///
    /// # Errors
    /// The engine's.
    fn loaded(&self, open: Open) -> Result<Raw<sys::PJRT_LoadedExecutable>, EngineError> {
        if let Some(&known) = self.0.get() {
            return Ok(known);
        }
        // No lock is held while the engine compiles, so another thread may be faster.
        let made = compile_text(open.client(), PROGRAM, &OPTIONS)?;
        if self.0.set(made).is_err() {
            destroy(open.engine, made);
        }
        Ok(self.0.get().copied().unwrap_or(made))
    }

    /// Destroys the program, before the client is destroyed.
    pub fn end(&self, engine: &'static Engine) {
        if let Some(&executable) = self.0.get() {
            destroy(engine, executable);
        }
    }
}

/// Destroys an empty program that no call uses any more.
fn destroy(engine: &'static Engine, executable: Raw<sys::PJRT_LoadedExecutable>) {
    let args = sys::PJRT_LoadedExecutable_Destroy_Args { executable: executable.0, ..Default::default() };
    // SAFETY: executable and client are alive, and this is its end.
    discard(unsafe { engine.call(args) }, "destroy its empty program");
}
