//! The library as a file: it exports the driver's functions, those of this crate, and the stand-ins for other
//! libraries.

use std::{
    env,
    ffi::{CString, c_void},
};

use simulated_gpu as _;

/// What a program may look for by name beside the driver's own.
const NAMES: &str = "cuModuleLoadData cuModuleLoadFatBinary cuModuleLoadDataEx cuModuleUnload cuModuleGetFunction \
    cuModuleGetGlobal_v2 cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig \
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuLaunchKernel cuLaunchKernelEx cublasCreate_v2 \
    cublasDestroy_v2 cublasLtCreate cublasLtDestroy cublasLtMatmulDescCreate cublasLtMatmulDescDestroy \
    cublasLtMatmulDescSetAttribute cublasLtMatmulDescGetAttribute cublasLtMatrixLayoutCreate \
    cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute cublasLtMatrixLayoutGetAttribute \
    cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute \
    cublasLtMatmulAlgoGetHeuristic cublasLtMatmul cublasGetStatusString ncclGetVersion ncclGetUniqueId \
    ncclCommInitRank ncclCommInitRankConfig ncclCommInitRankScalable ncclCommInitAll ncclCommSplit \
    ncclCommFinalize ncclCommDestroy ncclCommAbort ncclCommCount ncclCommUserRank ncclCommCuDevice \
    ncclCommGetAsyncError ncclGroupStart ncclGroupEnd ncclAllReduce ncclAllGather ncclReduceScatter ncclBroadcast \
    ncclBcast ncclReduce ncclAlltoAll ncclSend ncclRecv ncclCommRegister ncclCommDeregister ncclCommWindowRegister \
    ncclCommWindowDeregister ncclMemAlloc ncclMemFree";

/// What it finds in NVIDIA's other libraries alone.
const STAND_INS: &str = "ncclGetErrorString ncclGetLastError cudaRuntimeGetVersion cudaDriverGetVersion \
    cudaGetDeviceCount cudaGetDevice cudaMemcpyAsync cudaStreamSynchronize cudaPeekAtLastError cudaGetLastError \
    cudaGetErrorName cudaGetErrorString __cudaRegisterFatBinary __cudaRegisterFatBinaryEnd \
    __cudaUnregisterFatBinary __cudaRegisterFunction __cudaRegisterVar cudnnCreate cudnnDestroy cudnnSetStream \
    cudnnGetVersion cudnnGetProperty cudnnGetErrorString nvmlInit_v2 nvmlShutdown nvmlErrorString \
    nvmlSystemGetDriverVersion nvmlDeviceGetHandleByPciBusId_v2";

/// Of the driver's functions those that programs begin with, and those of its tests.
const DRIVERS: &str = "cuInit cuMemAlloc_v2 cuGraphLaunch hipInit hipMalloc fake_cuda_kernel fake_cuda_violations";

fn library() -> *mut c_void {
    let test = env::current_exe().expect("a path");
    let file = test.with_file_name("libsimulated_gpu.so");
    let path = CString::new(file.into_os_string().into_encoded_bytes()).expect("no NUL");
    // SAFETY: the library's initialisers register its functions, and otherwise do what Rust's do.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?} cannot be opened");
    handle
}

#[test]
fn the_library_exports_all_that_the_tables_have() {
    let library = library();
    let exported = |name: &str| {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the handle is that of an open library.
        !unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
    };
    for name in NAMES.split_whitespace().chain(DRIVERS.split_whitespace()) {
        assert!(fake_cuda::symbol(name).is_some() && exported(name), "{name}");
    }
    for name in STAND_INS.split_whitespace() {
        assert!(exported(name), "{name}");
    }
}
