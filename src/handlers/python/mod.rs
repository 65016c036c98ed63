//! Host callbacks into Python: what `jax.pure_callback`, `io_callback` and `jax.debug.*` become on CPU.
//!
//! ```text
//!  JAX      custom call "xla_ffi_python_cpu_callback" { index = 3 }, and, with each execution, its callables as user
//!           data of the execute context
//!  engine   calls `handler` with a frame: arguments, results, attributes, context
//!  here     context -> callables[3]; take the GIL; arguments -> NumPy arrays (copies, read-only); call;
//!           results -> the frame's buffers; an exception -> an FFI error with Python's traceback
//! ```
//!
//! jaxlib has such a handler in its own XLA, and does not pass on all of it (its instantiate stage is missing from
//! `custom_call_targets`), so this one replaces it.
//!
//! [`stacks`] says which Python code makes an array.
//!
//! [`interrupted`] is for waits that take long: Ctrl-C ends them (`signals.rs`).
//!
//! The library is not linked with Python, because clients without Python use it as well. `jax_plugins.arena` passes
//! the addresses of the functions and objects that are needed ([`Table`]), once. That is why no crate is used: crates
//! for Python's C API link with it.

use std::sync::atomic::Ordering;

use crate::{
    engine::{
        ffi::{self, FfiHandler},
        process,
    },
    error::Error,
    handlers::python::table::{PYTHON, TAKEN},
};

mod arrays;
mod ending;
mod frame;
mod gil;
mod handler;
mod numpy;
mod signals;
pub mod stacks;
mod table;

pub use ending::{staying_if_ending, stop_if_ending};
pub use signals::interrupted;
pub use table::Table;

/// Has the engine call Python for the custom calls of JAX's host callbacks. Calling it again changes nothing.
///
/// # Errors
/// A table that is NULL or too short, or an engine that does not take the handler.
///
/// # Safety
/// `table` must be NULL or point to a [`Table`] of `struct_size` bytes whose addresses stay valid as long as the
/// process lives.
pub unsafe fn install(table: *const Table) -> Result<(), Error> {
    if TAKEN.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the table is NULL or valid, as this function asks.
    let python = unsafe { Table::read(table)? };
    // The first table stays.
    let _ = PYTHON.set(python);
    let engine = process::engine()?;
    // SAFETY: it is a handler, and this library is never unloaded.
    let handler = unsafe { FfiHandler::new(handler::handler) };
    for target in table::TARGETS {
        ffi::register_plainly(engine, target, "Host", handler, 0)?;
    }
    if !TAKEN.load(Ordering::Acquire) {
        // The engine refuses without an error.
        return Err(Error::unimplemented(format!(
            "the engine {} did not take the handler of Python callbacks",
            engine.path().display()
        )));
    }
    Ok(())
}
