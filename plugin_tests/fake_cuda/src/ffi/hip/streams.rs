//! Streams and events.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys;

use super::{Out, call, functions};
use crate::{
    capture, event,
    status::{self, Status, misuse},
    stream,
};

/// `hipEventReleaseToDevice`, `hipEventReleaseToSystem` and `hipEventDisableSystemFence`: who sees what was written
/// when an event is recorded. Memory here has no caches.
const FENCES: c_uint = 0x4000_0000 | 0x8000_0000 | 0x2000_0000;

functions! {
    call hipThreadExchangeStreamCaptureMode(mode: Out<c_uint>) |_driver| mode.checked()?.exchange(capture::exchange_mode);
    call hipStreamCreateWithFlags(stream: Out<usize>, flags: c_uint) |driver| {
        stream.checked()?.put(stream::create(driver, flags)?)
    };
    call hipStreamDestroy(stream: usize) |driver| stream::destroy(driver, stream);
    call hipStreamSynchronize(stream: usize) |driver| stream::synchronize(driver, stream);
    call hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) |driver| {
        event::wait(driver, stream, event, flags)
    };
    call hipEventCreateWithFlags(event: Out<usize>, flags: c_uint) |driver| {
        event.checked()?.put(event::create(driver, flags & !FENCES)?)
    };
    call hipEventDestroy(event: usize) |driver| event::destroy(driver, event);
    call hipEventRecord(event: usize, stream: usize) |driver| event::record(driver, event, stream);
    call hipEventSynchronize(event: usize) |driver| event::synchronize(driver, event);
    call hipStreamCreateWithPriority(stream: Out<usize>, flags: c_uint, _priority: c_int) |driver| {
        stream.checked()?.put(stream::create(driver, flags)?)
    };
    call hipStreamGetFlags(stream: usize, flags: Out<c_uint>) |driver| flags.put(stream::flags(driver, stream)?);
    // Streams have none: each is a thread.
    call hipStreamGetPriority(stream: usize, priority: Out<c_int>) |driver| {
        stream::flags(driver, stream)?;
        priority.put(0)
    };
    call hipStreamQuery(stream: usize) |driver| stream::query(driver, stream);
    call hipLaunchHostFunc(stream: usize, function: sys::CUhostFn, argument: usize) |driver| {
        let function = function.ok_or_else(|| misuse(status::INVALID_VALUE, "the function is null"))?;
        stream::launch_host(driver, stream, (function, argument))
    };
    call hipEventQuery(event: usize) |driver| event::query(driver, event);
    call hipEventElapsedTime(milliseconds: Out<f32>, start: usize, end: usize) |driver| {
        milliseconds.put(event::elapsed(driver, start, end)?)
    };
}

/// HIP's `hipGetStreamDeviceId`: the device of a stream, or -1.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetStreamDeviceId(stream: usize) -> c_int {
    let mut device = -1;
    call("hipGetStreamDeviceId", |driver| {
        let context = stream::context(driver, stream)?;
        device = driver.context(context)? as c_int;
        Ok(())
    });
    device
}
