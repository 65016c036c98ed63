//! Host callbacks into Python: the Python package passes the interpreter's functions.

use crate::{
    api::text::text_functions,
    handlers::python::{self, Table},
};

text_functions! {
    /// Has the engine call Python for the custom calls of JAX's host callbacks. An empty text means that it does,
    /// anything else is one sentence that says why not. Calling it again changes nothing. `table` may be NULL, or is as
    /// long as its `struct_size` says; its addresses must stay valid as long as the process lives.
    pub fn pjrt_arena_install_python_callbacks(table: *const Table) -> String {
        // SAFETY: the table is NULL or valid, and its addresses as long as the process, as this function asks.
        unsafe { python::install(table) }.err().map(|error| error.message).unwrap_or_default()
    }
}
