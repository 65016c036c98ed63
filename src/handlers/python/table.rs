//! The functions of the interpreter that the handler calls.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::{offset_of, size_of},
    sync::atomic::AtomicBool,
};

use once_cell::sync::OnceCell;

use crate::{
    error::{Error, Result},
    sys::slice,
};

/// The names under which JAX's programs call back into Python, alone and from within partitioned programs.
pub const TARGETS: [&str; 2] = ["xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"];

/// Element types have numbers below this (`XLA_FFI_DataType`).
const DATA_TYPES: usize = 64;

/// A Python object, by its address.
pub type Object = *mut c_void;

/// What Python passes: functions of its C API and of NumPy's, and objects that it keeps alive for ever.
///
/// `python/jax_plugins/arena/_callbacks.py` has the same struct.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table {
    pub(super) struct_size: usize,
    /// `object.__basicsize__`: NumPy's own fields of an array begin behind it.
    pub(super) object_size: usize,
    pub(super) is_finalizing: unsafe extern "C-unwind" fn() -> c_int,
    pub(super) gil_ensure: unsafe extern "C-unwind" fn() -> c_int,
    pub(super) gil_release: unsafe extern "C-unwind" fn(c_int),
    pub(super) inc_ref: unsafe extern "C-unwind" fn(Object),
    pub(super) dec_ref: unsafe extern "C-unwind" fn(Object),
    pub(super) vectorcall: unsafe extern "C-unwind" fn(Object, *const Object, usize, Object) -> Object,
    pub(super) tuple_item: unsafe extern "C-unwind" fn(Object, isize) -> Object,
    pub(super) error_fetch: unsafe extern "C-unwind" fn(*mut Object, *mut Object, *mut Object),
    pub(super) error_normalize: unsafe extern "C-unwind" fn(*mut Object, *mut Object, *mut Object),
    pub(super) error_clear: unsafe extern "C-unwind" fn(),
    pub(super) text: unsafe extern "C-unwind" fn(Object, *mut isize) -> *const c_char,
    /// `PyArray_NewFromDescr(type, dtype, rank, dims, strides, data, flags, parent)`.
    pub(super) array_new: unsafe extern "C-unwind" fn(
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
    pub(super) array_from: unsafe extern "C-unwind" fn(Object, Object, c_int, c_int, c_int, Object) -> Object,
    /// `PyArray_CopyInto(to, from)`.
    pub(super) array_copy: unsafe extern "C-unwind" fn(Object, Object) -> c_int,
    /// NumPy's type `ndarray`.
    pub(super) array_type: Object,
    pub(super) none: Object,
    /// `describe(type, exception, traceback) -> str`, for exceptions that end a callback.
    pub(super) describe: Object,
    /// NumPy's dtype for each element type; NULL where there is none.
    pub(super) dtypes: [Object; DATA_TYPES],
}

// SAFETY: the addresses stay valid while the process lives; objects are touched only with the GIL.
unsafe impl Send for Table {}
// SAFETY: the table is never written; objects are touched only with the GIL.
unsafe impl Sync for Table {}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one of another size, or with a NULL where none may be.
    ///
    /// # Safety
    /// `table` must be NULL or point to as many bytes as its first word says, of addresses that fit their fields.
    pub(super) unsafe fn read(table: *const Self) -> Result<Self> {
        let words = table.cast::<usize>();
        // SAFETY: the table is NULL or begins with its size, as this function asks.
        let size = unsafe { words.as_ref() }.copied().unwrap_or(0);
        if size != size_of::<Self>() {
            return Err(Error::invalid_argument(format!(
                "the table of Python's functions has {size} bytes, this library takes {}",
                size_of::<Self>()
            )));
        }
        let needed = offset_of!(Self, dtypes) / size_of::<usize>();
        // SAFETY: the table is as long as this struct, and each field before the dtypes is a word.
        if let Some(hole) = unsafe { slice(words, needed) }.iter().position(|&word| word == 0) {
            return Err(Error::invalid_argument(format!(
                "word {hole} of the table of Python's functions is 0, which only dtypes may be"
            )));
        }
        // SAFETY: the table is as long as this struct, and no function in it is NULL.
        Ok(unsafe { table.read() })
    }
}

/// The functions, once they were installed.
pub static PYTHON: OnceCell<Table> = OnceCell::new();
/// Whether the engine has asked the handler for its version, which is how it accepts one.
pub static TAKEN: AtomicBool = AtomicBool::new(false);
