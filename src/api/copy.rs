//! Copies to another device or memory.

use crate::{
    api::entry::Entry,
    engine::{Outcome, failure::required},
    runtime::{
        buffer::buffer_ref::BufferRef,
        transfer::copy::{copy_by_engine, copy_here},
    },
    sys,
};

impl Entry for sys::PJRT_Buffer_CopyToDevice_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Buffer_CopyToDevice";
        // SAFETY: the caller's handles are alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, NAME)?.share() };
        let to = required(self.dst_device, NAME, "dst_device")?;
        let place = (to, std::ptr::null_mut());
        // SAFETY: the client is alive while its buffers are used.
        let ours = unsafe { copy_here(&buffer, place)? };
        self.dst_buffer = match ours {
            Some(copy) => copy,
            // SAFETY: as above.
            None => unsafe {
                copy_by_engine(&buffer, place, |handle| Self { buffer: handle, ..*self }, |args| args.dst_buffer)?
            },
        }
        .into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyToMemory_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Buffer_CopyToMemory";
        // SAFETY: the caller's handles are alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, NAME)?.share() };
        let to = required(self.dst_memory, NAME, "dst_memory")?;
        let place = (std::ptr::null_mut(), to);
        // SAFETY: the client is alive while its buffers are used.
        let ours = unsafe { copy_here(&buffer, place)? };
        self.dst_buffer = match ours {
            Some(copy) => copy,
            // SAFETY: as above.
            None => unsafe {
                copy_by_engine(&buffer, place, |handle| Self { buffer: handle, ..*self }, |args| args.dst_buffer)?
            },
        }
        .into_raw();
        Ok(())
    }
}
