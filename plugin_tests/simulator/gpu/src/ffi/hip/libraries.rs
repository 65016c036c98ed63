//! What XLA asks of AMD's other libraries, as far as it needs no kernel of theirs: rocBLAS, hipBLASLt, MIOpen,
//! rocprofiler-sdk, ROCm SMI and AMD SMI. There are handles; what computes is not there, and says so with the library's
//! own code. RCCL has NCCL's names, and is simulated by the same functions.

use std::ffi::{CStr, c_char, c_uint, c_void};

use super::{Out, call};
use crate::{
    ffi::c_functions,
    state::{Driver, framed},
    status::{Answer, Status},
};

/// The version that rocBLAS says it is: that of ROCm 7.0.
const ROCBLAS: &CStr = c"5.0.0";

/// A new handle.
fn handle(driver: &mut Driver, to: Out<usize>) -> Answer {
    to.checked()?.put((driver.number() << 8) as usize)
}

c_functions! {
    __hipRegisterFatBinary(_binary: *const c_void) -> usize {
        // A handle that is not null, and that nothing else is asked of.
        1
    }
    __hipUnregisterFatBinary(_handle: usize) -> () {}
    __hipRegisterFunction() -> () {}
    __hipRegisterVar() -> () {}

    rocblas_create_handle(to: Out<usize>) -> Status { call("rocblas_create_handle", |driver| handle(driver, to)) }
    rocblas_destroy_handle(_handle: usize) -> Status { 0 }
    rocblas_set_stream(_handle: usize, _stream: usize) -> Status { 0 }
    rocblas_get_stream(_handle: usize, stream: Out<usize>) -> Status {
        framed("rocblas_get_stream", |_| stream.put(0))
    }
    rocblas_set_atomics_mode(_handle: usize, _mode: c_uint) -> Status { 0 }
    rocblas_get_version_string_size(bytes: Out<usize>) -> Status {
        framed("rocblas_get_version_string_size", |_| bytes.put(ROCBLAS.count_bytes() + 1))
    }
    rocblas_get_version_string(text: Out<u8>, room: usize) -> Status {
        // rocblas_status_invalid_size.
        const TOO_SHORT: Status = 11;
        let version = ROCBLAS.to_bytes_with_nul();
        if room < version.len() {
            return TOO_SHORT;
        }
        framed("rocblas_get_version_string", |_| text.put_all(version.iter().copied()))
    }

    hipblasLtCreate(to: Out<usize>) -> Status { call("hipblasLtCreate", |driver| handle(driver, to)) }
    hipblasLtDestroy(_handle: usize) -> Status { 0 }

    miopenCreateWithStream(to: Out<usize>, _stream: usize) -> Status {
        call("miopenCreateWithStream", |driver| handle(driver, to))
    }
    miopenDestroy(_handle: usize) -> Status { 0 }
    miopenSetStream(_handle: usize, _stream: usize) -> Status { 0 }

    rocprofiler_force_configure(_configure: *const c_void) -> Status { 0 }
    rocprofiler_get_status_string(_status: Status) -> *const c_char { c"an error of the simulated rocprofiler".as_ptr() }

    // 2 is "not supported" for either.
    rsmi_init(_flags: u64) -> Status { 2 }
    rsmi_status_string(_status: Status, text: Out<*const c_char>) -> Status {
        framed("rsmi_status_string", |_| text.put(c"the simulated driver has no ROCm SMI".as_ptr()))
    }
    amdsmi_init(_flags: u64) -> Status { 2 }
    amdsmi_status_code_to_string(_status: Status, text: Out<*const c_char>) -> Status {
        framed("amdsmi_status_code_to_string", |_| text.put(c"the simulated driver has no AMD SMI".as_ptr()))
    }
}
