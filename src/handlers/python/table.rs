//! The functions of the interpreter that the handler calls.

use std::{
    ffi::{c_char, c_int, c_void},
    marker::PhantomData,
    mem::{self, offset_of, size_of},
    ptr::NonNull,
    sync::atomic::AtomicBool,
    thread,
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

/// A Python object that somebody keeps alive for `'a`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Borrowed<'a>(NonNull<c_void>, PhantomData<&'a c_void>);

// SAFETY: it is an address; the object is touched only with the GIL.
unsafe impl Send for Borrowed<'_> {}
// SAFETY: as above.
unsafe impl Sync for Borrowed<'_> {}

impl Borrowed<'_> {
    /// Where the object is.
    pub(super) fn address(self) -> NonNull<c_void> {
        self.0
    }
}

/// A reference to a Python object that its holder owns and gives up with it.
#[must_use]
#[repr(transparent)]
pub struct New(NonNull<c_void>);

// SAFETY: it is an address; the object is touched only with the GIL.
unsafe impl Send for New {}

impl New {
    /// The object, alive as long as this reference.
    pub(super) fn borrow(&self) -> Borrowed<'_> {
        Borrowed(self.0, PhantomData)
    }
}

/// What Python passes: functions of its C API and of NumPy's, and objects that it keeps alive for ever. All but
/// `is_finalizing` and `gil_ensure` may be called only with the GIL.
///
/// `python/jax_plugins/arena/_callbacks.py` has the same struct.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Table {
    struct_size: usize,
    /// `object.__basicsize__`: NumPy's own fields of an array begin behind it.
    pub(super) object_size: usize,
    is_finalizing: unsafe extern "C-unwind" fn() -> c_int,
    pub(super) gil_ensure: unsafe extern "C-unwind" fn() -> c_int,
    pub(super) gil_release: unsafe extern "C-unwind" fn(c_int),
    pub(super) inc_ref: unsafe extern "C-unwind" fn(Borrowed<'_>),
    pub(super) dec_ref: unsafe extern "C-unwind" fn(New),
    pub(super) vectorcall:
        unsafe extern "C-unwind" fn(Borrowed<'_>, *const Borrowed<'_>, usize, Option<Borrowed<'_>>) -> Option<New>,
    pub(super) tuple_item: for<'a> unsafe extern "C-unwind" fn(Borrowed<'a>, isize) -> Option<Borrowed<'a>>,
    pub(super) error_fetch: unsafe extern "C-unwind" fn(&mut Option<New>, &mut Option<New>, &mut Option<New>),
    pub(super) error_normalize: unsafe extern "C-unwind" fn(&mut Option<New>, &mut Option<New>, &mut Option<New>),
    pub(super) error_clear: unsafe extern "C-unwind" fn(),
    pub(super) text: unsafe extern "C-unwind" fn(Borrowed<'_>, &mut isize) -> *const c_char,
    /// `PyArray_NewFromDescr(type, dtype, rank, dims, strides, data, flags, parent)`.
    pub(super) array_new: unsafe extern "C-unwind" fn(
        Borrowed<'_>,
        Option<New>,
        c_int,
        *const i64,
        *const i64,
        *mut c_void,
        c_int,
        Option<Borrowed<'_>>,
    ) -> Option<New>,
    /// `PyArray_FromAny(value, dtype, least rank, highest rank, flags, context)`.
    pub(super) array_from: unsafe extern "C-unwind" fn(
        Borrowed<'_>,
        Option<New>,
        c_int,
        c_int,
        c_int,
        Option<Borrowed<'_>>,
    ) -> Option<New>,
    /// `PyArray_CopyInto(to, from)`.
    pub(super) array_copy: unsafe extern "C-unwind" fn(Borrowed<'_>, Borrowed<'_>) -> c_int,
    /// NumPy's type `ndarray`.
    pub(super) array_type: Borrowed<'static>,
    pub(super) none: Borrowed<'static>,
    /// `describe(type, exception, traceback) -> str`, for exceptions that end a callback.
    pub(super) describe: Borrowed<'static>,
    /// NumPy's dtype for each element type; NULL where there is none.
    pub(super) dtypes: [Option<Borrowed<'static>>; DATA_TYPES],
}

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
        // SAFETY: the table is NULL, or begins with its size and is as long, as this function asks.
        let words = unsafe { slice(words, words.as_ref().map_or(0, |size| size / size_of::<usize>())) };
        let size = words.first().copied().unwrap_or(0);
        if size != size_of::<Self>() {
            return Err(Error::invalid_argument(format!(
                "the table of Python's functions has {size} bytes, this library takes {}",
                size_of::<Self>()
            )));
        }
        let needed = offset_of!(Self, dtypes) / size_of::<usize>();
        if let Some(hole) = words[..needed].iter().position(|&word| word == 0) {
            return Err(Error::invalid_argument(format!(
                "word {hole} of the table of Python's functions is 0, which only dtypes may be"
            )));
        }
        // SAFETY: the table is as long as this struct, no function or object in it that may not be is NULL, and the
        // addresses fit their fields, as this function asks.
        Ok(unsafe { table.read() })
    }

    /// Whether the interpreter is ending.
    pub(super) fn is_ending(&self) -> bool {
        // SAFETY: the function is Python's own, and may be called without the GIL.
        unsafe { (self.is_finalizing)() != 0 }
    }

    /// Stops this thread for good if the interpreter is ending.
    ///
    /// Python up to 3.13 then ends each other thread that wants the GIL back, in the middle of its callback, by
    /// unwinding its stack. That must not reach the engine's frames, which would abort the process; nothing of Python
    /// may be touched either. Waiting until the process is gone is what Python itself does from 3.14 on.
    pub(super) fn stop_if_ending(&self) {
        while self.is_ending() {
            thread::park();
        }
    }

    /// Calls what may wait for the GIL. If the interpreter ends meanwhile, this thread stops here for good: see
    /// [`Self::stop_if_ending`].
    pub(super) fn staying_if_ending<T>(&self, wait: impl FnOnce() -> T) -> T {
        struct Stay<'a>(&'a Table);
        impl Drop for Stay<'_> {
            fn drop(&mut self) {
                self.0.stop_if_ending();
            }
        }
        let stay = Stay(self);
        let outcome = wait();
        mem::forget(stay);
        outcome
    }
}

/// The functions, once they were installed.
pub static PYTHON: OnceCell<Table> = OnceCell::new();
/// Whether the engine has asked the handler for its version, which is how it accepts one.
pub static TAKEN: AtomicBool = AtomicBool::new(false);
