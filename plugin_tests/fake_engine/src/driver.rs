//! The fake NVIDIA driver: the functions of `libcuda` that XLA's plugin calls, and the one that runs a kernel.
//!
//! The library is opened by its path, so that every library of the process that opens the same file meets in the same
//! state. A status is a number here, as newer drivers know codes that a Rust enum would not.

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    mem,
    path::{Path, PathBuf},
    ptr,
};

use cudarc::driver::sys::{
    self as cuda, CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};
use once_cell::sync::OnceCell;

use crate::{
    error::{Error, Result},
    sys,
};

/// Names the driver's library; without it `libfake_cuda.so` beside this library is taken.
const VARIABLE: &str = "FAKE_ENGINE_DRIVER";
const LIBRARY: &str = "libfake_cuda.so";

/// `CUresult` in C.
pub type Status = u32;

/// Device memory that a kernel reads or writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub address: u64,
    /// How many there are.
    pub bytes: u64,
}

/// Runs a host function as a kernel of a stream that makes those accesses.
type Kernel = unsafe extern "C" fn(
    CUstream,
    unsafe extern "C" fn(*mut c_void),
    *mut c_void,
    *const Range,
    usize,
    *const Range,
    usize,
) -> Status;

/// Declares [`Functions`], and does not compile where a prototype differs from cudarc's; `as` says what cudarc calls a
/// parameter that is passed otherwise.
macro_rules! functions {
    (@theirs $ours:ty) => { $ours };
    (@theirs $ours:ty as $theirs:ty) => { $theirs };
    ($($symbol:ident($($parameter:ty $(as $theirs:ty)?),*);)*) => {
        /// The driver's functions, by their own names.
        #[allow(non_snake_case, missing_docs, reason = "the names are the driver's")]
        pub struct Functions {
            $(pub $symbol: unsafe extern "C" fn($($parameter),*) -> Status,)*
            pub fake_cuda_kernel: Kernel,
        }

        impl Functions {
            fn find(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the symbol has the type that cudarc's declaration of it has, see below.
                    $($symbol: *unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                        .map_err(|_| stringify!($symbol))?,)*
                    // SAFETY: the fake driver exports it with this type.
                    fake_cuda_kernel: *unsafe { library.get(b"fake_cuda_kernel\0") }.map_err(|_| "fake_cuda_kernel")?,
                })
            }
        }

        const _: () = {
            assert!(size_of::<Status>() == size_of::<CUresult>());
            $(let _: unsafe fn($(functions!(@theirs $parameter $(as $theirs)?)),*) -> CUresult = cuda::$symbol;)*
        };
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(Status as CUresult, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuDeviceGetDefaultMemPool(*mut CUmemoryPool, CUdevice);
    cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemAllocAsync(*mut CUdeviceptr, usize, CUstream);
    cuMemFreeAsync(CUdeviceptr, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
}

/// The driver, opened and initialised when it is first asked for.
///
/// # Errors
/// Names the library, and what is wrong with it.
pub fn driver() -> Result<&'static Functions> {
    static DRIVER: OnceCell<Functions> = OnceCell::new();
    DRIVER.get_or_try_init(|| {
        let path = path()?;
        let failed = |why: String| {
            Error::new(
                sys::PJRT_Error_Code_NOT_FOUND,
                format!("the CUDA driver {} cannot be used: {why}", path.display()),
            )
        };
        // SAFETY: loading runs the library's initialisers; the test named it as a driver.
        let library = unsafe { libloading::Library::new(&path) }.map_err(|error| failed(error.to_string()))?;
        let functions = Functions::find(&library).map_err(|symbol| failed(format!("it has no symbol {symbol}")))?;
        mem::forget(library);
        // SAFETY: zero is the only value that the parameter may have.
        functions.check("cuInit", unsafe { (functions.cuInit)(0) })?;
        Ok(functions)
    })
}

fn path() -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE) {
        return Ok(path.into());
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let here = (driver as *const ()).expose_provenance();
    folder_of(here, &maps).map(|folder| folder.join(LIBRARY)).ok_or_else(|| {
        Error::new(
            sys::PJRT_Error_Code_NOT_FOUND,
            format!("{VARIABLE} does not name a CUDA driver, nor is this library's folder known"),
        )
    })
}

/// The folder of the file that is mapped at `address`, by the lines of `/proc/self/maps`.
fn folder_of(address: usize, maps: &str) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (first, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        if !(number(first)?..number(end)?).contains(&address) {
            return None;
        }
        Path::new(&rest[rest.find('/')?..]).parent().map(Path::to_owned)
    })
}

impl Functions {
    /// `Ok` for success.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when memory is out, else INTERNAL with the driver's own name of the code.
    pub fn check(&self, function: &str, status: Status) -> Result {
        if status == CUresult::CUDA_SUCCESS as Status {
            return Ok(());
        }
        let code = if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY as Status {
            sys::PJRT_Error_Code_RESOURCE_EXHAUSTED
        } else {
            sys::PJRT_Error_Code_INTERNAL
        };
        let mut name: *const c_char = ptr::null();
        // SAFETY: the function takes any code.
        let known = unsafe { (self.cuGetErrorName)(status, &raw mut name) };
        let name = if known == CUresult::CUDA_SUCCESS as Status && !name.is_null() {
            // SAFETY: the driver gave a constant C string.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "an error without a name".into()
        };
        Err(Error::new(code, format!("{function} gave {status}, {name}")))
    }

    /// What a function writes to the place that it is given.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn out<T>(&self, function: &str, mut value: T, call: impl FnOnce(*mut T) -> Status) -> Result<T> {
        self.check(function, call(&raw mut value)).map(|()| value)
    }
}

/// A GPU's primary context, which the driver wants to be current for nearly everything.
#[derive(Clone, Copy)]
pub struct Context {
    /// The driver.
    pub driver: &'static Functions,
    raw: CUcontext,
}

// SAFETY: contexts may be made current on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// While it lives, the context is the calling thread's current one.
pub struct Entered(&'static Functions);

impl Context {
    /// The primary context of a device. Never released, as in XLA.
    ///
    /// # Errors
    /// The driver's.
    pub fn retain(driver: &'static Functions, device: CUdevice) -> Result<Self> {
        // SAFETY: the driver says itself what it does not know.
        let raw = driver.out("cuDevicePrimaryCtxRetain", ptr::null_mut(), |context| unsafe {
            (driver.cuDevicePrimaryCtxRetain)(context, device)
        })?;
        Ok(Self { driver, raw })
    }

    /// Makes it current.
    ///
    /// # Errors
    /// The driver's.
    pub fn enter(self) -> Result<Entered> {
        // SAFETY: the context is retained.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.cuCtxPushCurrent_v2)(self.raw) })?;
        Ok(Entered(self.driver))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: this thread pushed the context that it pops.
        unsafe { (self.0.cuCtxPopCurrent_v2)(&raw mut context) };
    }
}
