//! A caller's handle of a buffer.

use std::sync::Arc;

use crate::{
    engine::{Outcome, failure::required},
    runtime::buffer::pjrt_buffer::Buffer,
    sys,
};

/// The buffer behind a caller's handle, for the time of a call.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct BufferRef<'a>(&'a Buffer);

impl<'a> BufferRef<'a> {
    /// The buffer behind a caller's handle.
    ///
    /// # Errors
    /// INVALID_ARGUMENT naming `function` if it is NULL.
    ///
    /// # Safety
    /// `buffer` must be NULL or come from [`Buffer::into_raw`] and not be destroyed while the result is used.
    pub unsafe fn borrow(buffer: *mut sys::PJRT_Buffer, function: &str) -> Outcome<Self> {
        let buffer = required(buffer, function, "buffer")?;
        // SAFETY: the handle is not NULL, so it comes from `into_raw`; it is not destroyed during `'a`.
        Ok(Self(unsafe { &*buffer.cast::<Buffer>() }))
    }

    /// The buffers behind a list of handles; `None` for NULL.
    ///
    /// # Safety
    /// Each handle must be as for [`Self::borrow`].
    pub unsafe fn list(handles: &'a [*mut sys::PJRT_Buffer]) -> &'a [Option<Self>] {
        // SAFETY: a handle that is not NULL is the address of a buffer that is not destroyed during `'a`; an optional
        // reference is a pointer that may be NULL; and the slice's length is the list's.
        unsafe { std::slice::from_raw_parts(handles.as_ptr().cast(), handles.len()) }
    }

    /// The buffer.
    pub fn get(self) -> &'a Buffer {
        self.0
    }

    /// Shares ownership of the buffer.
    pub fn share(self) -> Arc<Buffer> {
        // SAFETY: the pointer is that of an `Arc`, which the caller's handle keeps alive during `'a`; the strong
        // count that is added here is the result's.
        unsafe {
            Arc::increment_strong_count(self.0);
            Arc::from_raw(self.0)
        }
    }
}

impl std::ops::Deref for BufferRef<'_> {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        self.0
    }
}
