//! The driver's functions, found when the program runs: NVIDIA's, or those of AMD's HIP that do the same.
//!
//! ```text
//!  Driver::load ----> dlopen libcuda.so.1 ---> every symbol ---> the table, for the rest of the process
//!                      or libamdhip64.so            |
//!                            |                      v
//!                            v               Unavailable::Symbol
//!                     Unavailable::Library
//!
//!  driver.mem_alloc(...) ---> cuMemAlloc, hipMalloc ---> Ok, or a DriverError: the function, its code, the code's name and meaning
//! ```
//!
//! HIP's functions take what NVIDIA's take: handles are pointers, devices ordinals, and its `hipDeviceptr_t`, a
//! pointer, is passed as the number that `CUdeviceptr` is. Its statuses that are told apart here have NVIDIA's numbers.
//! What differs is in [`vendor`](crate::device::cuda::vendor) and [`context`](crate::device::cuda::context).
//!
//! The types and the constants are cudarc's. Its calls (`driver::result`, `driver::safe`) are not used, for they go to
//! a library that cudarc opens itself: it panics where there is none or where a symbol is missing, it prefers another
//! file name (`libcuda.so`), and tests could not put a library of their own in its place. They also return the driver's
//! status as a Rust enum, in which the codes that newer drivers added do not exist. Here a status is a number, and the
//! macro `functions!` holds our prototypes against cudarc's when it compiles. HIP's were compared by hand with the
//! headers of ROCm 6.3 and 7 (`hip_runtime_api.h`).

use std::{
    error,
    ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_uint, c_ulonglong, c_void},
    fmt, mem, ptr,
    time::Instant,
};

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemPool_attribute,
    CUmemoryPool, CUresult, CUstream, CUstreamCaptureMode,
};
use parking_lot::Mutex;

pub(super) use crate::device::cuda::error::DriverError;
pub(super) use crate::device::cuda::error::Status;
pub use crate::device::cuda::error::Unavailable;
use crate::device::cuda::{error::is_missing, vendor::Vendor};

/// Declares [`Functions`]: one field for each function, with the symbol that it is found by and its parameters; `as`
/// says what cudarc calls a parameter that we pass otherwise. Does not compile where the rest differs from cudarc's.
/// Each function becomes a method of [`Driver`] by the field's name. `both` vendors have what has two symbols, and only
/// one has the rest; `optional` ones may be missing in a driver that is good otherwise.
///
/// A function is `safe` where its types say all that the vendor asks of a caller: a reference is to what the driver
/// reads or writes, and numbers, those of devices among them, are ones that it refuses if it does not know them. What
/// takes an address or a handle is `unsafe`: nothing says that either is alive.
macro_rules! functions {
    (@theirs $ours:ty) => { $ours };
    (@theirs $ours:ty as $theirs:ty) => { $theirs };
    (@type safe ($($type:ty),*)) => { extern "C" fn($($type),*) -> Status };
    (@type unsafe ($($type:ty),*)) => { unsafe extern "C" fn($($type),*) -> Status };
    (
        both { $($how:tt $field:ident: $symbol:ident = $hip:ident($($name:ident: $type:ty $(as $theirs:ty)?),*);)* }
        nvidia { $($know:tt $own:ident: $cuda:ident($($part:ident: $of:ty $(as $its:ty)?),*);)* }
        amd { $($who:tt $other:ident: $amd:ident($($piece:ident: $sort:ty),*);)* }
        optional { $($why:tt $maybe:ident: $missing:ident($($label:ident: $kind:ty $(as $whose:ty)?),*);)* }
    ) => {
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($field: functions!(@type $how ($($type),*)),)*
            $($own: Option<functions!(@type $know ($($of),*))>,)*
            $($other: Option<functions!(@type $who ($($sort),*))>,)*
            $($maybe: Option<functions!(@type $why ($($kind),*))>,)*
        }

        /// Every symbol that the table cannot do without.
        #[cfg(test)]
        pub(super) fn required(vendor: Vendor) -> &'static [&'static str] {
            match vendor {
                Vendor::Nvidia => &[$(stringify!($symbol),)* $(stringify!($cuda),)*],
                Vendor::Amd => &[$(stringify!($hip),)* $(stringify!($amd),)*],
            }
        }

        impl Functions {
            /// Finds every function, or gives the symbol that is not there.
            ///
            /// # Safety
            /// What `find` gives for a name is the function of the vendor's driver with that name.
            unsafe fn find(vendor: Vendor, find: impl Fn(&str) -> Option<*const c_void>) -> Result<Self, &'static str> {
                let find = |symbol| find(symbol).filter(|place| !place.is_null());
                let needed = |of: Vendor, symbol| {
                    if of != vendor { Ok(None) } else { find(symbol).map(Some).ok_or(symbol) }
                };
                let wanted = |symbol| if vendor == Vendor::Nvidia { find(symbol) } else { None };
                Ok(Self {
                    $($field: {
                        let symbol = vendor.either(stringify!($symbol), stringify!($hip));
                        let place = find(symbol).ok_or(symbol)?;
                        // SAFETY: the symbol has the type that cudarc's declaration of it has, see below, or HIP's,
                        // which takes the same; only the status is a number here, which is what the C enum is to the
                        // caller, and a pointer to what is read or written is a reference.
                        unsafe { mem::transmute::<*const c_void, functions!(@type $how ($($type),*))>(place) }
                    },)*
                    $($own: needed(Vendor::Nvidia, stringify!($cuda))?.map(|place| {
                        // SAFETY: as above.
                        unsafe { mem::transmute::<*const c_void, functions!(@type $know ($($of),*))>(place) }
                    }),)*
                    $($other: needed(Vendor::Amd, stringify!($amd))?.map(|place| {
                        // SAFETY: as above.
                        unsafe { mem::transmute::<*const c_void, functions!(@type $who ($($sort),*))>(place) }
                    }),)*
                    $($maybe: wanted(stringify!($missing)).map(|place| {
                        // SAFETY: as above.
                        unsafe { mem::transmute::<*const c_void, functions!(@type $why ($($kind),*))>(place) }
                    }),)*
                })
            }
        }

        impl Driver {
            $(functions!(@both $how $field: $symbol = $hip($($name: $type),*));)*
            $(functions!(@lacking $know $own: $cuda($($part: $of),*));)*
            $(functions!(@lacking $who $other: $amd($($piece: $sort),*));)*
            $(functions!(@lacking $why $maybe: $missing($($label: $kind),*));)*
        }

        const _: () = {
            assert!(size_of::<Status>() == size_of::<CUresult>());
            $(let _: unsafe fn($(functions!(@theirs $type $(as $theirs)?)),*) -> CUresult = sys::$symbol;)*
            $(let _: unsafe fn($(functions!(@theirs $of $(as $its)?)),*) -> CUresult = sys::$cuda;)*
            $(let _: unsafe fn($(functions!(@theirs $kind $(as $whose)?)),*) -> CUresult = sys::$missing;)*
        };
    };
    (@both safe $field:ident: $symbol:ident = $hip:ident($($name:ident: $type:ty),*)) => {
        /// The driver's function of this name.
        #[allow(dead_code, reason = "the two that name errors are called by their fields")]
        pub(super) fn $field(&self, $($name: $type),*) -> Result<(), DriverError> {
            let begun = Begun::now();
            let status = (self.functions.$field)($($name),*);
            let symbol = self.vendor.either(stringify!($symbol), stringify!($hip));
            begun.told(symbol, &[$((stringify!($name), &$name)),*], status);
            self.check(symbol, status)
        }
    };
    (@both unsafe $field:ident: $symbol:ident = $hip:ident($($name:ident: $type:ty),*)) => {
        /// The driver's function of this name.
        ///
        /// # Safety
        /// What the vendor's documentation asks of its caller.
        pub(super) unsafe fn $field(&self, $($name: $type),*) -> Result<(), DriverError> {
            let begun = Begun::now();
            // SAFETY: the pointer is the driver's function of this name and type (`Functions::find`), and its arguments
            // are the caller's, who keeps what the vendor's documentation asks.
            let status = unsafe { (self.functions.$field)($($name),*) };
            let symbol = self.vendor.either(stringify!($symbol), stringify!($hip));
            begun.told(symbol, &[$((stringify!($name), &$name)),*], status);
            self.check(symbol, status)
        }
    };
    (@lacking safe $maybe:ident: $missing:ident($($label:ident: $kind:ty),*)) => {
        /// The driver's function of this name; where the driver lacks it, what one that has it says on a device that
        /// cannot do this.
        #[allow(dead_code, reason = "the one that forgets errors is called by its field")]
        pub(super) fn $maybe(&self, $($label: $kind),*) -> Result<(), DriverError> {
            let begun = Begun::now();
            let status = match self.functions.$maybe {
                Some(function) => function($($label),*),
                None => LACKING,
            };
            begun.told(stringify!($missing), &[$((stringify!($label), &$label)),*], status);
            self.check(stringify!($missing), status)
        }
    };
    (@lacking unsafe $maybe:ident: $missing:ident($($label:ident: $kind:ty),*)) => {
        /// The driver's function of this name; where the driver lacks it, what one that has it says on a device that
        /// cannot do this.
        ///
        /// # Safety
        /// What the vendor's documentation asks of its caller.
        pub(super) unsafe fn $maybe(&self, $($label: $kind),*) -> Result<(), DriverError> {
            let begun = Begun::now();
            let status = match self.functions.$maybe {
                // SAFETY: as for the functions that every driver has.
                Some(function) => unsafe { function($($label),*) },
                None => LACKING,
            };
            begun.told(stringify!($missing), &[$((stringify!($label), &$label)),*], status);
            self.check(stringify!($missing), status)
        }
    };
}

/// What a driver says on a device that cannot do what it is asked for.
const LACKING: Status = CUresult::CUDA_ERROR_NOT_SUPPORTED as Status;

functions! {
    both {
        safe init: cuInit = hipInit(flags: c_uint);
        safe driver_version: cuDriverGetVersion = hipDriverGetVersion(version: &mut c_int as *mut c_int);
        safe error_name: cuGetErrorName = hipDrvGetErrorName(
            code: Status as CUresult, text: &mut *const c_char as *mut *const c_char
        );
        safe error_string: cuGetErrorString = hipDrvGetErrorString(
            code: Status as CUresult, text: &mut *const c_char as *mut *const c_char
        );

        safe device_count: cuDeviceGetCount = hipGetDeviceCount(count: &mut c_int as *mut c_int);
        safe device: cuDeviceGet = hipDeviceGet(device: &mut CUdevice as *mut CUdevice, ordinal: c_int);
        unsafe device_name: cuDeviceGetName = hipDeviceGetName(name: *mut c_char, room: c_int, device: CUdevice);
        safe device_memory: cuDeviceTotalMem_v2 = hipDeviceTotalMem(bytes: &mut usize as *mut usize, device: CUdevice);
        safe device_attribute: cuDeviceGetAttribute = hipDeviceGetAttribute(
            value: &mut c_int as *mut c_int, which: c_uint as CUdevice_attribute, device: CUdevice
        );
        safe device_can_access_peer: cuDeviceCanAccessPeer = hipDeviceCanAccessPeer(
            can: &mut c_int as *mut c_int, device: CUdevice, peer: CUdevice
        );

        safe mem_info: cuMemGetInfo_v2 = hipMemGetInfo(free: &mut usize as *mut usize, total: &mut usize as *mut usize);
        safe mem_alloc: cuMemAlloc_v2 = hipMalloc(address: &mut CUdeviceptr as *mut CUdeviceptr, bytes: usize);
        unsafe mem_free: cuMemFree_v2 = hipFree(address: CUdeviceptr);
        safe mem_host_alloc: cuMemHostAlloc = hipHostMalloc(
            address: &mut *mut c_void as *mut *mut c_void, bytes: usize, flags: c_uint
        );
        unsafe mem_free_host: cuMemFreeHost = hipHostFree(address: *mut c_void);

        unsafe copy_to_device: cuMemcpyHtoDAsync_v2 = hipMemcpyHtoDAsync(
            to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream
        );
        unsafe copy_on_device: cuMemcpyDtoDAsync_v2 = hipMemcpyDtoDAsync(
            to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream
        );

        safe thread_capture_mode: cuThreadExchangeStreamCaptureMode = hipThreadExchangeStreamCaptureMode(
            mode: &mut c_uint as *mut CUstreamCaptureMode
        );
        safe stream_create: cuStreamCreate = hipStreamCreateWithFlags(
            stream: &mut CUstream as *mut CUstream, flags: c_uint
        );
        unsafe stream_destroy: cuStreamDestroy_v2 = hipStreamDestroy(stream: CUstream);
        unsafe stream_synchronize: cuStreamSynchronize = hipStreamSynchronize(stream: CUstream);
        unsafe stream_wait_event: cuStreamWaitEvent = hipStreamWaitEvent(
            stream: CUstream, event: CUevent, flags: c_uint
        );
        safe event_create: cuEventCreate = hipEventCreateWithFlags(event: &mut CUevent as *mut CUevent, flags: c_uint);
        unsafe event_destroy: cuEventDestroy_v2 = hipEventDestroy(event: CUevent);
        unsafe event_record: cuEventRecord = hipEventRecord(event: CUevent, stream: CUstream);
        unsafe event_synchronize: cuEventSynchronize = hipEventSynchronize(event: CUevent);
    }
    nvidia {
        safe primary_context_retain: cuDevicePrimaryCtxRetain(
            context: &mut CUcontext as *mut CUcontext, device: CUdevice
        );
        unsafe primary_context_release: cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        unsafe context_push: cuCtxPushCurrent_v2(context: CUcontext);
        safe context_pop: cuCtxPopCurrent_v2(context: &mut CUcontext as *mut CUcontext);
        safe context_synchronize: cuCtxSynchronize();

        safe mem_granularity: cuMemGetAllocationGranularity(
            bytes: &mut usize as *mut usize, properties: &CUmemAllocationProp as *const CUmemAllocationProp,
            which: CUmemAllocationGranularity_flags
        );
        safe mem_create: cuMemCreate(
            handle: &mut CUmemGenericAllocationHandle as *mut CUmemGenericAllocationHandle, bytes: usize,
            properties: &CUmemAllocationProp as *const CUmemAllocationProp, flags: c_ulonglong
        );
        unsafe mem_release: cuMemRelease(handle: CUmemGenericAllocationHandle);
        safe mem_address_reserve: cuMemAddressReserve(
            address: &mut CUdeviceptr as *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr,
            flags: c_ulonglong
        );
        unsafe mem_address_free: cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        unsafe mem_map: cuMemMap(
            address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong
        );
        unsafe mem_unmap: cuMemUnmap(address: CUdeviceptr, bytes: usize);
        unsafe mem_set_access: cuMemSetAccess(
            address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize
        );

        unsafe copy_by_address: cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        unsafe copy_between_contexts: cuMemcpyPeerAsync(
            to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, other: CUcontext, bytes: usize, stream: CUstream
        );
    }
    amd {
        safe current_device: hipGetDevice(device: &mut c_int);
        safe set_device: hipSetDevice(device: c_int);
        safe last_error: hipGetLastError();

        unsafe copy_of_kind: hipMemcpyAsync(
            to: CUdeviceptr, from: CUdeviceptr, bytes: usize, kind: c_uint, stream: CUstream
        );
        unsafe copy_between_devices: hipMemcpyPeerAsync(
            to: CUdeviceptr, device: c_int, from: CUdeviceptr, other: c_int, bytes: usize, stream: CUstream
        );
    }
    optional {
        safe default_pool: cuDeviceGetDefaultMemPool(pool: &mut CUmemoryPool as *mut CUmemoryPool, device: CUdevice);
        unsafe pool_get: cuMemPoolGetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void);
        unsafe pool_set: cuMemPoolSetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void);
        unsafe pool_trim: cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    }
}

/// When a call of the driver began, where `PJRT_ARENA_LOG=trace` asks for a line of each.
struct Begun(Option<Instant>);

impl Begun {
    #[inline]
    fn now() -> Self {
        Self(log::log_enabled!(log::Level::Trace).then(Instant::now))
    }

    /// The line: the function, its arguments with what it wrote to them, its status, how long it took.
    #[inline]
    fn told(self, function: &str, arguments: &[(&str, &dyn fmt::Debug)], status: Status) {
        if let Some(begun) = self.0 {
            let took = begun.elapsed();
            let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("{name}={value:x?}")).collect();
            log::trace!("{function}({}) = {status} in {took:?}", arguments.join(", "));
        }
    }
}

/// The drivers that were loaded, by what they were asked for as; as a rule, one.
static LOADED: Mutex<Vec<(Vendor, OsString, &'static Driver)>> = Mutex::new(Vec::new());

/// The functions of a driver.
#[derive(Debug)]
pub struct Driver {
    vendor: Vendor,
    functions: Functions,
}

impl Driver {
    /// The driver of `vendor` whose library has the name or the path `library`, as NVIDIA's is `libcuda.so.1`. It stays
    /// loaded for the rest of the process: a driver that has started has threads and exit handlers, and an engine may
    /// use it too.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function that every driver from CUDA 11.4 or ROCm 6 on has.
    pub fn load(vendor: Vendor, library: &OsStr) -> Result<&'static Self, Unavailable> {
        // Held while the library is opened: two threads that ask for the same one get the same one.
        let mut loaded = LOADED.lock();
        if let Some((.., driver)) = loaded.iter().find(|(whose, path, _)| *whose == vendor && path == library) {
            return Ok(driver);
        }
        let (name, opened) = open(vendor, &vendor.files(library))?;
        let find = |symbol: &str| {
            let symbol = CString::new(symbol).ok()?;
            // SAFETY: only the symbol's address is taken, which stays good: the library is never closed once all were
            // found.
            let place = unsafe { opened.get::<*const c_void>(symbol.as_bytes_with_nul()).ok()?.try_as_raw_ptr() };
            place.map(<*mut c_void>::cast_const)
        };
        // SAFETY: `find` gives addresses of this library's own symbols, which stay good because the library is never
        // closed from here on. That they behave as the vendor documents is what the user says by naming the library:
        // nothing can check it.
        let driver = unsafe { Self::from_symbols(vendor, &name, find) }?;
        mem::forget(opened);
        let driver: &'static Self = Box::leak(Box::new(driver));
        loaded.push((vendor, library.to_owned(), driver));
        Ok(driver)
    }

    /// A driver whose functions `find` gives by their symbols; errors call it `name`.
    ///
    /// # Errors
    /// [`Unavailable::Symbol`] for the first function that it lacks.
    ///
    /// # Safety
    /// What `find` gives for a symbol is a function that behaves as the vendor's of this name, for the rest of the
    /// process.
    pub unsafe fn from_symbols(
        vendor: Vendor,
        name: &str,
        find: impl Fn(&str) -> Option<*const c_void>,
    ) -> Result<Self, Unavailable> {
        // SAFETY: both ask that `find` gives the vendor's functions by their names, for the rest of the process.
        unsafe { Functions::find(vendor, find) }
            .map(|functions| Self { vendor, functions })
            .map_err(|symbol| Unavailable::Symbol { vendor, library: name.to_owned(), symbol })
    }

    /// Whose driver it is.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Starts the driver, which is asked of every process before anything else; again, it does nothing.
    pub(super) fn start(&self) -> Result<(), DriverError> {
        // Zero is the only value that the parameter may have.
        self.init(0)
    }

    /// The handle of a device.
    pub(super) fn device_at(&self, ordinal: c_int) -> Result<CUdevice, DriverError> {
        out(|device| self.device(device, ordinal))
    }

    /// How many devices there are.
    pub(super) fn devices(&self) -> Result<c_int, DriverError> {
        out(|count| self.device_count(count))
    }

    /// A number that says something about a device.
    pub(super) fn attribute(&self, device: CUdevice, which: CUdevice_attribute) -> Result<c_int, DriverError> {
        let Some(which) = self.vendor.attribute(which) else {
            // What the driver says of a number that it does not know.
            return Err(self.failure("hipDeviceGetAttribute", CUresult::CUDA_ERROR_INVALID_VALUE as Status));
        };
        out(|value| self.device_attribute(value, which, device))
    }

    /// The default memory pool of a device.
    pub(super) fn pool_of(&self, device: CUdevice) -> Result<CUmemoryPool, DriverError> {
        out_pointer(|pool| self.default_pool(pool, device))
    }

    /// What the driver says about `code`; nothing if it does not know it.
    fn error_text(&self, say: extern "C" fn(Status, &mut *const c_char) -> Status, code: Status) -> String {
        let mut text: *const c_char = ptr::null();
        let status = say(code, &mut text);
        if status != CUresult::CUDA_SUCCESS as Status || text.is_null() {
            return String::new();
        }
        // SAFETY: the driver succeeded, so the text is not null (checked) and a constant C string that stays as long as
        // it does.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn check(&self, function: &'static str, code: Status) -> Result<(), DriverError> {
        if code == CUresult::CUDA_SUCCESS as Status { Ok(()) } else { Err(self.failure(function, code)) }
    }

    fn failure(&self, function: &'static str, code: Status) -> DriverError {
        let name = self.error_text(self.functions.error_name, code);
        let text = self.error_text(self.functions.error_string, code);
        if let Some(last_error) = self.functions.last_error {
            // HIP keeps a thread's failure until somebody asks for the last one, and the engine, which asks after
            // kernels that it starts, would take ours for its own.
            last_error();
        }
        DriverError { function, code, name, text }
    }
}

/// Opens the library of a driver: where it may have several names, one that the process has already, or else the first
/// that there is. Gives the name that it has.
pub(super) fn open(vendor: Vendor, files: &[OsString]) -> Result<(String, libloading::Library), Unavailable> {
    if files.len() > 1 {
        for file in files {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            // SAFETY: with `RTLD_NOLOAD` only a library that is loaded already is opened, so no initialiser runs.
            if let Ok(opened) = unsafe { libloading::os::unix::Library::open(Some(file), flags) } {
                return Ok((file.to_string_lossy().into_owned(), opened.into()));
            }
        }
    }
    let mut refused: Option<(String, String)> = None;
    for file in files {
        let name = file.to_string_lossy().into_owned();
        // SAFETY: loading a library runs its initialisers, which for a driver's library may happen at any time and on
        // any thread. That the file is one is what the user says by naming it.
        match unsafe { libloading::Library::new(file) } {
            Ok(opened) => return Ok((name, opened)),
            Err(error) => {
                let why = error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                // That one is there and cannot be loaded says more than that another is not.
                if refused.as_ref().is_none_or(|(name, why)| is_missing(name, why)) {
                    refused = Some((name, why));
                }
            }
        }
    }
    let (name, why) = refused.unwrap_or_default();
    Err(Unavailable::Library { vendor, name, why })
}

/// Calls a function that writes one value.
pub(super) fn out<T: Default>(call: impl FnOnce(&mut T) -> Result<(), DriverError>) -> Result<T, DriverError> {
    let mut value = T::default();
    call(&mut value).map(|()| value)
}

/// [`out`] for a handle that is a pointer.
pub(super) fn out_pointer<T>(call: impl FnOnce(&mut *mut T) -> Result<(), DriverError>) -> Result<*mut T, DriverError> {
    let mut value = ptr::null_mut();
    call(&mut value).map(|()| value)
}
