//! The edge between C and Rust: argument structs of any version, panics, errors.

use std::{
    any::Any,
    ffi::c_char,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
};

use crate::{
    abi::{Args, fitted},
    cpu,
    error::{Error, Result},
    sys::{self, CStruct},
};

/// A function that we answer ourselves.
pub trait Entry: CStruct {
    /// The function's body.
    ///
    /// # Safety
    /// The fields must satisfy the contract of the PJRT function: handles alive, pointers valid for the call.
    unsafe fn run(&mut self) -> Result;
}

/// The exported function for a struct that we answer ourselves.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn entry<A: Entry>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: the caller's promise, handed on.
    guard(A::NAME, || unsafe {
        check_size(args)?;
        fitted(args, A::STRUCT_SIZE..=A::STRUCT_SIZE, A::STRUCT_SIZE, |args| (*args).run())
    })
}

/// The exported function for a struct that goes to the CPU engine as it is.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn pass<A: Args>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: the caller's promise, handed on.
    guard(A::FUNCTION, || unsafe {
        check_size(args)?;
        cpu::engine()?.pass(args)
    })
}

/// The exported function for what this engine does not do.
///
/// # Safety
/// Any pointer may be passed.
pub unsafe extern "C" fn refuse<A: Args>(_: *mut A) -> *mut sys::PJRT_Error {
    Error::unimplemented(format!("{} is not implemented by the fake CUDA engine", A::FUNCTION)).into_raw()
}

/// Refuses a struct that is missing or too short.
///
/// # Safety
/// `args` must be NULL or point to a struct of `struct_size` bytes.
unsafe fn check_size<A: CStruct>(args: *const A) -> Result {
    if args.is_null() {
        return Err(Error::invalid(format!("{}: the argument struct is NULL", A::NAME)));
    }
    // SAFETY: every argument struct begins with its size.
    let size = unsafe { args.cast::<usize>().read() };
    if size < A::MIN_SIZE {
        return Err(Error::invalid(format!(
            "Unexpected {} size: expected at least {}, got {size}. Check installed software versions.",
            A::NAME,
            A::MIN_SIZE
        )));
    }
    Ok(())
}

/// Runs `body`; failures and panics become error objects.
pub fn guard(function: &str, body: impl FnOnce() -> Result) -> *mut sys::PJRT_Error {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(error)) => error.into_raw(),
        Err(panic) => Error::internal(format!("{function} panicked: {}", panicked(&*panic))).into_raw(),
    }
}

/// The text of a panic.
pub fn panicked(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// The values that a C array holds; NULL is empty.
///
/// # Safety
/// `data` must be NULL or point to `len` values that live for `'a`.
pub unsafe fn list<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data, len) }
}

/// The text that a C pointer and a length hold.
///
/// # Safety
/// As for [`list`].
pub unsafe fn text(data: *const c_char, len: usize) -> String {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { list(data.cast::<u8>(), len) }).into_owned()
}

/// INVALID_ARGUMENT for a handle that must not be NULL.
pub fn required<T>(handle: *mut T, function: &str, field: &str) -> Result<*mut T> {
    if handle.is_null() {
        return Err(Error::invalid(format!("{function}: {field} is NULL")));
    }
    Ok(handle)
}
