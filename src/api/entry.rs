//! The edge between C and Rust: every exported function passes through here.
//!
//! A caller's argument struct may be NULL, shorter than this library's (an older framework) or longer (a newer one).
//! A shorter one is extended with zeros, and what the function wrote is copied back up to the caller's size; one that
//! is shorter than any version allows is refused. The engine gets the end of a longer one too; functions of this
//! library do not see it. Panics end here as INTERNAL errors.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use crate::{
    api::{call::Call, control::on_oom, own_error},
    engine::{Args, Failure, Outcome, failure::panicked, fitted, process},
    error::{Code, Error},
    sys::{self, CStruct},
};

/// Words of zero behind the table, and behind each extension.
pub const PADDING: usize = 64;

/// A table or an extension in memory, with words of zero behind it. It lives until the process ends.
pub fn padded<T>(value: T) -> *mut T {
    #[repr(C)]
    struct Padded<T> {
        value: T,
        padding: [usize; PADDING],
    }
    ptr::from_mut(Box::leak(Box::new(Padded { value, padding: [0; PADDING] }))).cast()
}

/// A PJRT function that this library implements.
pub trait Entry: CStruct {
    /// The function's body.
    ///
    /// # Errors
    /// What the caller is told: an error of this library, or the engine's.
    fn run(call: Call<'_, Self>) -> Outcome;
}

/// The exported function for a struct of such a function.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn entry<A: Entry>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: as this function asks.
    unsafe { enter(args, A::run) }
}

/// As [`entry`], with a body of its own.
///
/// # Safety
/// As for [`entry`].
#[inline(always)]
pub unsafe fn enter<A: CStruct>(args: *mut A, body: impl FnOnce(Call<'_, A>) -> Outcome) -> *mut sys::PJRT_Error {
    guard(Call::<A>::FUNCTION, || {
        // SAFETY: the struct is NULL, or as long as it says, begins with its size, and is valid for its function, which
        // it is passed to once, as the C API asks of its callers.
        unsafe {
            check_size::<A>(args.cast::<usize>().as_ref())?;
            // A body may write all fields that this library knows, so it gets a copy of a longer struct.
            fitted(args, A::STRUCT_SIZE..=A::STRUCT_SIZE, A::STRUCT_SIZE, |args| body(Call::new(&mut *args)))
        }
    })
}

/// The exported function for a struct that goes to the engine unchanged.
///
/// # Safety
/// `args` must be NULL or point to the function's argument struct, `struct_size` bytes long.
pub unsafe extern "C" fn pass<A: Args>(args: *mut A) -> *mut sys::PJRT_Error {
    // SAFETY: the struct is NULL, or as long as it says and valid for its function, as the C API asks of its callers.
    match process::loaded().and_then(|(engine, _)| unsafe { engine.invoke_fitting(args) }) {
        Some(Ok(error)) => error,
        Some(Err(thrown)) => guard(A::FUNCTION, || Err(thrown.end().into())),
        // SAFETY: as above; nothing was called.
        None => unsafe { pass_fitted(args) },
    }
}

/// As [`pass`], for the first call, for structs of other versions and for functions that the engine lacks.
///
/// # Safety
/// As for [`pass`].
#[cold]
#[inline(never)]
unsafe fn pass_fitted<A: Args>(args: *mut A) -> *mut sys::PJRT_Error {
    guard(A::FUNCTION, || {
        let engine = process::engine()?;
        let Some(function) = engine.slot(A::SLOT) else {
            return Err(Error::unimplemented(format!(
                "the engine {} (PJRT C API 0.{}) has no function {}",
                engine.path().display(),
                engine.minor(),
                A::FUNCTION
            ))
            .into());
        };
        // SAFETY: the struct is NULL, or as long as it says and valid for its function, as the C API asks of its
        // callers; the slot belongs to `A`.
        unsafe {
            check_size::<A>(args.cast::<usize>().as_ref())?;
            Ok(engine.invoke(args, function)?)
        }
    })
}

/// Refuses a struct that is missing, or shorter than any caller's may be; `size` is its first field.
#[inline]
fn check_size<A: CStruct>(size: Option<&usize>) -> Outcome {
    match size {
        Some(&size) if size >= A::MIN_SIZE => Ok(()),
        size => Err(refused(Call::<A>::FUNCTION, A::NAME, A::MIN_SIZE, size)),
    }
}

/// Why a struct is refused.
#[cold]
#[inline(never)]
fn refused(function: &str, name: &str, least: usize, size: Option<&usize>) -> Failure {
    Error::invalid_argument(match size {
        None => format!("{function}: the argument struct is NULL"),
        Some(size) => {
            format!("Unexpected {name} size: expected at least {least}, got {size}. Check installed software versions.")
        }
    })
    .into()
}

/// Runs `body`; failures and panics become error objects, which the caller of the C API owns.
// What fails is out of line, so that a call that succeeds saves few registers: this is part of every call.
#[inline]
fn guard(function: &'static str, body: impl FnOnce() -> Outcome) -> *mut sys::PJRT_Error {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(failure)) => failed(failure),
        Err(panic) => has_panicked(function, &*panic),
    }
}

/// The error object of a call that failed.
#[cold]
#[inline(never)]
fn failed(failure: Failure) -> *mut sys::PJRT_Error {
    // The call is over: what it had locked is free.
    on_oom::tell(&failure);
    match failure {
        Failure::Own(own) => own_error::into_raw(own),
        Failure::Engine(engine) => engine.into_raw().unwrap_or_else(own_error::into_raw),
    }
}

/// The error object of a call that panicked.
#[cold]
#[inline(never)]
fn has_panicked(function: &str, panic: &(dyn Any + Send)) -> *mut sys::PJRT_Error {
    let what = panicked(panic);
    log::error!("{function} panicked: {what}");
    own_error::into_raw(Error::new(Code::Internal, format!("{function} panicked: {what}; this is a bug")))
}
