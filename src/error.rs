//! The one error type: a canonical status code and a sentence that carries the numbers.

use std::fmt;

/// The canonical status codes that PJRT shares with `absl::StatusCode`; the numbers are part of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    /// The caller gave up.
    Cancelled = 1,
    /// The caller passed something that can never work.
    InvalidArgument = 3,
    /// A named thing does not exist.
    NotFound = 5,
    /// Memory (or another bounded resource) is exhausted.
    ResourceExhausted = 8,
    /// The call is legal, but not in the present state.
    FailedPrecondition = 9,
    /// An index lies outside of its range.
    OutOfRange = 11,
    /// The engine, or this library, does not offer the operation.
    Unimplemented = 12,
    /// An invariant of ours is broken: a bug.
    Internal = 13,
    /// What was stored cannot be read again.
    DataLoss = 15,
}

/// An error with a canonical code and a message that names the thing, its value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The canonical code.
    pub code: Code,
    /// The sentence the user reads.
    pub message: String,
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with `code` and `message`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// [`Code::InvalidArgument`] with `message`.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// [`Code::Internal`] with `message`.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message)
    }

    /// [`Code::Unimplemented`] with `message`.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Code::Unimplemented, message)
    }

    /// [`Code::FailedPrecondition`] with `message`.
    pub fn failed_precondition(message: impl Into<String>) -> Self {
        Self::new(Code::FailedPrecondition, message)
    }

    /// [`Code::NotFound`] with `message`.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// The same error, said of `what`.
    pub fn context(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The same error, which tells `more`, if there is more to tell.
    pub fn with(mut self, more: Option<impl fmt::Display>) -> Self {
        if let Some(more) = more {
            self.message = format!("{}; {more}", self.message);
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
