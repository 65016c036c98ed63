//! Devices, contexts, peers, and how functions and errors are called.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::{In, Out, functions, symbol};
use crate::{
    device,
    state::framed,
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
    call cuCtxGetDevice(device: Out<c_int> as *mut sys::CUdevice) |driver| device.put(driver.current()? as c_int);
    call cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint> as *mut c_uint, active: Out<c_int> as *mut c_int)
        |driver| {
            let gpu = driver.gpu(device)?;
            flags.put(driver.gpus[gpu].flags)?;
            active.put((driver.gpus[gpu].retained > 0).into())
        };
    call cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) |driver| {
        let gpu = driver.gpu(device)?;
        driver.gpus[gpu].flags = flags;
        Ok(())
    };
    call cuDeviceGetPCIBusId(text: Out<u8> as *mut c_char, length: c_int, device: c_int) |driver| {
        let gpu = driver.gpu(device)?;
        let id = format!("00000000:{:02X}:00.0", 0x1b + gpu);
        let room = usize::try_from(length).ok().filter(|&room| room > id.len());
        room.ok_or_else(|| misuse(status::INVALID_VALUE, format!("the id's length is {length}")))?;
        text.put_all(id.bytes().chain([0]))
    };
    call cuCtxGetStreamPriorityRange(least: Out<c_int> as *mut c_int, greatest: Out<c_int> as *mut c_int) |driver| {
        driver.current()?;
        least.put_if_wanted(0);
        greatest.put_if_wanted(-5);
        Ok(())
    };
    call cuCtxEnablePeerAccess(peer: usize as sys::CUcontext, flags: c_uint) |driver| {
        device::enable_peer(driver, peer, flags)
    };
}

/// CUDA's `cuGetProcAddress_v2`, which is younger than the CUDA that cudarc's declarations here are of.
///
/// # Safety
/// As CUDA documents: each pointer is null or fit for what the function reads or writes there.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: In<c_char>,
    function: Out<*const c_void>,
    version: c_int,
    flags: u64,
    found: Out<c_uint>,
) -> Status {
    framed(PROC_ADDRESS, |driver| {
        let name = name.text()?;
        // Flags choose the default stream of each function; the versions here are those that CUDA 11 and 12 mean.
        if flags > 2 || version > device::VERSION {
            return Err(misuse(status::INVALID_VALUE, format!("{name} for CUDA {version} with flags {flags:#x}")));
        }
        let address = symbol(&format!("{name}_v2")).or_else(|| symbol(name));
        if address.is_none() {
            driver.trace(|| format!("{name} is looked up and not known"));
        }
        function.put(address.unwrap_or(std::ptr::null()))?;
        // CU_GET_PROC_ADDRESS_SUCCESS and CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND.
        found.put_if_wanted(if address.is_some() { 0 } else { 1 });
        address.map(|_| ()).ok_or(status::NOT_FOUND.into())
    })
}

const PROC_ADDRESS: &str = "cuGetProcAddress_v2";

/// The functions of this module that cudarc does not declare.
pub(super) const MORE: &[(&str, *const ())] = &[(PROC_ADDRESS, cuGetProcAddress_v2 as *const ())];
