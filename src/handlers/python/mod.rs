//! Host callbacks into Python: what `jax.pure_callback`, `io_callback` and `jax.debug.*` become on CPU.
//!
//! ```text
//!  JAX      custom call "xla_ffi_python_cpu_callback" { index = 3 }   and, with each run, the run's callables
//!                                                                     as user data of its execute context
//!  engine   calls `handler` with a frame: arguments, results, attributes, context
//!  here     context -> callables[3]; take the GIL; arguments -> NumPy arrays (copies, read-only); call;
//!           results -> the frame's buffers; an exception -> an FFI error with Python's traceback
//! ```
//!
//! jaxlib has such a handler in its own XLA, and does not hand out all of it (its instantiate stage is missing from
//! `custom_call_targets`), so this one stands in for it.
//!
//! The library is not linked with Python, because clients without Python use it as well. `jax_plugins.arena` passes in
//! the addresses of the functions and objects that are needed ([`Table`]), once. Which is why there is no crate for it:
//! those that know Python's C API link with it.

mod arrays;
mod gil;
mod handler;

use std::{
    ffi::{c_char, c_int, c_void},
    mem::{offset_of, size_of},
    sync::atomic::{AtomicBool, Ordering},
};

use once_cell::sync::OnceCell;

use crate::{
    engine::{ffi, process},
    error::{Error, Result},
    sys::slice,
};

/// The names under which JAX's programs call back into Python, alone and from within partitioned programs.
const TARGETS: [&str; 2] = ["xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"];

/// Element types have numbers below this (`XLA_FFI_DataType`).
const DATA_TYPES: usize = 64;

/// A Python object, by its address.
type Object = *mut c_void;

/// What Python passes in: functions of its C API and of NumPy's, and objects that it keeps alive for ever.
///
/// `python/jax_plugins/arena/_callbacks.py` has the same struct.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table {
    struct_size: usize,
    /// `object.__basicsize__`: NumPy's own fields of an array begin behind it.
    object_size: usize,
    is_finalizing: unsafe extern "C-unwind" fn() -> c_int,
    gil_ensure: unsafe extern "C-unwind" fn() -> c_int,
    gil_release: unsafe extern "C-unwind" fn(c_int),
    inc_ref: unsafe extern "C-unwind" fn(Object),
    dec_ref: unsafe extern "C-unwind" fn(Object),
    vectorcall: unsafe extern "C-unwind" fn(Object, *const Object, usize, Object) -> Object,
    tuple_item: unsafe extern "C-unwind" fn(Object, isize) -> Object,
    error_fetch: unsafe extern "C-unwind" fn(*mut Object, *mut Object, *mut Object),
    error_normalize: unsafe extern "C-unwind" fn(*mut Object, *mut Object, *mut Object),
    error_clear: unsafe extern "C-unwind" fn(),
    text: unsafe extern "C-unwind" fn(Object, *mut isize) -> *const c_char,
    /// `PyArray_NewFromDescr(type, dtype, rank, dims, strides, data, flags, parent)`.
    array_new: unsafe extern "C-unwind" fn(
        Object,
        Object,
        c_int,
        *const i64,
        *const i64,
        *mut c_void,
        c_int,
        Object,
    ) -> Object,
    /// `PyArray_FromAny(value, dtype, least rank, highest rank, flags, context)`.
    array_from: unsafe extern "C-unwind" fn(Object, Object, c_int, c_int, c_int, Object) -> Object,
    /// `PyArray_CopyInto(to, from)`.
    array_copy: unsafe extern "C-unwind" fn(Object, Object) -> c_int,
    /// NumPy's type `ndarray`.
    array_type: Object,
    none: Object,
    /// `describe(type, exception, traceback) -> str`, for exceptions that end a callback.
    describe: Object,
    /// NumPy's dtype for each element type; NULL where there is none.
    dtypes: [Object; DATA_TYPES],
}

// SAFETY: addresses that stay valid while the process lives; objects are touched only with the GIL.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one of another size, or with a NULL where none may be.
    ///
    /// # Safety
    /// `table` must be NULL or point to as many bytes as its first word says, of addresses that fit their fields.
    unsafe fn read(table: *const Self) -> Result<Self> {
        let words = table.cast::<usize>();
        // SAFETY: the caller's promise.
        let size = unsafe { words.as_ref() }.copied().unwrap_or(0);
        if size != size_of::<Self>() {
            return Err(Error::invalid_argument(format!(
                "the table of Python's functions has {size} bytes, this library takes {}",
                size_of::<Self>()
            )));
        }
        let needed = offset_of!(Self, dtypes) / size_of::<usize>();
        // SAFETY: the table is as long as ours, and each field before the dtypes is a word.
        if let Some(hole) = unsafe { slice(words, needed) }.iter().position(|&word| word == 0) {
            return Err(Error::invalid_argument(format!(
                "word {hole} of the table of Python's functions is 0, which only dtypes may be"
            )));
        }
        // SAFETY: as long as ours, and no function in it is NULL.
        Ok(unsafe { table.read() })
    }
}

static PYTHON: OnceCell<Table> = OnceCell::new();
/// The engine has asked the handler for its version, which is how it takes one.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Has the engine call Python for the custom calls of JAX's host callbacks. Calling it again changes nothing.
///
/// # Errors
/// A table that is NULL or too short, or an engine that does not take the handler.
///
/// # Safety
/// `table` must be NULL or point to a [`Table`] of `struct_size` bytes whose addresses stay valid as long as the process
/// lives.
pub unsafe fn install(table: *const Table) -> Result<()> {
    if TAKEN.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let python = unsafe { Table::read(table)? };
    // Who came first stays.
    let _ = PYTHON.set(python);
    let engine = process::engine()?;
    for target in TARGETS {
        ffi::register_plainly(engine, target, "Host", handler::handler, 0)?;
    }
    if !TAKEN.load(Ordering::Acquire) {
        // The engine refuses in silence.
        return Err(Error::unimplemented(format!(
            "the engine {} did not take the handler of Python callbacks",
            engine.path().display()
        )));
    }
    Ok(())
}
