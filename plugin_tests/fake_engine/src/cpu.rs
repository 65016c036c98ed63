//! The CPU engine behind: it compiles and computes, and its clients, devices, memories, executables and topologies are
//! the ones that callers of this engine see.

use std::{env, ffi::c_void, mem, path::PathBuf, ptr};

use once_cell::sync::OnceCell;

use crate::{
    abi::{Args, fitted, set_struct_size},
    entry::text,
    error::{Error, Result},
    shape::Shape,
    sys::{self, CStruct},
};

/// Names the CPU engine; without it the engine that all tests use is taken.
const VARIABLES: [&str; 2] = ["FAKE_ENGINE_CPU", "PJRT_ARENA_TEST_ENGINE"];

/// The loaded CPU engine. Never unloaded.
pub struct Cpu {
    api: sys::PJRT_Api,
    path: PathBuf,
}

// SAFETY: the table is written once, before it is shared; PJRT functions may be called on any thread.
unsafe impl Send for Cpu {}
// SAFETY: as above.
unsafe impl Sync for Cpu {}

/// A handle that may travel between threads.
#[derive(Debug)]
pub struct Raw<T>(pub *mut T);

// Not derived: the derive would ask the same of `T`, which is only a name.
impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

// SAFETY: PJRT handles may be used on any thread; `Raw` never dereferences one.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

/// The CPU engine, loaded when it is first asked for.
///
/// # Errors
/// Names the variable or the path, and what is wrong with it.
pub fn engine() -> Result<&'static Cpu> {
    static ENGINE: OnceCell<Cpu> = OnceCell::new();
    ENGINE.get_or_try_init(|| {
        let path = VARIABLES.iter().find_map(env::var_os).ok_or_else(|| {
            Error::new(
                sys::PJRT_Error_Code_NOT_FOUND,
                format!(
                    "the fake CUDA engine computes with a CPU engine, which {} or {} names",
                    VARIABLES[0], VARIABLES[1]
                ),
            )
        })?;
        Cpu::load(path.into())
    })
}

impl Cpu {
    fn load(path: PathBuf) -> Result<Self> {
        let shown = path.display();
        let not_found = |why: &dyn std::fmt::Display| {
            Error::new(sys::PJRT_Error_Code_NOT_FOUND, format!("the CPU engine {shown} cannot be used: {why}"))
        };
        // SAFETY: loading runs the library's initialisers; the test named it as a PJRT plugin.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|error| not_found(&error))?;
        // SAFETY: the symbol has this type in every PJRT plugin.
        let get = unsafe { library.get::<unsafe extern "C" fn() -> *const sys::PJRT_Api>(b"GetPjrtApi\0") }
            .map_err(|error| not_found(&error))?;
        // SAFETY: as above.
        let table = unsafe { get() };
        mem::forget(library);
        if table.is_null() {
            return Err(not_found(&"it gave no function table"));
        }
        let mut api = sys::PJRT_Api::default();
        // SAFETY: a table is as long as its first word says, and the copy is cut at ours.
        unsafe {
            let size = table.cast::<usize>().read().min(size_of::<sys::PJRT_Api>());
            ptr::copy_nonoverlapping(table.cast::<u8>(), (&raw mut api).cast(), size);
        }
        Ok(Self { api, path })
    }

    /// The chain of extensions.
    pub fn extensions(&self) -> *const sys::PJRT_Extension_Base {
        self.api.extension_start
    }

    fn function<A: Args>(&self) -> Result<unsafe extern "C" fn(*mut c_void) -> *mut sys::PJRT_Error> {
        // SAFETY: the offset is that of a function slot in our full-size copy, a nullable function pointer; each such
        // function takes one pointer to its argument struct.
        let slot = unsafe {
            ptr::read(
                (&raw const self.api)
                    .byte_add(A::SLOT)
                    .cast::<Option<unsafe extern "C" fn(*mut c_void) -> *mut sys::PJRT_Error>>(),
            )
        };
        slot.ok_or_else(|| {
            Error::unimplemented(format!("the CPU engine {} has no function {}", self.path.display(), A::FUNCTION))
        })
    }

    /// Calls the function whose argument struct is `A`, and gives the struct back.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The fields must satisfy the function's contract.
    pub unsafe fn call<A: Args>(&self, mut args: A) -> Result<A> {
        set_struct_size(&mut args, A::STRUCT_SIZE);
        // SAFETY: the caller's promise.
        unsafe { self.pass(&raw mut args)? };
        Ok(args)
    }

    /// Hands a caller's struct on.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// `args` must point to the function's struct, `struct_size` bytes long, with fields that satisfy its contract.
    pub unsafe fn pass<A: Args>(&self, args: *mut A) -> Result {
        let function = self.function::<A>()?;
        // SAFETY: the caller's promise; a struct that is too short for the engine is extended with zeros.
        unsafe { self.check(fitted(args, A::STRUCT_SIZE.., A::STRUCT_SIZE, |args| function(args.cast()))) }
    }

    /// Calls a function of one of the engine's extensions.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// As for [`Self::pass`].
    pub unsafe fn call_extension<A: CStruct>(
        &self,
        function: Option<unsafe extern "C" fn(*mut A) -> *mut sys::PJRT_Error>,
        args: *mut A,
    ) -> Result {
        let function =
            function.ok_or_else(|| Error::unimplemented(format!("the CPU engine has no function for {}", A::NAME)))?;
        // SAFETY: the caller's promise.
        unsafe { self.check(fitted(args, A::STRUCT_SIZE.., A::STRUCT_SIZE, |args| function(args))) }
    }

    /// Makes one of the engine's errors one of ours.
    ///
    /// # Errors
    /// What `error` says, unless it is NULL.
    ///
    /// # Safety
    /// `error` must be NULL or an error of the engine that the caller owns.
    pub unsafe fn check(&self, error: *mut sys::PJRT_Error) -> Result {
        if error.is_null() {
            return Ok(());
        }
        let mut message = sys::PJRT_Error_Message_Args { error, ..Default::default() };
        message.struct_size = sys::PJRT_Error_Message_Args::STRUCT_SIZE;
        let mut code = sys::PJRT_Error_GetCode_Args { error, ..Default::default() };
        code.struct_size = sys::PJRT_Error_GetCode_Args::STRUCT_SIZE;
        let mut destroy = sys::PJRT_Error_Destroy_Args { error, ..Default::default() };
        destroy.struct_size = sys::PJRT_Error_Destroy_Args::STRUCT_SIZE;
        let api = &self.api;
        let (Some(say), Some(tell), Some(end)) =
            (api.PJRT_Error_Message, api.PJRT_Error_GetCode, api.PJRT_Error_Destroy)
        else {
            return Err(Error::internal("the CPU engine cannot say what its error is"));
        };
        // SAFETY: the error is alive until the last call, and its text is copied before.
        unsafe {
            say(&raw mut message);
            tell(&raw mut code);
            let error = Error::new(code.code, text(message.message, message.message_size));
            end(&raw mut destroy);
            Err(error)
        }
    }

    /// Waits for an event of the engine and destroys it; NULL has happened.
    ///
    /// # Errors
    /// What the event carries.
    ///
    /// # Safety
    /// `event` must be NULL or a live event of the engine that nobody else destroys.
    pub unsafe fn finish(&self, event: *mut sys::PJRT_Event) -> Result {
        if event.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            let outcome = self.call(sys::PJRT_Event_Await_Args { event, ..Default::default() });
            self.call(sys::PJRT_Event_Destroy_Args { event, ..Default::default() })?;
            outcome.map(drop)
        }
    }

    /// A buffer of the engine over host memory, or a copy of it, as `semantics` say.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The handles are alive; `data` holds the dense array for as long as `semantics` ask.
    pub unsafe fn put(
        &self,
        client: *mut sys::PJRT_Client,
        memory: *mut sys::PJRT_Memory,
        data: *const c_void,
        shape: &Shape,
        semantics: sys::PJRT_HostBufferSemantics,
    ) -> Result<*mut sys::PJRT_Buffer> {
        let mut layout = shape.layout();
        let layout = if shape.is_row_major() { ptr::null_mut() } else { &raw mut layout };
        // SAFETY: the caller's promise; the shape outlives the call.
        unsafe {
            let args = self.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
                client,
                data,
                type_: shape.element_type,
                dims: shape.dims.as_ptr(),
                num_dims: shape.dims.len(),
                device_layout: layout,
                host_buffer_semantics: semantics,
                memory,
                ..Default::default()
            })?;
            // Nobody waits for it: the programs' completion says when the memory is free.
            self.call(sys::PJRT_Event_Destroy_Args { event: args.done_with_host_buffer, ..Default::default() })?;
            Ok(args.buffer)
        }
    }

    /// Destroys a buffer of the engine.
    ///
    /// # Safety
    /// `buffer` must be NULL or a live buffer of the engine that is not used again.
    pub unsafe fn destroy(&self, buffer: *mut sys::PJRT_Buffer) {
        if !buffer.is_null() {
            // SAFETY: the caller's promise. There is nobody to tell about a failure, and nothing to do about it.
            drop(unsafe { self.call(sys::PJRT_Buffer_Destroy_Args { buffer, ..Default::default() }) });
        }
    }
}
