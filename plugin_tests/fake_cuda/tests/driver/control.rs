//! What tests set and ask, and the library as a file that two others open.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    process::Command,
    ptr,
};

use crate::common::*;

#[test]
fn calls_fail_by_order_and_are_counted() {
    let _session = start(&[]);
    assert_eq!(configure("fail", "cuMemCreate:2"), Ok(()));
    assert_eq!(configure("fail", "cuMemCreate:3:700"), Ok(()));
    let before = fake_cuda::control::count("cuMemCreate");
    let all = [(); 4].map(|()| create(CHUNK, 0).map(|handle| ok(release(handle))));
    assert_eq!(all, [Ok(()), Err(status::OUT_OF_MEMORY), Err(700), Ok(())]);
    assert_eq!(fake_cuda::control::count("cuMemCreate") - before, 4);
    no_violations();
}

#[test]
fn settings_out_of_range_say_what_is_allowed() {
    let _session = start(&[]);
    for (name, value, words) in [
        ("gpus", "1", "before cuInit"),
        ("memory", "2 GB", "\"2 GB\""),
        ("memory", "99999999999GiB", "64MiB"),
        ("latency_us", "-1", "0 to 10000000"),
        ("segment", "0", "2MiB"),
        ("segment", "3MiB", "multiple of 2MiB"),
        ("peer", "yes", "0 or 1"),
        ("guard", "2", "0 or 1"),
        ("fail", "cuMemAlloc:1", "symbol:n:code"),
        ("fail", "cuMemAlloc_v2:0", "n from 1"),
        ("fail", "cuMemAlloc_v2:1:2:3", "symbol:n:code"),
        ("speed", "1", "latency_us"),
    ] {
        let why = configure(name, value).expect_err(value);
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(configure("memory", "64MiB"), Ok(()));
    assert_eq!(memory().1, 64 * MIB);
}

#[test]
fn names_versions_and_errors_are_told() {
    let _session = start(&[]);
    let mut name = [0u8; 8];
    ok(cu!(cuDeviceGetName(name.as_mut_ptr() => *mut u8, 5 => c_int, 0 => c_int)));
    assert_eq!(&name, b"Fake\0\0\0\0");
    let mut version = 0;
    ok(cu!(cuDriverGetVersion(&raw mut version => *mut c_int)));
    assert_eq!(version, 12080);
    let mut text = ptr::null::<c_char>();
    ok(cu!(cuGetErrorName(700 => c_uint, &raw mut text => *mut *const c_char)));
    // SAFETY: the driver gave a constant C string.
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(cu!(cuGetErrorString(4321 => c_uint, &raw mut text => *mut *const c_char)), status::INVALID_VALUE);
    assert!(text.is_null());
    no_violations();
}

/// What a program may look for by name.
const NAMES: &str = "cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString cuDeviceGetCount cuDeviceGet \
    cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDeviceCanAccessPeer cuDevicePrimaryCtxRetain \
    cuDevicePrimaryCtxRelease_v2 cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSetCurrent cuCtxGetCurrent \
    cuCtxSynchronize cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemHostAlloc cuMemFreeHost \
    cuMemGetAllocationGranularity cuMemCreate cuMemRelease cuMemAddressReserve cuMemAddressFree cuMemMap cuMemUnmap \
    cuMemSetAccess cuMemcpyAsync cuMemcpyPeerAsync cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 \
    cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemsetD32Async cuMemsetD8Async cuDeviceGetDefaultMemPool \
    cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolTrimTo cuMemAllocAsync cuMemAllocFromPoolAsync \
    cuMemFreeAsync cuStreamCreate cuStreamDestroy_v2 cuStreamSynchronize cuStreamQuery cuStreamWaitEvent \
    cuLaunchHostFunc cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventQuery cuEventSynchronize \
    cuStreamBeginCapture_v2 cuStreamEndCapture cuThreadExchangeStreamCaptureMode hipInit hipDriverGetVersion \
    hipDrvGetErrorName hipDrvGetErrorString hipGetDeviceCount hipDeviceGet hipDeviceGetName hipDeviceTotalMem \
    hipDeviceGetAttribute hipDeviceCanAccessPeer hipGetDevice hipSetDevice hipMemGetInfo hipMalloc hipFree \
    hipHostMalloc hipHostFree hipMemcpyHtoDAsync hipMemcpyDtoDAsync hipMemcpyAsync hipMemcpyPeerAsync \
    hipThreadExchangeStreamCaptureMode hipStreamCreateWithFlags hipStreamDestroy hipStreamSynchronize \
    hipStreamWaitEvent hipEventCreateWithFlags hipEventDestroy hipEventRecord hipEventSynchronize hipGetLastError \
    fake_cuda_kernel fake_cuda_violations fake_cuda_reset_violations fake_cuda_configure fake_cuda_counts \
    fake_cuda_host_access fake_cuda_reset";

#[test]
fn the_library_exports_all_that_the_table_has() {
    let library = Opened::new();
    for name in NAMES.split_whitespace() {
        assert!(fake_cuda::symbol(name).is_some(), "{name}");
        library.find(&CString::new(name).expect("no NUL"));
    }
    assert_eq!(fake_cuda::symbol("cuMemAlloc"), None);
}

#[test]
fn violations_are_told_as_far_as_there_is_room() {
    let _session = start(&[]);
    for _ in 0..2 {
        assert_eq!(cu!(cuMemRelease(99 => u64)), status::INVALID_VALUE);
    }
    let tell = |out: *mut u8, room: usize| {
        let function = fake_cuda::symbol("fake_cuda_violations").expect("known");
        // SAFETY: that is its type.
        let function: extern "C" fn(*mut u8, usize) -> usize = unsafe { std::mem::transmute(function) };
        function(out, room)
    };
    let mut text = [9u8; 256];
    assert_eq!(tell(text.as_mut_ptr(), 256), 2);
    let whole = CStr::from_bytes_until_nul(&text).expect("an end").to_str().expect("text").to_owned();
    assert_eq!(whole.lines().count(), 2, "{whole}");
    let mut text = [9u8; 8];
    assert_eq!(tell(text.as_mut_ptr(), 5), 2);
    assert_eq!(&text, b"cuMe\0\x09\x09\x09");
    assert_eq!(tell(ptr::null_mut(), 0), 2);
    reset_violations();
    assert_eq!(tell(ptr::null_mut(), 0), 0);
}

#[test]
fn before_its_start_the_driver_answers_nothing() {
    let _session = Session::begin(&[]);
    let mut count: c_int = 0;
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count => *mut c_int)), status::NOT_INITIALIZED);
    found(&["before cuInit"]);
    assert_eq!(configure("gpus", "0"), Ok(()));
    assert_eq!(cu!(cuInit(0 => c_uint)), status::NO_DEVICE);
    no_violations();
}

/// Where cargo has put the library for this test.
fn library() -> PathBuf {
    let test = env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder");
    folder.join(format!("{}fake_cuda{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX))
}

struct Opened(*mut c_void);

impl Opened {
    fn new() -> Self {
        let path = CString::new(library().into_os_string().into_encoded_bytes()).expect("no NUL");
        // SAFETY: the library's initialisers do nothing but what Rust's do.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be opened");
        Self(handle)
    }

    fn find(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is that of an open library.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }
}

#[test]
fn who_opens_the_file_twice_meets_in_one_state() {
    let [one, other] = [(); 2].map(|()| Opened::new());
    let init = one.find(c"cuInit");
    assert_eq!(init, other.find(c"cuInit"));
    // SAFETY: the types are those of CUDA.
    let init: extern "C" fn(c_uint) -> u32 = unsafe { std::mem::transmute(init) };
    // SAFETY: as above.
    let count: extern "C" fn(*mut c_int) -> u32 = unsafe { std::mem::transmute(other.find(c"cuDeviceGetCount")) };
    ok(init(0));
    let mut gpus = 0;
    ok(count(&raw mut gpus));
    assert_eq!(gpus, 1);
}

/// Opens the file in a process of its own, does what `FAKE_CUDA_TEST` says, and ends well as far as it can tell.
#[test]
fn a_process_of_its_own() {
    let Ok(what) = env::var("FAKE_CUDA_TEST") else { return };
    let library = Opened::new();
    // SAFETY: the types are those of CUDA.
    let init: extern "C" fn(c_uint) -> u32 = unsafe { std::mem::transmute(library.find(c"cuInit")) };
    // SAFETY: as above.
    let release: extern "C" fn(u64) -> u32 = unsafe { std::mem::transmute(library.find(c"cuMemRelease")) };
    // SAFETY: as above.
    let total: extern "C" fn(*mut usize, c_int) -> u32 =
        unsafe { std::mem::transmute(library.find(c"cuDeviceTotalMem_v2")) };
    match what.as_str() {
        "misuse" => {
            ok(init(0));
            assert_eq!(release(99), status::INVALID_VALUE);
        }
        "failure" => {
            ok(init(0));
            assert_eq!([release(99), release(98)], [700, status::INVALID_VALUE]);
        }
        "nothing" => {
            ok(init(0));
            let mut bytes = 0;
            ok(total(&raw mut bytes, 2));
            assert_eq!(bytes, 3 << 20);
        }
        _ => assert_eq!(init(0), status::INVALID_VALUE),
    }
}

#[test]
fn the_environment_sets_what_a_process_gets_and_how_it_ends() {
    let run = |what: &str, variables: &[(&str, &str)]| {
        let output = Command::new(env::current_exe().expect("a path"))
            .args(["--exact", "control::a_process_of_its_own", "--nocapture"])
            .env("FAKE_CUDA_TEST", what)
            .envs(variables.iter().copied())
            .output()
            .expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let strict = ("FAKE_CUDA_STRICT", "1");
    let (code, words) = run("nothing", &[strict, ("FAKE_CUDA_GPUS", "3"), ("FAKE_CUDA_MEMORY", "3MiB")]);
    assert_eq!(code, Some(0), "{words}");
    let (code, words) = run("misuse", &[strict]);
    assert_eq!(code, Some(70), "{words}");
    assert!(words.contains("violation: cuMemRelease"), "{words}");
    let (code, words) = run("misuse", &[]);
    assert_eq!((code, words.contains("violation")), (Some(0), false), "{words}");
    let (code, words) = run("failure", &[("FAKE_CUDA_FAIL", "cuMemRelease:1:700")]);
    assert_eq!(code, Some(0), "{words}");
    let (code, words) = run("refused", &[("FAKE_CUDA_PEER", "maybe")]);
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("FAKE_CUDA_PEER") && words.contains("0 or 1"), "{words}");
}
