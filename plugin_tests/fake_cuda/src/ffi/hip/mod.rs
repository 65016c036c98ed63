//! AMD's driver: HIP's functions that programs call in place of NVIDIA's, on the same GPUs. Prototypes and numbers are
//! those of `hip_runtime_api.h` and `driver_types.h` of ROCm 6.3 and 7; what they do otherwise than CUDA's is from the
//! sources of `clr/hipamd`:
//!
//! - A thread has a device, 0 at first, and no stack of contexts.
//! - Devices have other numbers for their attributes, and know none but their own.
//! - A failure is kept for the thread until it asks for its last error.
//! - Memory comes from `hipMalloc`; mapping by hand and pools are not there.
//! - Kernels are machine code; modules, graphs and launches are another crate's.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int},
};

use super::{In, Out};
use crate::{
    device,
    state::{self, Driver, framed},
    status::{self, Answer, Status},
};

mod devices;
pub mod memory;
mod streams;

pub use devices::*;
pub use memory::*;
pub use streams::*;

/// `hipErrorInvalidMemcpyDirection`.
pub const INVALID_DIRECTION: Status = 21;

/// `hipErrorNoBinaryForGpu`: what HIP says where it has no code for a GPU. For this one it never has any.
pub const NO_BINARY: Status = 209;

thread_local! {
    /// The last failure that nobody has asked for.
    static LAST_ERROR: Cell<Status> = const { Cell::new(status::SUCCESS) };
}

/// HIP's name and meaning of a code: the numbers are CUDA's, the names are not.
fn words(code: Status) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        status::SUCCESS => (c"hipSuccess", c"no error"),
        status::INVALID_VALUE => (c"hipErrorInvalidValue", c"invalid argument"),
        status::OUT_OF_MEMORY => (c"hipErrorOutOfMemory", c"out of memory"),
        status::NO_DEVICE => (c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
        status::INVALID_DEVICE => (c"hipErrorInvalidDevice", c"invalid device ordinal"),
        status::INVALID_HANDLE => (c"hipErrorInvalidHandle", c"invalid resource handle"),
        status::ILLEGAL_ADDRESS => (c"hipErrorIllegalAddress", c"an illegal memory access was encountered"),
        status::NOT_READY => (c"hipErrorNotReady", c"device not ready"),
        status::NOT_SUPPORTED => (c"hipErrorNotSupported", c"operation not supported"),
        INVALID_DIRECTION => (c"hipErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
        NO_BINARY => (c"hipErrorNoBinaryForGpu", c"no kernel image is available for execution on the device"),
        status::UNKNOWN => (c"hipErrorUnknown", c"unknown error"),
        _ => return None,
    })
}

/// The context of a device, which is there as long as the process, without being retained.
fn context(driver: &mut Driver, ordinal: c_int) -> Answer<usize> {
    let gpu = driver.gpu(ordinal)?;
    if driver.gpus[gpu].retained == 0 {
        device::retain(driver, ordinal)?;
    }
    Ok(device::context_handle(gpu))
}

/// Makes a device the thread's.
fn set_device(driver: &mut Driver, ordinal: c_int) -> Answer {
    let context = context(driver, ordinal)?;
    device::set(driver, context)
}

/// Sees to it that the thread has a device, as HIP does at a thread's first call.
fn ready(driver: &mut Driver) -> Answer {
    if device::get() == 0 { set_device(driver, 0) } else { Ok(()) }
}

/// The frame of a function of HIP's, which starts with whatever is called first.
pub fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    let status = state::call_to_hip(name, |driver| {
        device::init(driver, 0)?;
        ready(driver)?;
        body(driver)
    });
    if status != status::SUCCESS {
        LAST_ERROR.set(status);
    }
    status
}

/// Declares functions of HIP's in their frame, and makes a table of them by name.
#[macro_export]
macro_rules! hip_functions {
    ($($frame:ident $name:ident($($parameter:ident: $ours:ty),*) |$driver:ident| $body:expr;)*) => {
        $(
            #[doc = concat!("HIP's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As HIP documents: each pointer is null or fit for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($parameter: $ours),*) -> Status {
                $frame(stringify!($name), |$driver| $body)
            }
        )*

        /// The functions of this module, by name.
        pub(super) const TABLE: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}
use hip_functions as functions;

functions! {
    call hipInit(flags: std::ffi::c_uint) |driver| device::init(driver, flags);
    framed hipDrvGetErrorName(code: Status, text: Out<*const c_char>) |_driver| {
        text.put(words(code).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr())?;
        words(code).map(|_| ()).ok_or(status::INVALID_VALUE.into())
    };
    framed hipDrvGetErrorString(code: Status, text: Out<*const c_char>) |_driver| {
        text.put(words(code).map_or(c"unknown error", |(_, text)| text).as_ptr())?;
        words(code).map(|_| ()).ok_or(status::INVALID_VALUE.into())
    };
}

const LAST: &str = "hipGetLastError";

/// HIP's `hipGetLastError`: the last failure of this thread's calls, which is forgotten.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetLastError() -> Status {
    framed(LAST, |_| Ok(()));
    LAST_ERROR.replace(status::SUCCESS)
}

/// HIP's `hipGetErrorString`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetErrorString(code: Status) -> *const c_char {
    words(code).map_or(c"unknown error", |(_, text)| text).as_ptr()
}

/// HIP's `hipGetErrorName`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetErrorName(code: Status) -> *const c_char {
    words(code).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr()
}

/// The functions of this module and of those below it that are declared as HIP declares most.
pub(super) const TABLES: [&[(&str, *const ())]; 4] = [TABLE, devices::TABLE, memory::TABLE, streams::TABLE];

/// The others.
pub(super) const MORE: &[(&str, *const ())] = &[
    (LAST, hipGetLastError as *const ()),
    ("hipGetErrorName", hipGetErrorName as *const ()),
    ("hipGetErrorString", hipGetErrorString as *const ()),
    ("hipGetStreamDeviceId", hipGetStreamDeviceId as *const ()),
];
