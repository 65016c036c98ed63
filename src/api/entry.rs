//! The edge between C and Rust: every exported function passes through here.
//!
//! A caller's argument struct may be NULL, shorter than ours (an older framework) or longer (a newer one). A shorter
//! one is extended with zeros, and what the function wrote comes back up to the caller's size; one that is shorter
//! than any version allows is refused. What goes to the engine keeps a longer one's tail; functions of ours do not see
//! it. Panics end here as INTERNAL errors.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use super::{error, plugin};
use crate::{
    engine::{Args, EngineError, fitted},
    error::{Code, Error},
    sys::{self, CStruct},
};

/// Why an entry point failed.
#[derive(Debug)]
pub enum Failure {
    /// Our own word.
    Own(Error),
    /// The engine's, handed on as it is.
    Engine(EngineError),
}

impl Failure {
    /// Whether it says that memory, or another bounded resource, is exhausted.
    pub fn is_exhausted(&self) -> bool {
        match self {
            Self::Own(error) => error.code == Code::ResourceExhausted,
            Self::Engine(error) => error.is_exhausted(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// What an entry point gives.
pub type Outcome<T = ()> = Result<T, Failure>;

/// A PJRT function that we answer ourselves.
pub trait Entry: CStruct {
    /// The function's body.
    ///
    /// # Safety
    /// The fields must satisfy the contract of the PJRT function: handles alive, pointers valid for the call.
    unsafe fn run(&mut self) -> Outcome;
}

/// The exported function for a struct that we answer ourselves.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn entry<A: Entry>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: the caller's promise, handed on.
    guard(function_name::<A>(), || unsafe {
        check_size(args)?;
        // A body may write the whole of the struct that we know, so a longer one is shielded from it.
        fitted(args, A::STRUCT_SIZE..=A::STRUCT_SIZE, A::STRUCT_SIZE, |args| (*args).run())
    })
}

/// The exported function for a struct that goes to the engine as it is.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn pass<A: Args>(args: *mut A) -> *mut sys::PJRT_Error {
    guard(A::FUNCTION, || {
        let engine = plugin::engine()?;
        let Some(function) = engine.slot(A::SLOT) else {
            return Err(Error::unimplemented(format!(
                "the engine {} (PJRT C API 0.{}) has no function {}",
                engine.path().display(),
                engine.minor(),
                A::FUNCTION
            ))
            .into());
        };
        // SAFETY: the caller's promise, handed on; the slot belongs to `A`.
        unsafe {
            check_size(args)?;
            Ok(engine.invoke(args, function)?)
        }
    })
}

/// The function that takes an argument struct.
fn function_name<A: CStruct>() -> &'static str {
    A::NAME.strip_suffix("_Args").unwrap_or(A::NAME)
}

/// Refuses a struct that is missing, or shorter than any caller's may be.
///
/// # Safety
/// `args` must be NULL or point to a struct of `struct_size` bytes.
unsafe fn check_size<A: CStruct>(args: *const A) -> Outcome {
    if args.is_null() {
        return Err(Error::invalid_argument(format!("{}: the argument struct is NULL", function_name::<A>())).into());
    }
    // SAFETY: every argument struct begins with its size.
    let size = unsafe { args.cast::<usize>().read() };
    if size < A::MIN_SIZE {
        return Err(Error::invalid_argument(format!(
            "Unexpected {} size: expected at least {}, got {size}. Check installed software versions.",
            A::NAME,
            A::MIN_SIZE
        ))
        .into());
    }
    Ok(())
}

/// Runs `body`; failures and panics become error objects, which the caller of the C API owns.
fn guard(function: &'static str, body: impl FnOnce() -> Outcome) -> *mut sys::PJRT_Error {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(Failure::Own(own))) => error::into_raw(own),
        Ok(Err(Failure::Engine(engine))) => engine.into_raw().unwrap_or_else(error::into_raw),
        Err(panic) => {
            let what = panicked(&*panic);
            log::error!("{function} panicked: {what}");
            error::into_raw(Error::new(Code::Internal, format!("{function} panicked: {what}; this is a bug")))
        }
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

/// The slice that a C array describes; NULL is empty.
///
/// # Safety
/// `data` must be NULL or point to `len` values that live for `'a`.
pub unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// The text that a C pointer and length describe.
///
/// # Safety
/// As for [`slice()`].
pub unsafe fn text<'a>(data: *const std::ffi::c_char, len: usize) -> std::borrow::Cow<'a, str> {
    // SAFETY: the caller's promise.
    String::from_utf8_lossy(unsafe { slice(data.cast::<u8>(), len) })
}

/// INVALID_ARGUMENT that names a handle which must not be NULL.
pub fn required<T>(handle: *mut T, function: &str, field: &str) -> Outcome<*mut T> {
    if handle.is_null() {
        return Err(Error::invalid_argument(format!("{function}: {field} is NULL")).into());
    }
    Ok(handle)
}
