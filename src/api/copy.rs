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

/// Copies `buffer`, which is the call's, to the device or the memory, one of which is NULL, and both the call's.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// Device and memory must be the fields of the call's struct.
unsafe fn copy<A>(
    call: &Call<'_, A>,
    buffer: BufferRef<'_>,
    to: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
) -> Outcome<*mut sys::PJRT_Buffer>
where
    A: Args + LendsBuffer<Use = Copying>,
{
    let buffer = buffer.share();
    // SAFETY: device and memory are NULL or alive, and so is the client, as the call asks; the engine gets the caller's
    // struct with its own handle, which the copy keeps in use, and makes the copy.
    let copy = unsafe {
        match copy_here(&buffer, to)? {
            Some(copy) => copy,
            None => copy_by_engine(&buffer, to, |buffer| call.with_buffer(buffer), A::made)?,
        }
    };
    Ok(copy.into_raw())
}

impl Entry for sys::PJRT_Buffer_CopyToDevice_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        let device = call.required(call.dst_device, "dst_device")?;
        // SAFETY: the device is the struct's.
        let copy = unsafe { copy(&call, buffer, (device, ptr::null_mut())) }?;
        call.out().dst_buffer = copy;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyToMemory_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        let memory = call.required(call.dst_memory, "dst_memory")?;
        // SAFETY: the memory is the struct's.
        let copy = unsafe { copy(&call, buffer, (ptr::null_mut(), memory)) }?;
        call.out().dst_buffer = copy;
        Ok(())
    }
}
