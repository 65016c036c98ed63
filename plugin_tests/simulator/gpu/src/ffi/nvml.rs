//! What XLA asks NVIDIA's management library (`libnvidia-ml.so.1`) for.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::Out;

const NOT_SUPPORTED: c_int = 3;

/// NVML's `nvmlInit_v2`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    0
}

/// NVML's `nvmlShutdown`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlShutdown() -> c_int {
    0
}

/// NVML's `nvmlErrorString`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlErrorString(_code: c_int) -> *const c_char {
    const TEXT: &CStr = c"Not Supported";
    TEXT.as_ptr()
}

/// NVML's `nvmlSystemGetDriverVersion`.
///
/// # Safety
/// `text` is null, or `length` bytes can be written there.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(text: Out<u8>, length: c_uint) -> c_int {
    const VERSION: &[u8] = b"580.65.06\0";
    if (length as usize) < VERSION.len() {
        return 7;
    }
    text.put_all(VERSION.iter().copied()).map_or(2, |()| 0)
}

/// NVML's `nvmlDeviceGetHandleByPciBusId_v2`: there is none.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(_id: *const c_char, _device: Out<usize>) -> c_int {
    NOT_SUPPORTED
}
