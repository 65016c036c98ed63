//! Host callbacks into Python: the Python package passes the interpreter's functions.

use std::ffi::c_int;

use crate::{
    api::text::{CText, text_functions},
    handlers::python::{self, Table, stacks},
};

text_functions! {
    /// Has the engine call Python for the custom calls of JAX's host callbacks. An empty text means that it does,
    /// anything else is one sentence that says why not. Calling it again changes nothing. `table` may be NULL, or is as
    /// long as its `struct_size` says; its addresses must stay valid as long as the process lives.
    pub fn pjrt_arena_install_python_callbacks(table: *const Table) -> String {
        // SAFETY: the table is NULL or valid, and its addresses as long as the process, as this function asks.
        unsafe { python::install(table) }.err().map(|error| error.message).unwrap_or_default()
    }

    /// Has each array keep the Python stack that made it from now on, or, if `enabled` is 0, no more; arrays that have
    /// one keep it. Frames of files in the folders `left_out`, one a line, are left out; NULL is none.
    /// An empty text, or one sentence where this process has no Python that tells. Threads that Python does not know
    /// make arrays without a stack.
    pub fn pjrt_arena_record_python(enabled: c_int, left_out: CText<'_>) -> String {
        let folders = left_out.to_string_lossy();
        let folders = folders.lines().filter(|folder| !folder.is_empty());
        let folders = folders.map(|folder| format!("{}/", folder.trim_end_matches('/'))).collect();
        match stacks::record(enabled != 0, folders) {
            true => String::new(),
            false => "this process has no Python of version 3.11 or newer whose functions can be found".to_owned(),
        }
    }
}

/// Whether arrays keep the Python stack that made them: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_records_python() -> c_int {
    c_int::from(stacks::is_recording())
}
