//! Why a call of ours failed: our own error, or the engine's as it is.

use std::any::Any;

use crate::{
    engine::EngineError,
    error::{Code, Error},
};

/// Why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// Our own error.
    Own(Error),
    /// The engine's error, which is handed on as it is.
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

/// What a call gives that may fail on our side or on the engine's.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Drops the outcome of a call that must not fail the one it is part of: `attempt` says what the engine could not do.
pub fn discard<T>(outcome: Result<T, EngineError>, attempt: &str) {
    if let Err(error) = outcome {
        log::warn!("the engine could not {attempt}: {}", error.message());
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

/// The handle, if it is not NULL.
///
/// # Errors
/// INVALID_ARGUMENT, which names the function and the field.
pub fn required<T>(handle: *mut T, function: &str, field: &str) -> Outcome<*mut T> {
    if handle.is_null() {
        return Err(Error::invalid_argument(format!("{function}: {field} is NULL")).into());
    }
    Ok(handle)
}
