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
    engine::process,
    error::{Code, Error},
    sys::{self, CStruct},
};

/// An error of pjrt-arena.
#[repr(C)]
pub struct Own {
    table: *const sys::PJRT_Error_FunctionTable,
    /// The error.
    pub error: Error,
}

struct Table(sys::PJRT_Error_FunctionTable);

// SAFETY: the table is never written, so several threads may read it at once.
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

/// Passes the error to the caller of the C API, who destroys it with `PJRT_Error_Destroy`.
pub fn into_raw(error: Error) -> *mut sys::PJRT_Error {
    Box::into_raw(Box::new(Own { table: &raw const TABLE.0, error })).cast()
}

/// The error of pjrt-arena behind the handle, if it is one.
///
/// # Safety
/// `error` must be NULL or a live error, pjrt-arena's or the engine's.
pub unsafe fn own<'a>(error: *const sys::PJRT_Error) -> Option<&'a Own> {
    if error.is_null() {
        return None;
    }
    // SAFETY: the error is alive, as this function asks; errors of this library and of every engine are at least one
    // word long.
    let first = unsafe { ptr::read(error.cast::<*const sys::PJRT_Error_FunctionTable>()) };
    // SAFETY: only errors of this library begin with the address of this table, and the error is alive.
    ptr::eq(first, &raw const TABLE.0).then(|| unsafe { &*error.cast::<Own>() })
}

unsafe extern "C" fn destroy(error: *mut sys::PJRT_Error) {
    if !error.is_null() {
        // SAFETY: this function is in the table of this library's errors alone; they are boxes, destroyed once.
        drop(unsafe { Box::from_raw(error.cast::<Own>()) });
    }
}

unsafe extern "C" fn message(error: *const sys::PJRT_Error, text: *mut *const c_char, size: *mut usize) {
    // SAFETY: the error is alive during the call, as the function's contract asks.
    if let Some(own) = unsafe { own(error) } {
        // SAFETY: both pointers are valid, as the function's contract asks.
        unsafe {
            *text = own.error.message.as_ptr().cast();
            *size = own.error.message.len();
        }
    }
}

unsafe extern "C" fn get_code(error: *const sys::PJRT_Error) -> sys::PJRT_Error_Code {
    // SAFETY: the error is alive during the call, as the function's contract asks.
    sys::PJRT_Error_Code(unsafe { own(error) }.map_or(Code::Internal, |own| own.error.code) as u32)
}

unsafe extern "C" fn for_each_payload(_: *const sys::PJRT_Error, _: sys::PJRT_Error_PayloadVisitor, _: *mut c_void) {
    // Errors of this library carry no payload.
}

/// The caller's struct, unless it is NULL or too short to be one: these two functions cannot report an error.
///
/// # Safety
/// `args` must be NULL or point to a struct of `struct_size` bytes that no other thread uses during the call.
unsafe fn whole<'a, A: CStruct>(args: *mut A) -> Option<&'a mut A> {
    // SAFETY: the struct is NULL or valid, and this thread's during the call, as this function asks; every struct of
    // the C API begins with its size.
    unsafe { (!args.is_null() && args.cast::<usize>().read() >= A::STRUCT_SIZE).then(|| &mut *args) }
}

/// `PJRT_Error_Destroy`; NULL is fine.
///
/// # Safety
/// `args` must be NULL or valid, the error pjrt-arena's or the engine's, alive, and not be used again.
pub unsafe extern "C" fn error_destroy(args: *mut sys::PJRT_Error_Destroy_Args) {
    // SAFETY: the struct is NULL or valid, as this function asks.
    let Some(error) = (unsafe { args.as_ref() }).map(|args| args.error).filter(|error| !error.is_null()) else {
        return;
    };
    // SAFETY: the error is alive; each side destroys its own.
    unsafe {
        if own(error).is_some() {
            destroy(error);
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
    // SAFETY: the struct is NULL or valid, and this thread's during the call, as this function asks.
    let Some(fields) = (unsafe { whole(args) }) else { return };
    // SAFETY: the error is alive during the call, as the function's contract asks.
    if let Some(own) = unsafe { own(fields.error) } {
        fields.message = own.error.message.as_ptr().cast();
        fields.message_size = own.error.message.len();
    } else if fields.error.is_null() {
        fields.message = c"".as_ptr();
        fields.message_size = 0;
    } else if let Some(theirs) = process::engine().ok().and_then(|engine| engine.table().PJRT_Error_Message) {
        // SAFETY: the struct is valid, and its error the engine's, alive.
        unsafe { theirs(args) };
    }
}
