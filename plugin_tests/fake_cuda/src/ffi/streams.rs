//! Streams and events.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys;

use super::{Out, functions};
use crate::{
    capture, event,
    status::{self, misuse},
    stream,
};

functions! {
    call cuStreamCreate(stream: Out<usize> as *mut sys::CUstream, flags: c_uint) |driver| {
        stream.checked()?.put(stream::create(driver, flags)?)
    };
    call cuStreamDestroy_v2(stream: usize as sys::CUstream) |driver| stream::destroy(driver, stream);
    call cuStreamSynchronize(stream: usize as sys::CUstream) |driver| stream::synchronize(driver, stream);
    call cuStreamQuery(stream: usize as sys::CUstream) |driver| stream::query(driver, stream);
    call cuStreamWaitEvent(stream: usize as sys::CUstream, event: usize as sys::CUevent, flags: c_uint) |driver| {
        event::wait(driver, stream, event, flags)
    };
    call cuLaunchHostFunc(stream: usize as sys::CUstream, function: sys::CUhostFn, argument: usize as *mut c_void)
        |driver| {
            let function = function.ok_or_else(|| misuse(status::INVALID_VALUE, "the function is null"))?;
            stream::launch_host(driver, stream, (function, argument))
        };
    call cuEventCreate(event: Out<usize> as *mut sys::CUevent, flags: c_uint) |driver| {
        event.checked()?.put(event::create(driver, flags)?)
    };
    call cuEventDestroy_v2(event: usize as sys::CUevent) |driver| event::destroy(driver, event);
    call cuEventRecord(event: usize as sys::CUevent, stream: usize as sys::CUstream) |driver| {
        event::record(driver, event, stream)
    };
    call cuEventQuery(event: usize as sys::CUevent) |driver| event::query(driver, event);
    call cuEventSynchronize(event: usize as sys::CUevent) |driver| event::synchronize(driver, event);

    call cuStreamBeginCapture_v2(stream: usize as sys::CUstream, mode: c_uint as sys::CUstreamCaptureMode) |driver| {
        capture::begin(driver, stream, mode)
    };
    call cuStreamEndCapture(stream: usize as sys::CUstream, graph: Out<u64> as *mut sys::CUgraph) |driver| {
        graph.checked()?.put(capture::end(driver, stream)?)
    };
    call cuThreadExchangeStreamCaptureMode(mode: Out<c_uint> as *mut sys::CUstreamCaptureMode) |_driver| {
        mode.checked()?.exchange(capture::exchange_mode)
    };
}
