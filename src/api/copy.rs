//! Copies to another device or memory.

use std::ptr;

use crate::{
    api::entry::Entry,
    engine::{Args, Outcome, failure::required},
    runtime::{
        buffer::buffer_ref::BufferRef,
        transfer::copy::{copy_by_engine, copy_here},
    },
    sys,
};

/// Copies a buffer to the device or, where that is not NULL, the memory of `to`. `args` makes the engine's call of a
/// handle.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// The client, device and memory must be alive, and the struct that `args` makes satisfy its function's contract.
unsafe fn copy<A: Args>(
    buffer: BufferRef<'_>,
    to: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    result: impl FnOnce(&A) -> *mut sys::PJRT_Buffer,
) -> Outcome<*mut sys::PJRT_Buffer> {
    let buffer = buffer.share();
    // SAFETY: client, device and memory are alive, and the struct satisfies the contract, as this function asks.
    let copy = unsafe {
        match copy_here(&buffer, to)? {
            Some(copy) => copy,
            None => copy_by_engine(&buffer, to, args, result)?,
        }
    };
    Ok(copy.into_raw())
}

impl Entry for sys::PJRT_Buffer_CopyToDevice_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Buffer_CopyToDevice";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let buffer = unsafe { BufferRef::borrow(self.buffer, NAME)? };
        let to = (required(self.dst_device, NAME, "dst_device")?, ptr::null_mut());
        // SAFETY: buffer and device, and so their client, are alive during the call; the struct is the caller's.
        self.dst_buffer = unsafe { copy(buffer, to, |buffer| Self { buffer, ..*self }, |args| args.dst_buffer)? };
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyToMemory_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Buffer_CopyToMemory";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let buffer = unsafe { BufferRef::borrow(self.buffer, NAME)? };
        let to = (ptr::null_mut(), required(self.dst_memory, NAME, "dst_memory")?);
        // SAFETY: buffer and memory, and so their client, are alive during the call; the struct is the caller's.
        self.dst_buffer = unsafe { copy(buffer, to, |buffer| Self { buffer, ..*self }, |args| args.dst_buffer)? };
        Ok(())
    }
}
