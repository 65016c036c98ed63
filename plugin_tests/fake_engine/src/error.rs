//! `PJRT_Error`: always ours. What the CPU engine says is copied into one of ours, with its code.

use std::{
    ffi::{c_char, c_void},
    fmt, ptr,
};

use crate::{
    entry::{Entry, required},
    sys::{self, CStruct},
};

/// A status code and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// One of `PJRT_Error_Code_*`.
    pub code: sys::PJRT_Error_Code,
    /// The sentence the user reads.
    pub message: String,
}

/// Results of this crate.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with `code`.
    pub fn new(code: sys::PJRT_Error_Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// INVALID_ARGUMENT.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(sys::PJRT_Error_Code_INVALID_ARGUMENT, message)
    }

    /// INTERNAL.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(sys::PJRT_Error_Code_INTERNAL, message)
    }

    /// UNIMPLEMENTED.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(sys::PJRT_Error_Code_UNIMPLEMENTED, message)
    }

    /// RESOURCE_EXHAUSTED.
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(sys::PJRT_Error_Code_RESOURCE_EXHAUSTED, message)
    }

    /// Takes back what [`Self::into_raw`] gave; `None` for NULL.
    ///
    /// # Safety
    /// `error` must be NULL or come from there, and not be used again.
    pub unsafe fn from_raw(error: *mut sys::PJRT_Error) -> Option<Self> {
        // SAFETY: the caller's promise.
        (!error.is_null()).then(|| unsafe { Box::from_raw(error.cast::<Own>()) }.error)
    }

    /// Hands the error to the caller of the C API, who destroys it.
    pub fn into_raw(self) -> *mut sys::PJRT_Error {
        Box::into_raw(Box::new(Own { table: &raw const TABLE.0, error: self })).cast()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// An error as the C API sees it; it begins with its table, as errors do from 0.107 on.
#[repr(C)]
struct Own {
    table: *const sys::PJRT_Error_FunctionTable,
    error: Error,
}

struct Table(sys::PJRT_Error_FunctionTable);

// SAFETY: function pointers and sizes, never written.
unsafe impl Sync for Table {}

static TABLE: Table = Table(sys::PJRT_Error_FunctionTable {
    struct_size: size_of::<sys::PJRT_Error_FunctionTable>(),
    instance_size: size_of::<Own>(),
    extension_start: ptr::null_mut(),
    destroy: Some(destroy),
    message: Some(message),
    get_code: Some(get_code),
    for_each_payload: Some(for_each_payload),
});

unsafe extern "C" fn destroy(error: *mut sys::PJRT_Error) {
    if !error.is_null() {
        // SAFETY: every error that leaves this library is a box of this type, and the caller ends it once.
        drop(unsafe { Box::from_raw(error.cast::<Own>()) });
    }
}

unsafe extern "C" fn message(error: *const sys::PJRT_Error, text: *mut *const c_char, size: *mut usize) {
    // SAFETY: the error is alive and one of ours; the caller passes places to write to.
    unsafe {
        let own = &*error.cast::<Own>();
        *text = own.error.message.as_ptr().cast();
        *size = own.error.message.len();
    }
}

unsafe extern "C" fn get_code(error: *const sys::PJRT_Error) -> sys::PJRT_Error_Code {
    // SAFETY: the error is alive and one of ours.
    unsafe { (*error.cast::<Own>()).error.code }
}

unsafe extern "C" fn for_each_payload(_: *const sys::PJRT_Error, _: sys::PJRT_Error_PayloadVisitor, _: *mut c_void) {
    // There are no payloads.
}

/// `PJRT_Error_Destroy`; NULL is fine.
///
/// # Safety
/// `args` must be NULL or valid, the error alive, and not be used again.
pub unsafe extern "C" fn error_destroy(args: *mut sys::PJRT_Error_Destroy_Args) {
    // SAFETY: the caller's promise.
    if let Some(args) = unsafe { args.as_ref() } {
        // SAFETY: as above.
        unsafe { destroy(args.error) };
    }
}

/// `PJRT_Error_Message`; the text lives as long as the error.
///
/// # Safety
/// `args` must be NULL or valid, and the error alive.
pub unsafe extern "C" fn error_message(args: *mut sys::PJRT_Error_Message_Args) {
    // SAFETY: the caller's promise.
    let Some(args) = (unsafe { args.as_mut() }) else { return };
    if args.struct_size < sys::PJRT_Error_Message_Args::STRUCT_SIZE {
        return;
    }
    (args.message, args.message_size) = (c"".as_ptr(), 0);
    if !args.error.is_null() {
        // SAFETY: the error is alive; the fields are the caller's.
        unsafe { message(args.error, &raw mut args.message, &raw mut args.message_size) };
    }
}

impl Entry for sys::PJRT_Error_GetCode_Args {
    unsafe fn run(&mut self) -> Result {
        let error = required(self.error.cast_mut(), "PJRT_Error_GetCode", "error")?;
        // SAFETY: the error is alive and one of ours.
        self.code = unsafe { get_code(error) };
        Ok(())
    }
}
