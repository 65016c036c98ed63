//! Copies to another device or memory.

use std::ptr;

use crate::{
    api::{
        call::{Call, Copying, LendsBuffer},
        entry::Entry,
    },
    engine::{Args, Outcome},
    runtime::{
        buffer::BufferRef,
        transfer::copy::{copy_by_engine, copy_here},
    },
    sys,
};

/// The struct of a function that copies a buffer.
///
/// # Safety
/// `to` must give the fields of the device and the memory to copy to, of which one is NULL.
unsafe trait Copies: Args + LendsBuffer<Use = Copying> {
    fn to(&self) -> (*mut sys::PJRT_Device, *mut sys::PJRT_Memory);
}

// SAFETY: the field is that of the function in the C API.
unsafe impl Copies for sys::PJRT_Buffer_CopyToDevice_Args {
    fn to(&self) -> (*mut sys::PJRT_Device, *mut sys::PJRT_Memory) {
        (self.dst_device, ptr::null_mut())
    }
}

// SAFETY: the field is that of the function in the C API.
unsafe impl Copies for sys::PJRT_Buffer_CopyToMemory_Args {
    fn to(&self) -> (*mut sys::PJRT_Device, *mut sys::PJRT_Memory) {
        (ptr::null_mut(), self.dst_memory)
    }
}

/// Copies `buffer`, which is the call's, to where the call says.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, or the engine's.
fn copy<A: Copies>(call: &Call<'_, A>, buffer: BufferRef<'_>) -> Outcome<*mut sys::PJRT_Buffer> {
    let buffer = buffer.share();
    // SAFETY: device and memory are NULL or alive, and so is the client, as the call asks; the engine gets the caller's
    // struct with its own handle, which the copy keeps in use, and makes the copy.
    let copy = unsafe {
        match copy_here(&buffer, call.to())? {
            Some(copy) => copy,
            None => copy_by_engine(&buffer, call.to(), |buffer| call.with_buffer(buffer), A::made)?,
        }
    };
    Ok(copy.into_raw())
}

impl Entry for sys::PJRT_Buffer_CopyToDevice_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.required(call.dst_device, "dst_device")?;
        let copy = copy(&call, buffer)?;
        call.out().dst_buffer = copy;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyToMemory_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.required(call.dst_memory, "dst_memory")?;
        let copy = copy(&call, buffer)?;
        call.out().dst_buffer = copy;
        Ok(())
    }
}
