//! What XLA and JAX's handlers ask CUDA's runtime (`libcudart.so.13`) and cuDNN (`libcudnn.so.9`) for, as far as it
//! needs no kernel of theirs: versions, copies, and whether there was an error. Kernels that NVIDIA's compiler has put
//! into a library are registered and cannot be launched.
//!
//! The runtime's codes are the driver's, for all that this driver answers with.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Out, c_functions};
use crate::{
    copy::{self, Copy, Side},
    device,
    state::{Driver, call_to_hip},
    status::{self, Answer, Status},
    stream,
};

/// CUDA 13.0, which jax-cuda13-plugin is built for; the driver says its own version.
const RUNTIME: c_int = 13000;
/// cuDNN 9.20.0. XLA compiles for GPUs only where there is one, whether a program needs it or not.
const CUDNN: [c_int; 3] = [9, 20, 0];

/// The frame of these functions: the runtime starts the driver where nobody has.
fn called(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    call_to_hip(name, |driver| {
        device::init(driver, 0)?;
        body(driver)
    })
}

c_functions! {
    cudaRuntimeGetVersion(version: Out<c_int>) -> Status {
        called("cudaRuntimeGetVersion", |_| version.put(RUNTIME))
    }
    cudaDriverGetVersion(version: Out<c_int>) -> Status {
        called("cudaDriverGetVersion", |_| version.put(device::VERSION))
    }
    cudaGetDeviceCount(count: Out<c_int>) -> Status {
        called("cudaGetDeviceCount", |driver| count.put(driver.gpus.len() as c_int))
    }
    cudaGetDevice(device: Out<c_int>) -> Status {
        called("cudaGetDevice", |driver| device.put(driver.current()? as c_int))
    }
    cudaMemcpyAsync(to: u64, from: u64, bytes: usize, _kind: c_uint, stream: usize) -> Status {
        called("cudaMemcpyAsync", |driver| {
            let (to, from) = ((Side::Any, to), (Side::Any, from));
            copy::copy(driver, Copy { what: "cudaMemcpyAsync", to, from, bytes, waits: false }, stream)
        })
    }
    cudaStreamSynchronize(stream: usize) -> Status {
        called("cudaStreamSynchronize", |driver| stream::synchronize(driver, stream))
    }
    cudaPeekAtLastError() -> Status {
        status::SUCCESS
    }
    cudaGetLastError() -> Status {
        status::SUCCESS
    }
    cudaGetErrorName(code: Status) -> *const c_char {
        status::words(code).map_or(c"cudaErrorUnknown", |(name, _)| name).as_ptr()
    }
    cudaGetErrorString(code: Status) -> *const c_char {
        status::words(code).map_or(c"unknown error", |(_, text)| text).as_ptr()
    }
    __cudaRegisterFatBinary(_binary: *const c_void) -> usize {
        // A handle that is not null, and that nothing else is asked of.
        1
    }
    __cudaRegisterFatBinaryEnd(_handle: usize) -> () {}
    __cudaUnregisterFatBinary(_handle: usize) -> () {}
    __cudaRegisterFunction() -> () {}
    __cudaRegisterVar() -> () {}
    cudnnCreate(handle: Out<usize>) -> Status {
        called("cudnnCreate", |driver| handle.put(driver.number() as usize))
    }
    cudnnDestroy(_handle: usize) -> Status {
        status::SUCCESS
    }
    cudnnSetStream(_handle: usize, _stream: usize) -> Status {
        status::SUCCESS
    }
    cudnnGetVersion() -> usize {
        CUDNN.iter().zip([10_000, 100, 1]).map(|(&part, unit)| part as usize * unit).sum()
    }
    cudnnGetProperty(which: c_int, value: Out<c_int>) -> Status {
        called("cudnnGetProperty", |_| {
            let part = usize::try_from(which).ok().and_then(|which| CUDNN.get(which));
            value.put(*part.ok_or(status::INVALID_VALUE)?)
        })
    }
    cudnnGetErrorString(_code: c_int) -> *const c_char {
        c"an error of the simulated cuDNN".as_ptr()
    }
}
