//! `PJRT_Error`: pjrt-arena's or the engine's, told apart by the first word.
//!
//! From PJRT 0.107 on an error begins with a pointer to its function table, and the engine itself calls through it;
//! before that the first word is the engine's own (an `absl::Status`), which never is the address of the table here.

use std::{
    ffi::{c_char, c_void},
    mem::size_of,
    ptr,
};

use crate::{
    api::{
        call::Call,
        owned::{delete, owned},
    },
    engine::process,
    error::{Code, Error},
    sys::{self, CStruct},
};

/// An error of pjrt-arena.
#[repr(C)]
pub struct Own {
    table: &'static Table,
    /// The error.
    pub error: Error,
}

#[repr(transparent)]
struct Table(sys::PJRT_Error_FunctionTable);

// SAFETY: the table is never written, so several threads may read it at once.
unsafe impl Sync for Table {}

static TABLE: Table = Table(sys::PJRT_Error_FunctionTable {
    struct_size: size_of::<sys::PJRT_Error_FunctionTable>(),
    instance_size: size_of::<Own>(),
    extension_start: ptr::null_mut(),
    destroy: Some(delete::<Own, sys::PJRT_Error>),
    message: Some(message),
    get_code: Some(get_code),
    for_each_payload: Some(for_each_payload),
});

/// Passes the error to the caller of the C API, who destroys it with `PJRT_Error_Destroy`.
pub fn into_raw(error: Error) -> *mut sys::PJRT_Error {
    owned(Own { table: &TABLE, error }).0
}

/// The error of pjrt-arena behind the handle, if it is one.
///
/// # Safety
/// `error` must be NULL or a live error, pjrt-arena's or the engine's.
unsafe fn own<'a>(error: *const sys::PJRT_Error) -> Option<&'a Own> {
    // SAFETY: the error is NULL or alive, as this function asks; errors of this library and of every engine are at
    // least one word long, and only those of this library begin with the address of this table.
    unsafe {
        let first = error.cast::<*const Table>();
        (!error.is_null() && ptr::eq(first.read(), &raw const TABLE)).then(|| &*error.cast::<Own>())
    }
}

macro_rules! errors {
    ($($args:ident)*) => {$(
        impl<'a> Call<'a, sys::$args> {
            /// The error, if it is one of pjrt-arena.
            pub fn own_error(&self) -> Option<&'a Own> {
                // SAFETY: the error is NULL or alive during the call, as `Call::new` asks.
                unsafe { own(self.error) }
            }
        }
    )*};
}

errors! { PJRT_Error_Message_Args PJRT_Error_GetCode_Args PJRT_Error_ForEachPayload_Args }

unsafe extern "C" fn message(error: *const sys::PJRT_Error, text: *mut *const c_char, size: *mut usize) {
    // SAFETY: the error is alive during the call, and both pointers are valid, as the function's contract asks.
    unsafe {
        if let Some(own) = own(error) {
            (*text, *size) = (own.error.message.as_ptr().cast(), own.error.message.len());
        }
    }
}

unsafe extern "C" fn get_code(error: *const sys::PJRT_Error) -> sys::PJRT_Error_Code {
    // SAFETY: the error is alive during the call, as the function's contract asks.
    sys::PJRT_Error_Code(unsafe { own(error) }.map_or(Code::Internal, |own| own.error.code) as u32)
}

extern "C" fn for_each_payload(_: *const sys::PJRT_Error, _: sys::PJRT_Error_PayloadVisitor, _: *mut c_void) {
    // Errors of this library carry no payload.
}

/// `PJRT_Error_Destroy`; NULL is fine.
///
/// # Safety
/// `args` must be NULL or valid, the error pjrt-arena's or the engine's, alive, and not be used again.
pub unsafe extern "C" fn error_destroy(args: *mut sys::PJRT_Error_Destroy_Args) {
    // SAFETY: the struct is NULL or valid, and the error NULL or alive, as this function asks; each side destroys its
    // own.
    unsafe {
        let Some(error) = args.as_ref().map(|args| args.error).filter(|error| !error.is_null()) else { return };
        if own(error).is_some() {
            delete::<Own, _>(error);
        } else if let Some(theirs) = process::engine().ok().and_then(|engine| engine.table().PJRT_Error_Destroy) {
            theirs(args);
        }
    }
}

/// `PJRT_Error_Message`; the text lives as long as the error.
///
/// # Safety
/// `args` must be NULL or valid, the error pjrt-arena's or the engine's, and alive.
pub unsafe extern "C" fn error_message(args: *mut sys::PJRT_Error_Message_Args) {
    // SAFETY: the struct is NULL or valid, begins with its size, and is this thread's during the call, as this function
    // asks. One that is too short is left alone: this function cannot report an error.
    let whole = unsafe {
        let is_whole = !args.is_null() && args.cast::<usize>().read() >= sys::PJRT_Error_Message_Args::STRUCT_SIZE;
        is_whole.then(|| Call::new(&mut *args))
    };
    let Some(call) = whole else { return };
    let message = match call.own_error() {
        Some(own) => own.error.message.as_str(),
        // A C string too, for callers that do not look at the length.
        None if call.error.is_null() => &"\0"[..0],
        None => {
            if let Some(theirs) = process::engine().ok().and_then(|engine| engine.table().PJRT_Error_Message) {
                // SAFETY: the struct is valid, as a call's is, and its error the engine's, alive.
                unsafe { theirs(call.out()) };
            }
            return;
        }
    };
    let out = call.out();
    (out.message, out.message_size) = (message.as_ptr().cast(), message.len());
}
