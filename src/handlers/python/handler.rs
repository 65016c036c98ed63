//! The handler itself: one call of a Python callable.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::Ordering,
};

use smallvec::SmallVec;

use crate::{
    engine::{failure::panicked, ffi::Asked},
    handlers::{
        depth::InHandler,
        python::{
            arrays::{self, Misfit},
            frame::Frame,
            gil::{Gil, Owned, Raised},
            table::{Borrowed, PYTHON, TAKEN},
        },
    },
    sys,
};

/// How a call of the handler failed.
enum Failure {
    /// An error of the engine's own, which is returned as it is.
    Engine(*mut sys::XLA_FFI_Error),
    Own(sys::XLA_FFI_Error_Code, String),
}

impl Failure {
    fn internal(message: impl Into<String>) -> Self {
        Self::Own(sys::XLA_FFI_Error_Code_INTERNAL, message.into())
    }

    /// An exception of the callable's, in jaxlib's words.
    fn raised(Raised(text): Raised) -> Self {
        Self::internal(format!("CpuCallback error calling callback: {text}"))
    }

    fn misfit(what: &str, index: usize, misfit: Misfit) -> Self {
        match misfit {
            Misfit::Raised(Raised(text)) => Self::internal(format!("CpuCallback error: {what} {index}: {text}")),
            Misfit::Unsupported(data_type) => Self::Own(
                sys::XLA_FFI_Error_Code_UNIMPLEMENTED,
                format!("CpuCallback error: {what} {index} is of element type {}, which NumPy lacks", data_type.0),
            ),
            Misfit::Shape(expected, got) => Self::internal(format!(
                "CpuCallback error: {what} {index} should have the shape {expected:?}, and has {got:?}"
            )),
        }
    }
}

/// Called by the engine: once for its version, then for each execution of a custom call.
///
/// # Safety
/// `frame` must be what the engine passes to handlers.
pub(super) unsafe extern "C-unwind" fn handler(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: the frame is the engine's, as this function asks: it and what it points to live during the call, the
    // metadata may be written, and nothing else has the frame. The engine's table begins with its size and version.
    let mut frame = unsafe {
        if let Some(asked) = Asked::of(frame) {
            // What the handler uses has been the same since version 0.1 of the FFI, so it speaks the engine's own.
            asked.answer((*(*frame).api).api_version, Some(0), None);
            TAKEN.store(true, Ordering::Release);
            return ptr::null_mut();
        }
        Frame::new(frame)
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| call(&mut frame)));
    let (code, message) = match outcome {
        Ok(Ok(())) => return ptr::null_mut(),
        Ok(Err(Failure::Engine(error))) => return error,
        Ok(Err(Failure::Own(code, message))) => (code, message),
        Err(panic) => {
            let message = format!("the handler of Python callbacks panicked: {}; this is a bug", panicked(&*panic));
            (sys::XLA_FFI_Error_Code_INTERNAL, message)
        }
    };
    frame.error(code, &message)
}

fn call(frame: &mut Frame<'_>) -> Result<(), Failure> {
    let python = PYTHON.get().ok_or_else(|| Failure::internal("Python callbacks are not installed"))?;
    let callable = callable(frame)?;
    let gil = Gil::take(python).ok_or_else(|| {
        Failure::Own(sys::XLA_FFI_Error_Code_CANCELLED, "CpuCallback error: the Python interpreter is ending".into())
    })?;
    let mut owned: SmallVec<[Owned<'_>; 8]> = SmallVec::with_capacity(frame.arguments().len());
    for (index, &argument) in frame.arguments().iter().enumerate() {
        let array = arrays::argument(&gil, argument);
        owned.push(array.map_err(|misfit| Failure::misfit("argument", index, misfit))?);
    }
    let objects: SmallVec<[Borrowed<'_>; 8]> = owned.iter().map(Owned::borrow).collect();
    let _in_handler = InHandler::enter_callback();
    let returned = gil.call(callable, &objects);
    drop(objects);
    drop(owned);
    let returned = returned.map_err(Failure::raised)?;
    for (index, result) in frame.results().iter_mut().enumerate() {
        let misfit = |misfit| Failure::misfit("result", index, misfit);
        let value = gil.item(returned.borrow(), index).map_err(|raised| misfit(raised.into()))?;
        arrays::result(&gil, result, value).map_err(misfit)?;
    }
    Ok(())
}

/// The callable that the custom call means: the one with its number among the execution's.
fn callable<'a>(frame: &Frame<'a>) -> Result<Borrowed<'a>, Failure> {
    let items = frame.callables().map_err(|error| match error {
        Some(error) => Failure::Engine(error),
        None => Failure::internal("the engine's FFI has no execution contexts"),
    })?;
    let index = frame.index().ok_or_else(|| Failure::internal("the custom call has no index"))?;
    let item = usize::try_from(index).ok().and_then(|index| items.get(index));
    item.copied().flatten().ok_or_else(|| {
        Failure::internal(format!("the custom call means callable {index}, and the run has {}", items.len()))
    })
}
