//! The driver's functions, found when the program runs.
//!
//! ```text
//!  Driver::load ----> dlopen libcuda.so.1 ---> every symbol ---> the table, for the rest of the process
//!                            |                      |
//!                            v                      v
//!                     Unavailable::Library   Unavailable::Symbol
//!
//!  driver.mem_map(...) ---> cuMemMap ---> Ok, or a Failure: the function, its code, the code's name and meaning
//! ```
//!
//! The types and the constants are cudarc's. Its calls (`driver::result`, `driver::safe`) are not used, for they go to a
//! library that cudarc opens itself: it panics where there is none or where a symbol is missing, it prefers another file
//! name (`libcuda.so`), and tests could not put a library of their own in its place. They also return the driver's
//! status as a Rust enum, in which the codes that newer drivers added do not exist. Here a status is a number, and
//! the macro `functions!` holds our prototypes against cudarc's when it compiles.

use std::{
    error,
    ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_ulonglong, c_void},
    fmt, mem, ptr,
};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPool_attribute,
    CUmemoryPool, CUresult, CUstream,
};
use parking_lot::Mutex;

use crate::{
    error::{Code, Error},
    memory::budget::Over,
};

/// The file name that NVIDIA's driver installs for programs; `libcuda.so` comes with development packages only.
pub(super) const LIBRARY: &str = "libcuda.so.1";

/// A status of the driver, `CUresult` in C.
pub(super) type Status = u32;

/// Why nothing can be said about GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The driver's library cannot be opened: as a rule, there is no driver.
    Library {
        /// The library that was looked for.
        name: String,
        /// What the dynamic loader said.
        why: String,
    },
    /// The library is not the driver, or one older than all that CUDA 11.4 knows.
    Symbol {
        /// The library.
        library: String,
        /// The function that it lacks.
        symbol: &'static str,
    },
    /// The driver answered a call with an error; without a GPU, already the first.
    Call {
        /// The function.
        function: &'static str,
        /// The driver's code.
        code: u32,
        /// The code's name and meaning in the driver's words; empty if the driver does not know it.
        name: String,
    },
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What nearly every machine without a GPU says. The loader names the file that is missing first, which may
            // be another one that the library needs.
            Self::Library { name, why }
                if why.starts_with(name.as_str()) && why.ends_with("No such file or directory") =>
            {
                write!(f, "no NVIDIA driver ({name} not found)")
            }
            Self::Library { name, why } => write!(f, "no NVIDIA driver: {name} cannot be loaded: {why}"),
            Self::Symbol { library, symbol } => {
                write!(f, "no NVIDIA driver that can be asked: {library} has no symbol {symbol}")
            }
            Self::Call { function, code, name } => {
                let name = if name.is_empty() { "an error without a name" } else { name };
                write!(f, "the NVIDIA driver shows no GPU: {function} gave {code}, {name}")
            }
        }
    }
}

impl error::Error for Unavailable {}

impl From<Failure> for Unavailable {
    fn from(failure: Failure) -> Self {
        Self::Call { function: failure.function, code: failure.code, name: failure.words() }
    }
}

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The function; empty where none was called.
    pub(super) function: &'static str,
    /// The driver's code.
    pub(super) code: Status,
    /// The code's name; empty if the driver does not know it.
    pub(super) name: String,
    /// What the driver says that it means; empty as above.
    pub(super) text: String,
}

impl Failure {
    /// Our own limit leaves no room, though the driver's might: for whoever asked it is the same.
    pub(super) fn over(over: Over) -> Self {
        let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY as Status;
        Self { function: "", code, name: String::new(), text: over.to_string() }
    }

    /// Whether the driver answered with `code`.
    pub(super) fn is(&self, code: CUresult) -> bool {
        self.code == code as Status
    }

    /// Whether the driver is shut down already, as at the end of a process: what it held is gone with it.
    pub(super) fn is_over(&self) -> bool {
        self.is(CUresult::CUDA_ERROR_DEINITIALIZED)
    }

    fn words(&self) -> String {
        [self.name.as_str(), &self.text].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(": ")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.function.is_empty() {
            return f.write_str(&self.text);
        }
        let words = self.words();
        let words = if words.is_empty() { "an error without a name" } else { &words };
        write!(f, "{} gave {}, {words}", self.function, self.code)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let code =
            if failure.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) { Code::ResourceExhausted } else { Code::Internal };
        Self::new(code, failure.to_string())
    }
}

/// Declares [`Functions`]: one field for each function, with the symbol that it is found by and its parameters; `as` says
/// what cudarc calls a parameter that we pass otherwise. Does not compile where the rest differs from cudarc's. Each function
/// becomes a method of [`Driver`] by the field's name. Optional ones may be missing in a driver that is good otherwise.
macro_rules! functions {
    (@theirs $ours:ty) => { $ours };
    (@theirs $ours:ty as $theirs:ty) => { $theirs };
    (
        required { $($field:ident: $symbol:ident($($name:ident: $type:ty $(as $theirs:ty)?),*);)* }
        optional { $($maybe:ident: $missing:ident($($label:ident: $kind:ty),*);)* }
    ) => {
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($field: unsafe extern "C" fn($($type),*) -> Status,)*
            $($maybe: Option<unsafe extern "C" fn($($kind),*) -> Status>,)*
        }

        /// Every symbol that the table cannot do without.
        #[cfg(test)]
        pub(super) const REQUIRED: &[&str] = &[$(stringify!($symbol)),*];

        impl Functions {
            /// Finds every function, or gives the symbol that is not there.
            ///
            /// # Safety
            /// What `find` gives for a name is the function of the driver with that name.
            unsafe fn find(find: impl Fn(&str) -> Option<*const c_void>) -> Result<Self, &'static str> {
                let find = |symbol| find(symbol).filter(|place| !place.is_null());
                Ok(Self {
                    $($field: {
                        let place = find(stringify!($symbol)).ok_or(stringify!($symbol))?;
                        // SAFETY: the symbol has the type that cudarc's declaration of it has, see below; only the
                        // status is a number here, which is what the C enum is to the caller.
                        unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> Status>(place) }
                    },)*
                    $($maybe: find(stringify!($missing)).map(|place| {
                        // SAFETY: as above.
                        unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> Status>(place) }
                    }),)*
                })
            }
        }

        impl Driver {
            $(
                /// The driver's function of this name.
                ///
                /// # Safety
                /// What CUDA's documentation asks of its caller.
                #[allow(dead_code, reason = "the two that name errors are called by their fields")]
                pub(super) unsafe fn $field(&self, $($name: $type),*) -> Result<(), Failure> {
                    // SAFETY: the caller's promise.
                    let status = unsafe { (self.functions.$field)($($name),*) };
                    self.check(stringify!($symbol), status)
                }
            )*
            $(
                /// The driver's function of this name; where the driver lacks it, what one that has it says on a device
                /// that cannot do this.
                ///
                /// # Safety
                /// What CUDA's documentation asks of its caller.
                pub(super) unsafe fn $maybe(&self, $($label: $kind),*) -> Result<(), Failure> {
                    let status = match self.functions.$maybe {
                        // SAFETY: the caller's promise.
                        Some(function) => unsafe { function($($label),*) },
                        None => CUresult::CUDA_ERROR_NOT_SUPPORTED as Status,
                    };
                    self.check(stringify!($missing), status)
                }
            )*
        }

        const _: () = {
            assert!(size_of::<Status>() == size_of::<CUresult>());
            $(let _: unsafe fn($(functions!(@theirs $type $(as $theirs)?)),*) -> CUresult = sys::$symbol;)*
            $(let _: unsafe fn($($kind),*) -> CUresult = sys::$missing;)*
        };
    };
}

functions! {
    required {
        init: cuInit(flags: c_uint);
        driver_version: cuDriverGetVersion(version: *mut c_int);
        error_name: cuGetErrorName(code: Status as CUresult, text: *mut *const c_char);
        error_string: cuGetErrorString(code: Status as CUresult, text: *mut *const c_char);

        device_count: cuDeviceGetCount(count: *mut c_int);
        device: cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        device_name: cuDeviceGetName(name: *mut c_char, room: c_int, device: CUdevice);
        device_memory: cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        device_attribute: cuDeviceGetAttribute(value: *mut c_int, which: CUdevice_attribute, device: CUdevice);
        device_can_access_peer: cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);

        primary_context_retain: cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        primary_context_release: cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        context_push: cuCtxPushCurrent_v2(context: CUcontext);
        context_pop: cuCtxPopCurrent_v2(context: *mut CUcontext);

        mem_info: cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        mem_alloc: cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
        mem_free: cuMemFree_v2(address: CUdeviceptr);
        mem_host_alloc: cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
        mem_free_host: cuMemFreeHost(address: *mut c_void);

        mem_granularity: cuMemGetAllocationGranularity(
            bytes: *mut usize, properties: *const CUmemAllocationProp, which: CUmemAllocationGranularity_flags
        );
        mem_create: cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong
        );
        mem_release: cuMemRelease(handle: CUmemGenericAllocationHandle);
        mem_address_reserve: cuMemAddressReserve(
            address: *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr, flags: c_ulonglong
        );
        mem_address_free: cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        mem_map: cuMemMap(
            address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong
        );
        mem_unmap: cuMemUnmap(address: CUdeviceptr, bytes: usize);
        mem_set_access: cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);

        copy_to_device: cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        copy_on_device: cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        copy_anywhere: cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        copy_between: cuMemcpyPeerAsync(
            to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, other: CUcontext, bytes: usize, stream: CUstream
        );

        stream_create: cuStreamCreate(stream: *mut CUstream, flags: c_uint);
        stream_destroy: cuStreamDestroy_v2(stream: CUstream);
        stream_synchronize: cuStreamSynchronize(stream: CUstream);
        stream_wait_event: cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        event_create: cuEventCreate(event: *mut CUevent, flags: c_uint);
        event_destroy: cuEventDestroy_v2(event: CUevent);
        event_record: cuEventRecord(event: CUevent, stream: CUstream);
        event_synchronize: cuEventSynchronize(event: CUevent);
    }
    optional {
        default_pool: cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
        pool_get: cuMemPoolGetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void);
        pool_set: cuMemPoolSetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void);
        pool_trim: cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    }
}

/// The drivers that were loaded, by what they were asked for as; as a rule, one.
static LOADED: Mutex<Vec<(OsString, &'static Driver)>> = Mutex::new(Vec::new());

/// The functions of a driver.
#[derive(Debug)]
pub struct Driver {
    functions: Functions,
}

impl Driver {
    /// The driver whose library has the name or the path `library`, as NVIDIA's is `libcuda.so.1`. It stays loaded for the
    /// rest of the process: a driver that has started has threads and exit handlers, and an engine may use it too.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function that every driver from CUDA 11.4 on has.
    pub fn load(library: &OsStr) -> Result<&'static Self, Unavailable> {
        // Held while the library is opened: two threads that ask for the same one get the same one.
        let mut loaded = LOADED.lock();
        if let Some((_, driver)) = loaded.iter().find(|(path, _)| path == library) {
            return Ok(driver);
        }
        let name = library.to_string_lossy();
        // SAFETY: loading a library runs its initialisers; the driver is made for that.
        let opened = unsafe { libloading::Library::new(library) }.map_err(|error| Unavailable::Library {
            name: name.clone().into_owned(),
            why: error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
        })?;
        let find = |symbol: &str| {
            let symbol = CString::new(symbol).ok()?;
            // SAFETY: only the symbol's address is taken, which stays good: the library is never closed once all were found.
            let place = unsafe { opened.get::<*const c_void>(symbol.as_bytes_with_nul()).ok()?.try_as_raw_ptr() };
            place.map(<*mut c_void>::cast_const)
        };
        // SAFETY: a library that has all these symbols is the driver, or one that stands in for it.
        let driver = unsafe { Self::from_symbols(&name, find) }?;
        mem::forget(opened);
        let driver: &'static Self = Box::leak(Box::new(driver));
        loaded.push((library.to_owned(), driver));
        Ok(driver)
    }

    /// A driver whose functions `find` gives by their symbols; errors call it `name`.
    ///
    /// # Errors
    /// [`Unavailable::Symbol`] for the first function that it lacks.
    ///
    /// # Safety
    /// What `find` gives for a symbol is a function that behaves as NVIDIA's of this name, for the rest of the process.
    pub unsafe fn from_symbols(name: &str, find: impl Fn(&str) -> Option<*const c_void>) -> Result<Self, Unavailable> {
        // SAFETY: the caller's promise.
        unsafe { Functions::find(find) }
            .map(|functions| Self { functions })
            .map_err(|symbol| Unavailable::Symbol { library: name.to_owned(), symbol })
    }

    /// Starts the driver, which is asked of every process before anything else; again, it does nothing.
    pub(super) fn start(&self) -> Result<(), Failure> {
        // SAFETY: zero is the only value that the parameter may have.
        unsafe { self.init(0) }
    }

    /// The handle of a device.
    pub(super) fn device_at(&self, ordinal: c_int) -> Result<CUdevice, Failure> {
        // SAFETY: one value is written; the driver refuses an ordinal that it has not.
        out(|device| unsafe { self.device(device, ordinal) })
    }

    /// How many devices there are.
    pub(super) fn devices(&self) -> Result<c_int, Failure> {
        // SAFETY: one value is written.
        out(|count| unsafe { self.device_count(count) })
    }

    /// A number that says something about a device.
    pub(super) fn attribute(&self, device: CUdevice, which: CUdevice_attribute) -> Result<c_int, Failure> {
        // SAFETY: one value is written; the device is one of the driver's, and `which` one of the attributes of CUDA 11.4.
        out(|value| unsafe { self.device_attribute(value, which, device) })
    }

    /// What the driver says about `code`; nothing if it does not know it.
    fn error_text(&self, say: unsafe extern "C" fn(Status, *mut *const c_char) -> Status, code: Status) -> String {
        let mut text: *const c_char = ptr::null();
        // SAFETY: `say` is one of the two functions of this type, which take any code and may be called at any time.
        let status = unsafe { say(code, &raw mut text) };
        if status != CUresult::CUDA_SUCCESS as Status || text.is_null() {
            return String::new();
        }
        // SAFETY: the driver gave a constant C string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, function: &'static str, code: Status) -> Result<(), Failure> {
        if code == CUresult::CUDA_SUCCESS as Status {
            return Ok(());
        }
        let name = self.error_text(self.functions.error_name, code);
        let text = self.error_text(self.functions.error_string, code);
        Err(Failure { function, code, name, text })
    }
}

/// Calls a function that writes one value.
pub(super) fn out<T: Default>(call: impl FnOnce(*mut T) -> Result<(), Failure>) -> Result<T, Failure> {
    let mut value = T::default();
    call(&raw mut value).map(|()| value)
}

/// [`out`] for a handle that is a pointer.
pub(super) fn out_pointer<T>(call: impl FnOnce(*mut *mut T) -> Result<(), Failure>) -> Result<*mut T, Failure> {
    let mut value = ptr::null_mut();
    call(&raw mut value).map(|()| value)
}
