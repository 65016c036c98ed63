//! Errors of this library. An error of the engine behind is left to that.

use std::{
    ffi::{c_char, c_void},
    ptr,
};

use crate::{faults, slot, sys, table::behind};

/// The text of every error of this library.
pub const TEXT: &str = "injected fault";

/// An error as the C API sees it; it begins with its table, as errors do from 0.107 on.
#[repr(C)]
struct Own {
    table: *const sys::PJRT_Error_FunctionTable,
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

/// A new error, which its caller destroys.
pub fn new() -> *mut sys::PJRT_Error {
    Box::into_raw(Box::new(Own { table: &raw const TABLE.0 })).cast()
}

/// Whether an error that is alive is one of this library's.
///
/// # Safety
/// `error` must be NULL or alive.
pub unsafe fn is_own(error: *const sys::PJRT_Error) -> bool {
    // SAFETY: an error is at least one word long in every version, and ours begins with the address of the table.
    !error.is_null() && unsafe { error.cast::<*const sys::PJRT_Error_FunctionTable>().read() } == &raw const TABLE.0
}

unsafe extern "C" fn destroy(error: *mut sys::PJRT_Error) {
    // SAFETY: the error is one of this library's, which the caller ends once.
    drop(unsafe { Box::from_raw(error.cast::<Own>()) });
}

unsafe extern "C" fn message(_: *const sys::PJRT_Error, text: *mut *const c_char, size: *mut usize) {
    // SAFETY: the caller passes places to write to.
    unsafe { (*text, *size) = (TEXT.as_ptr().cast(), TEXT.len()) };
}

unsafe extern "C" fn get_code(_: *const sys::PJRT_Error) -> sys::PJRT_Error_Code {
    sys::PJRT_Error_Code_UNAVAILABLE
}

unsafe extern "C" fn for_each_payload(_: *const sys::PJRT_Error, _: sys::PJRT_Error_PayloadVisitor, _: *mut c_void) {
    // There are no payloads.
}

/// `PJRT_Error_Destroy`.
pub unsafe extern "C" fn error_destroy(args: *mut sys::PJRT_Error_Destroy_Args) {
    faults::next(slot!(PJRT_Error_Destroy));
    // SAFETY: the struct is the function's, and its error NULL or alive, as the C API asks.
    unsafe {
        if is_own((*args).error) {
            destroy((*args).error);
        } else {
            behind(slot!(PJRT_Error_Destroy))(args.cast());
        }
    }
}

/// `PJRT_Error_Message`; the text lives as long as the error.
pub unsafe extern "C" fn error_message(args: *mut sys::PJRT_Error_Message_Args) {
    faults::next(slot!(PJRT_Error_Message));
    // SAFETY: the struct is the function's, and its error alive, as the C API asks.
    unsafe {
        if is_own((*args).error) {
            message((*args).error, &raw mut (*args).message, &raw mut (*args).message_size);
        } else {
            behind(slot!(PJRT_Error_Message))(args.cast());
        }
    }
}

/// `PJRT_Error_GetCode` and `PJRT_Error_ForEachPayload` of an error of this library; `false` where it is not one.
///
/// # Safety
/// `args` must be the struct of the function in `slot`, whose contract holds.
pub unsafe fn answer(slot: usize, args: *mut c_void) -> bool {
    // SAFETY: the struct is the function's, and its error alive, as this function asks.
    unsafe {
        if slot == slot!(PJRT_Error_GetCode) {
            let args = args.cast::<sys::PJRT_Error_GetCode_Args>();
            let own = is_own((*args).error);
            if own {
                (*args).code = get_code((*args).error);
            }
            return own;
        }
        slot == slot!(PJRT_Error_ForEachPayload) && is_own((*args.cast::<sys::PJRT_Error_ForEachPayload_Args>()).error)
    }
}
