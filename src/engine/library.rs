//! Loading the engine and calling its function table.

use std::{
    ffi::c_void,
    fmt,
    fs::File,
    io::Read as _,
    mem,
    path::{Path, PathBuf},
    ptr,
};

use crate::{
    engine::{
        abi::{Args, Function, fitted, oversize, set_struct_size},
        exceptions::{self, Caught},
        order,
    },
    error::{Code, Error, Result},
    sys::{self, CStruct},
};

/// The oldest minor version of an engine, whose table is the shortest one that we fill in.
const OLDEST_MINOR: i32 = 70;

/// A loaded engine. It is never unloaded: buffers and threads of it outlive every client.
pub struct Engine {
    /// The engine's functions. Slots that its version lacks are `None`, whatever lies behind its own, shorter table.
    api: sys::PJRT_Api,
    /// Where it was loaded from.
    path: PathBuf,
    /// An address in its code.
    inside: *const c_void,
}

// SAFETY: the table is written once, before the value is shared, and PJRT functions may be called from any thread.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

/// That a library is for another processor, if its file says so (System V ABI, ELF header: `e_machine`).
fn built_for_another(path: &Path) -> Option<String> {
    let mut head = [0; 20];
    File::open(path).ok()?.read_exact(&mut head).ok()?;
    let machine = match (head.starts_with(b"\x7fELF"), u16::from_le_bytes([head[18], head[19]])) {
        (false, _) => return None,
        (true, 62) => "x86_64",
        (true, 183) => "aarch64",
        (true, _) => "another processor",
    };
    let own = std::env::consts::ARCH;
    (machine != own).then(|| format!("it is built for {machine}, and this process runs on {own}"))
}

impl Engine {
    /// Loads the plugin at `path` and checks that its table is one that we can call.
    ///
    /// # Errors
    /// Names the path and what is wrong with it: not loadable, not a PJRT plugin, another major version, or a table
    /// shorter than the oldest one that we know how to read.
    pub fn load(path: &Path) -> Result<Self> {
        let shown = path.display();
        // SAFETY: loading a library runs its initialisers; the user named it (or the installed wheel did) as a PJRT
        // plugin, and that is what they are for.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            // The loader passes over such a file and says that there is none.
            let why = built_for_another(path).unwrap_or(why);
            Error::not_found(format!("the engine {shown} cannot be loaded: {why}"))
        })?;
        // SAFETY: the type is the one that the PJRT C API gives to this symbol: it takes nothing, and returns the
        // plugin's static table.
        let found = unsafe {
            let get = library.get::<unsafe extern "C" fn() -> *const sys::PJRT_Api>(b"GetPjrtApi\0");
            get.map(|get| (*get as *const c_void, get()))
        };
        let (inside, raw) = found
            .map_err(|_| Error::invalid_argument(format!("{shown} is no PJRT plugin: it has no symbol GetPjrtApi")))?;
        // The engine's threads and static objects live until the process ends.
        mem::forget(library);
        if raw.is_null() {
            return Err(Error::invalid_argument(format!("the engine {shown} gave no function table")));
        }
        let mut api = sys::PJRT_Api::default();
        // SAFETY: the table is not NULL, begins with its size in every version, and is as long; no more of it is read
        // than ours has room for. The two do not overlap.
        let size = unsafe {
            let size = ptr::read(raw.cast::<usize>());
            ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut api).cast::<u8>(), size.min(size_of_val(&api)));
            size
        };
        let least = mem::offset_of!(sys::PJRT_Api, PJRT_Client_TopologyDescription);
        if size < least {
            return Err(Error::invalid_argument(format!(
                "the engine {shown} has a function table of {size} bytes; at least {least} are needed"
            )));
        }
        let (major, minor) = (api.pjrt_api_version.major_version, api.pjrt_api_version.minor_version);
        if major != 0 {
            return Err(Error::invalid_argument(format!(
                "the engine {shown} speaks PJRT C API {major}.{minor}; pjrt-arena speaks major version 0"
            )));
        }
        if minor < OLDEST_MINOR {
            return Err(Error::invalid_argument(format!(
                "the engine {shown} speaks PJRT C API 0.{minor}; pjrt-arena speaks 0.{OLDEST_MINOR} and newer"
            )));
        }
        Ok(Self { api, path: path.to_owned(), inside })
    }

    /// The minor version of the C API that the engine was built with.
    pub fn minor(&self) -> i32 {
        self.api.pjrt_api_version.minor_version
    }

    /// Whether it is newer than our declarations, so that its structs may be longer.
    pub fn is_newer(&self) -> bool {
        self.minor() > sys::PJRT_API_MINOR as i32
    }

    /// Where the engine was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An address in the engine's library.
    pub fn inside(&self) -> *const c_void {
        self.inside
    }

    /// Bytes of the engine's own function table.
    pub fn table_size(&self) -> usize {
        self.api.struct_size
    }

    /// The engine's chain of extensions.
    pub fn extensions(&self) -> *const sys::PJRT_Extension_Base {
        self.api.extension_start
    }

    /// The functions with their own types, for the two that return nothing.
    pub(crate) fn table(&self) -> &sys::PJRT_Api {
        &self.api
    }

    /// The function at byte `offset` of the table, if the engine's version has it.
    pub fn slot(&self, offset: usize) -> Option<Function> {
        debug_assert!(offset.is_multiple_of(8) && offset < mem::size_of::<sys::PJRT_Api>());
        // SAFETY: the offset is that of a function slot inside our full-size copy; a slot is a nullable function
        // pointer, and every such function takes one pointer to its argument struct.
        unsafe { ptr::read((&raw const self.api).byte_add(offset).cast::<Option<Function>>()) }
    }

    /// Calls the function whose argument struct is `A`; gives the struct back with its out fields filled in.
    ///
    /// The struct has the newest size that we know or, for a newer engine, more ([`Self::invoke`]).
    ///
    /// # Errors
    /// The engine's error; UNIMPLEMENTED when the engine's version lacks the function.
    ///
    /// # Safety
    /// The fields must satisfy the function's contract: handles of this engine that are alive, pointers valid for as
    /// long as the function says.
    pub unsafe fn call<A: Args>(&'static self, mut args: A) -> Result<A, EngineError> {
        set_struct_size(&mut args, A::STRUCT_SIZE);
        let Some(function) = self.slot(A::SLOT) else { return Err(EngineError::missing(self, A::FUNCTION)) };
        // SAFETY: the slot belongs to `A`; the fields are the caller's promise.
        unsafe { self.invoke(&raw mut args, function)? };
        Ok(args)
    }

    /// Calls one of the engine's functions with a struct as long as the engine asks for: of the size that we declare,
    /// or longer by more than structs grow by when the engine is newer than our declarations (engine behaviour T30). A
    /// struct that is long enough is not touched.
    ///
    /// # Errors
    /// The engine's error, or INTERNAL with the C++ exception that it threw.
    ///
    /// # Safety
    /// `args` must point to a struct of `struct_size` bytes, and `function` be one that takes such structs; the fields
    /// must satisfy its contract.
    #[inline(always)]
    pub unsafe fn invoke<A: CStruct>(&'static self, args: *mut A, function: Function) -> Result<(), EngineError> {
        let size = if self.is_newer() { oversize::<A>() } else { A::STRUCT_SIZE };
        order::given(&raw const order::CALLS);
        // SAFETY: the caller's promise.
        let outcome = unsafe { fitted(args, size.., size, |args| exceptions::call(function, args.cast())) };
        order::taken(&raw const order::CALLED);
        match outcome {
            Ok(error) if error.is_null() => Ok(()),
            other => Err(self.refused(other)),
        }
    }

    /// As [`Self::invoke`], for a struct that has the size which the engine asks for, as nearly all have: what the
    /// function returned, NULL or an error of the engine. `None`, and nothing was called, if the struct is NULL or has
    /// another size, or if the engine lacks the function.
    ///
    /// # Errors
    /// The C++ exception that it threw.
    ///
    /// # Safety
    /// `args` must be NULL or point to a struct of `struct_size` bytes, whose fields satisfy the function's contract.
    #[inline(always)]
    pub unsafe fn invoke_fitting<A: Args>(&'static self, args: *mut A) -> Option<Result<*mut sys::PJRT_Error, Caught>> {
        // SAFETY: the struct is NULL, or begins with its size, as every struct of the C API.
        let size = *unsafe { args.cast::<usize>().as_ref()? };
        if size < A::STRUCT_SIZE || self.is_newer() {
            return None;
        }
        let function = self.slot(A::SLOT)?;
        // SAFETY: the slot belongs to `A`; the struct is as long as the engine asks for, and satisfies the function's
        // contract, as this function asks.
        Some(unsafe { exceptions::call(function, args.cast()) })
    }

    /// Owns the error that a function returned, or ends the exception that it threw.
    #[cold]
    fn refused(&'static self, outcome: Result<*mut sys::PJRT_Error, Caught>) -> EngineError {
        match outcome {
            Ok(error) => EngineError::Engine { engine: self, error },
            Err(caught) => EngineError::Own(caught.end()),
        }
    }
}

/// An error of the engine, or our word for what it cannot say itself.
pub enum EngineError {
    /// An error object of the engine; we own it.
    Engine {
        /// Whose error it is.
        engine: &'static Engine,
        /// Never NULL.
        error: *mut sys::PJRT_Error,
    },
    /// It lacks the function, or threw an exception.
    Own(Error),
}

impl EngineError {
    /// `Err` if `error` is not NULL.
    ///
    /// # Safety
    /// `error` must be NULL or an error of `engine` that the caller owns.
    pub(crate) unsafe fn check(engine: &'static Engine, error: *mut sys::PJRT_Error) -> Result<(), Self> {
        if error.is_null() { Ok(()) } else { Err(Self::Engine { engine, error }) }
    }

    /// The engine has no such function.
    pub(super) fn missing(engine: &Engine, function: &str) -> Self {
        Self::Own(Error::unimplemented(format!(
            "the engine {} (PJRT C API 0.{}) has no function {function}",
            engine.path().display(),
            engine.minor()
        )))
    }

    /// The error's message, copied.
    pub fn message(&self) -> String {
        match self {
            Self::Own(error) => error.message.clone(),
            Self::Engine { engine, error } => {
                let mut args = sys::PJRT_Error_Message_Args { error: *error, ..Default::default() };
                args.struct_size = size_of_val(&args);
                let Some(message) = engine.table().PJRT_Error_Message else { return String::new() };
                // SAFETY: the error is alive, the struct is of the newest size. The engine's message is NULL or has
                // `message_size` bytes, and lives as long as the error.
                unsafe {
                    message(&raw mut args);
                    sys::text(args.message, args.message_size).into_owned()
                }
            }
        }
    }

    /// Whether it says that memory, or another bounded resource, is exhausted.
    pub fn is_exhausted(&self) -> bool {
        self.has(Code::ResourceExhausted)
    }

    /// Whether this is its code.
    pub fn has(&self, code: Code) -> bool {
        match self {
            Self::Own(error) => error.code == code,
            Self::Engine { engine, error } => {
                let args = sys::PJRT_Error_GetCode_Args { error: *error, ..Default::default() };
                // SAFETY: the error is alive.
                let answer = unsafe { engine.call(args) };
                answer.is_ok_and(|args| args.code.0 == code as u32)
            }
        }
    }

    /// Hands the error object over to the caller, who destroys it.
    ///
    /// # Errors
    /// Our own error.
    pub fn into_raw(self) -> Result<*mut sys::PJRT_Error, Error> {
        let this = std::mem::ManuallyDrop::new(self);
        match &*this {
            Self::Engine { error, .. } => Ok(*error),
            Self::Own(error) => Err(error.clone()),
        }
    }
}

impl Drop for EngineError {
    fn drop(&mut self) {
        if let Self::Engine { engine, error } = self {
            let mut args = sys::PJRT_Error_Destroy_Args { error: *error, ..Default::default() };
            args.struct_size = size_of_val(&args);
            if let Some(destroy) = engine.table().PJRT_Error_Destroy {
                // SAFETY: we own the error, and this is the only time that it is destroyed.
                unsafe { destroy(&raw mut args) };
            }
        }
    }
}

impl fmt::Debug for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match &error {
            EngineError::Own(own) => own.clone(),
            EngineError::Engine { .. } => Error::new(Code::Internal, error.message()),
        }
    }
}
