//! Host callbacks into Python: the Python package passes the interpreter's functions.

use std::ffi::c_char;

use crate::{
    api::control::{tell, write_text},
    handlers::python::{self, Table},
};

/// Has the engine call Python for the custom calls of JAX's host callbacks. An empty text means that it does, anything
/// else is one sentence that says why not. Calling it again changes nothing.
///
/// # Safety
/// `table` must be NULL or point to a [`Table`] of `struct_size` bytes whose addresses stay valid as long as the
/// process lives; `buffer` must be NULL or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_install_python_callbacks(
    table: *const Table,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the table is NULL or valid, and its addresses as long as the process, as this function asks.
    let sentence = tell(|| unsafe { python::install(table) }.err().map(|error| error.message).unwrap_or_default());
    // SAFETY: the buffer is NULL or has `capacity` bytes, as this function asks.
    unsafe { write_text(&sentence, buffer, capacity) }
}
