//! What XLA asks of NVIDIA's other libraries: the runtime, cuDNN and NVML, as far as they are played.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;

use std::ffi::{CStr, c_char, c_int, c_uint};

use common::*;
use simulated_gpu as _;

/// Calls a function that is in no table, because programs find it in a library of its own.
macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),* $(,)?) -> $answer:ty) => {{
        let function = simulated_gpu::ffi::$name as *const ();
        // SAFETY: the types are those of the library, and the tests pass pointers to values of their own.
        let function: extern "C" fn($($type),*) -> $answer = unsafe { std::mem::transmute(function) };
        function($($argument),*)
    }};
}

#[test]
fn versions_agree_with_each_other() {
    let _session = Session::begin(&[]);
    let part = |which: c_int| {
        let mut value: c_int = -1;
        ok(call!(cudnnGetProperty(which => c_int, &raw mut value => *mut c_int) -> u32));
        usize::try_from(value).expect("a version")
    };
    let whole = call!(cudnnGetVersion() -> usize);
    assert_eq!(whole, part(0) * 10_000 + part(1) * 100 + part(2));
    let mut value: c_int = -1;
    assert_eq!(call!(cudnnGetProperty(3 => c_int, &raw mut value => *mut c_int) -> u32), status::INVALID_VALUE);
    assert_eq!(call!(cudnnGetProperty(-1 => c_int, &raw mut value => *mut c_int) -> u32), status::INVALID_VALUE);
    assert_eq!(value, -1);
    let (mut runtime, mut driver, mut own): (c_int, c_int, c_int) = (0, 0, 0);
    ok(call!(cudaRuntimeGetVersion(&raw mut runtime => *mut c_int) -> u32));
    ok(call!(cudaDriverGetVersion(&raw mut driver => *mut c_int) -> u32));
    ok(cu!(cuDriverGetVersion(&raw mut own => *mut c_int)));
    assert_eq!(driver, own);
    assert!(runtime >= 12_000, "{runtime}");
    no_violations();
}

#[test]
fn the_runtime_starts_the_driver_and_works_in_the_current_context() {
    let _session = Session::begin(&[("gpus", "2")]);
    let (mut count, mut device): (c_int, c_int) = (0, -1);
    ok(call!(cudaGetDeviceCount(&raw mut count => *mut c_int) -> u32));
    assert_eq!(count, 2);
    enter(1);
    ok(call!(cudaGetDevice(&raw mut device => *mut c_int) -> u32));
    assert_eq!(device, 1);
    let (stream, from, to) = (stream(), allocate(64), pinned(64));
    fill(from, 7, 64, stream);
    let open = gate(stream, &[], &[]);
    ok(call!(cudaMemcpyAsync(to => u64, from => u64, 64 => usize, 4 => c_uint, stream => usize) -> u32));
    // In the order of the stream, and not before.
    assert_eq!(peek(to), 0);
    drop(open);
    ok(call!(cudaStreamSynchronize(stream => usize) -> u32));
    assert_eq!((peek(to), peek(to + 63)), (7, 7));
    assert_eq!(call!(cudaStreamSynchronize(0x77 => usize) -> u32), status::INVALID_HANDLE);
    found(&["cudaStreamSynchronize", "is no stream"]);
    let name = call!(cudaGetErrorName(status::INVALID_HANDLE => u32) -> *const c_char);
    // SAFETY: the library gave a constant C string.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_INVALID_HANDLE");
}

#[test]
fn the_management_library_answers_by_name() {
    assert_eq!(call!(nvmlInit_v2() -> c_int), 0);
    let mut text = [1u8; 16];
    assert_eq!(call!(nvmlSystemGetDriverVersion(text.as_mut_ptr() => *mut u8, 4 => c_uint) -> c_int), 7);
    assert_eq!(call!(nvmlSystemGetDriverVersion(std::ptr::null_mut() => *mut u8, 16 => c_uint) -> c_int), 2);
    assert_eq!(text, [1; 16]);
    assert_eq!(call!(nvmlSystemGetDriverVersion(text.as_mut_ptr() => *mut u8, 16 => c_uint) -> c_int), 0);
    let version = CStr::from_bytes_until_nul(&text).expect("an end").to_str().expect("text");
    assert_eq!(version.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3, "{version}");
    let mut device = 0usize;
    let code = call!(nvmlDeviceGetHandleByPciBusId_v2(
        c"00000000:1B:00.0".as_ptr() => *const c_char, &raw mut device => *mut usize
    ) -> c_int);
    let words = call!(nvmlErrorString(code => c_int) -> *const c_char);
    // SAFETY: the library gave a constant C string.
    assert_eq!((code, unsafe { CStr::from_ptr(words) }), (3, c"Not Supported"));
    assert_eq!(call!(nvmlShutdown() -> c_int), 0);
}

#[test]
fn amds_libraries_have_handles_and_compute_nothing() {
    let _session = Session::begin(&[]);
    let (mut blas, mut lt, mut dnn) = (0_usize, 0_usize, 0_usize);
    ok(call!(rocblas_create_handle(&raw mut blas => *mut usize) -> u32));
    ok(call!(hipblasLtCreate(&raw mut lt => *mut usize) -> u32));
    ok(call!(miopenCreateWithStream(&raw mut dnn => *mut usize, 0 => usize) -> u32));
    assert!(blas != 0 && lt != 0 && dnn != 0 && blas != lt && lt != dnn);
    let mut room = 0_usize;
    ok(call!(rocblas_get_version_string_size(&raw mut room => *mut usize) -> u32));
    let mut text = vec![1_u8; room];
    ok(call!(rocblas_get_version_string(text.as_mut_ptr() => *mut u8, room => usize) -> u32));
    assert_eq!(CStr::from_bytes_with_nul(&text), Ok(c"5.0.0"));
    // rocblas_status_invalid_size.
    assert_eq!(call!(rocblas_get_version_string(text.as_mut_ptr() => *mut u8, room - 1 => usize) -> u32), 11);
    // As each library says that it cannot do something.
    assert_eq!(call!(rocblas_sgemm() -> u32), 2);
    assert_eq!(call!(hipblasLtMatmul() -> u32), 7);
    assert_eq!(call!(miopenConvolutionForwardImmediate() -> u32), 6);
    assert_eq!(call!(hipfftExecC2C() -> u32), 14);
    no_violations();
}
