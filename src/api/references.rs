//! Addresses given to outsiders: external references, which are given back, and unsafe pointers, which never are.
//!
//! References are counted here and in the engine: XLA:CPU answers the donation of a referenced buffer with a copy, and
//! it must know of the reference to do so (trap T11).

use std::ptr;

use super::{
    buffer::Buffer,
    entry::{Entry, Outcome},
};
use crate::{engine::views, error::Error, sys};

/// Keeps the bytes in place while we talk to the engine about them.
struct Hold<'a> {
    buffer: &'a Buffer,
    handle: *mut sys::PJRT_Buffer,
}

impl<'a> Hold<'a> {
    /// # Safety
    /// As for [`Buffer::borrow`].
    unsafe fn new(buffer: *mut sys::PJRT_Buffer, function: &str) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let buffer = unsafe { Buffer::borrow(buffer, function)? };
        Ok(Self { buffer, handle: buffer.take_up()? })
    }

    /// Where the bytes are.
    fn address(&self) -> Outcome<usize> {
        if let Some(address) = self.buffer.state().storage.address() {
            return Ok(address);
        }
        // SAFETY: the handle is alive while the buffer is taken up.
        Ok(unsafe { views::address(self.buffer.client.engine, self.handle)? })
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.buffer.land();
    }
}

impl Entry for sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        unsafe {
            let hold = Hold::new(self.buffer, "PJRT_Buffer_IncreaseExternalReferenceCount")?;
            hold.buffer.client.engine.call(Self { buffer: hold.handle, ..*self })?;
            hold.buffer.state().references += 1;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DecreaseExternalReferenceCount_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_DecreaseExternalReferenceCount")? };
        let handle = {
            let mut state = buffer.state();
            if state.references == 0 {
                return Err(Error::invalid_argument(
                    "Attempting to decrease reference on a buffer with zero reference count.",
                )
                .into());
            }
            state.references -= 1;
            state.handle()
        };
        if buffer.client.is_open() && !handle.is_null() {
            // SAFETY: the engine's handle lives as long as ours.
            unsafe { buffer.client.engine.call(Self { buffer: handle.0, ..*self })? };
        }
        buffer.release_if_unused();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_UnsafePointer_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let hold = unsafe { Hold::new(self.buffer, "PJRT_Buffer_UnsafePointer")? };
        self.buffer_pointer = hold.address()?;
        hold.buffer.state().address_known = true;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let hold = unsafe { Hold::new(self.buffer, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer")? };
        self.device_memory_ptr = ptr::with_exposed_provenance_mut(hold.address()?);
        Ok(())
    }
}
