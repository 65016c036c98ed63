//! Texts between C callers and `pjrt_arena_*` functions.
//!
//! Functions that return text write at most `capacity` bytes, the last of them NUL, and return how long the whole
//! text is without it; a caller whose buffer is too small asks again with more. With a NULL buffer they only return
//! the length.

use std::{
    ffi::{CStr, OsStr, c_char},
    marker::PhantomData,
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use crate::engine::failure::panicked;

/// A text that a C caller passes: NULL, or a C string that lives for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct CText<'a> {
    text: *const c_char,
    lives: PhantomData<&'a CStr>,
}

impl<'a> CText<'a> {
    /// The C string, if it is not NULL.
    pub fn get(self) -> Option<&'a CStr> {
        // SAFETY: the text is not NULL, so it is a C string that lives for `'a`: in Rust there is no other way to make
        // one than of a C string.
        (!self.text.is_null()).then(|| unsafe { CStr::from_ptr(self.text) })
    }

    /// The text, for names of the system's.
    pub fn to_os(self) -> Option<&'a OsStr> {
        self.get().map(|text| OsStr::from_bytes(text.to_bytes()))
    }

    /// The text with bytes that are not UTF-8 replaced; empty for NULL.
    pub fn to_string_lossy(self) -> std::borrow::Cow<'a, str> {
        self.get().map(CStr::to_string_lossy).unwrap_or_default()
    }
}

impl<'a> From<Option<&'a CStr>> for CText<'a> {
    fn from(text: Option<&'a CStr>) -> Self {
        Self { text: text.map_or(ptr::null(), CStr::as_ptr), lives: PhantomData }
    }
}

/// Writes `text` as the module's documentation says.
///
/// # Safety
/// `buffer` must be NULL or have `capacity` bytes.
pub unsafe fn write(text: &str, buffer: *mut c_char, capacity: usize) -> usize {
    if !buffer.is_null() && capacity > 0 {
        let mut length = text.len().min(capacity - 1);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: the buffer is not NULL, so it has `capacity` bytes, as this function asks; no more are written.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), length);
            *buffer.add(length) = 0;
        }
    }
    text.len()
}

/// The text that `body` makes; a panic becomes text too.
pub fn tell(body: impl FnOnce() -> String) -> String {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| format!("panic: {}; this is a bug", panicked(&*panic)))
}

/// Exports functions that return text: each body makes it of the arguments before `buffer` and `capacity`. It may ask
/// how long a text the caller has `room` for.
macro_rules! text_functions {
    ($(
        $(#[$meta:meta])*
        pub fn $name:ident($($argument:ident: $type:ty),*) $(with $room:ident)? -> String $body:block
    )*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// Pointers must be as described, and `buffer` be NULL or have `capacity` bytes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($argument: $type,)*
            buffer: *mut std::ffi::c_char,
            capacity: usize,
        ) -> usize {
            $(let $room = if buffer.is_null() { 0 } else { capacity };)?
            let text = $crate::api::text::tell(|| $body);
            // SAFETY: the buffer is NULL or has `capacity` bytes, as this function asks.
            unsafe { $crate::api::text::write(&text, buffer, capacity) }
        }
    )*};
}
pub(super) use text_functions;
