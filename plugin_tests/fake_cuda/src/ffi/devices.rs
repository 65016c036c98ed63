//! Devices, contexts, and how errors are called.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys;

use super::{Out, functions};
use crate::{
    device,
    status::{self, Status, misuse},
    stream,
};

/// The name of every GPU.
const NAME: &str = "Fake H200";

functions! {
    framed cuInit(flags: c_uint) |driver| device::init(driver, flags);
    framed cuDriverGetVersion(version: Out<c_int> as *mut c_int) |_| version.put(device::VERSION);
    framed cuGetErrorName(code: Status as sys::CUresult, text: Out<*const c_char> as *mut *const c_char) |_| {
        let words = status::words(code);
        text.put(words.map_or(std::ptr::null(), |(name, _)| name.as_ptr()))?;
        words.map(|_| ()).ok_or(status::INVALID_VALUE.into())
    };
    framed cuGetErrorString(code: Status as sys::CUresult, text: Out<*const c_char> as *mut *const c_char) |_| {
        let words = status::words(code);
        text.put(words.map_or(std::ptr::null(), |(_, text)| text.as_ptr()))?;
        words.map(|_| ()).ok_or(status::INVALID_VALUE.into())
    };
    call cuDeviceGetCount(count: Out<c_int> as *mut c_int) |driver| count.put(driver.gpus.len() as c_int);
    call cuDeviceGet(device: Out<c_int> as *mut sys::CUdevice, ordinal: c_int) |driver| {
        device.put(driver.gpu(ordinal)? as c_int)
    };
    call cuDeviceGetName(name: Out<u8> as *mut c_char, length: c_int, device: c_int) |driver| {
        driver.gpu(device)?;
        let room = usize::try_from(length).ok().filter(|&room| room > 0);
        let room = room.ok_or_else(|| misuse(status::INVALID_VALUE, format!("the name's length is {length}")))?;
        let shown = &NAME.as_bytes()[..NAME.len().min(room - 1)];
        name.put_all(shown.iter().copied().chain([0]))
    };
    call cuDeviceTotalMem_v2(bytes: Out<usize> as *mut usize, device: c_int) |driver| {
        driver.gpu(device)?;
        bytes.put(driver.settings.memory as usize)
    };
    call cuDeviceGetAttribute(value: Out<c_int> as *mut c_int, which: c_uint as sys::CUdevice_attribute, device: c_int)
        |driver| {
            driver.gpu(device)?;
            value.put(device::attribute(driver, which)?)
        };
    call cuDeviceCanAccessPeer(answer: Out<c_int> as *mut c_int, device: c_int, peer: c_int) |driver| {
        let (one, other) = (driver.gpu(device)?, driver.gpu(peer)?);
        answer.put(driver.are_peers(one, other).into())
    };
    call cuDevicePrimaryCtxRetain(context: Out<usize> as *mut sys::CUcontext, device: c_int) |driver| {
        context.checked()?.put(device::retain(driver, device)?)
    };
    call cuDevicePrimaryCtxRelease_v2(device: c_int) |driver| device::release(driver, device);
    call cuCtxPushCurrent_v2(context: usize as sys::CUcontext) |driver| device::push(driver, context);
    call cuCtxPopCurrent_v2(context: Out<usize> as *mut sys::CUcontext) |_| {
        context.put_if_wanted(device::pop()?);
        Ok(())
    };
    call cuCtxSetCurrent(context: usize as sys::CUcontext) |driver| device::set(driver, context);
    call cuCtxGetCurrent(context: Out<usize> as *mut sys::CUcontext) |_| context.put(device::get());
    call cuCtxSynchronize() stream::synchronize_context;
}
