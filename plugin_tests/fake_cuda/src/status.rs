//! The driver's answers: its codes with their names and words, and what a refused call carries inside of this crate.

use std::ffi::CStr;

use cudarc::driver::sys::CUresult;

/// A status of the driver, `CUresult` in C; a number, because a test may order a call to fail with any code.
pub type Status = u32;

macro_rules! statuses {
    ($($name:ident = $theirs:ident, $text:literal;)*) => {
        $(#[doc = concat!("`", stringify!($theirs), "`: ", $text, ".")]
        pub const $name: Status = CUresult::$theirs as Status;)*

        /// The name and the meaning of a code, if the driver knows it.
        pub fn words(code: Status) -> Option<(&'static CStr, &'static CStr)> {
            let (name, text) = match code {
                $($name => (concat!(stringify!($theirs), "\0"), concat!($text, "\0")),)*
                _ => return None,
            };
            let word = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
            word(name).zip(word(text))
        }
    };
}

statuses! {
    SUCCESS = CUDA_SUCCESS, "no error";
    INVALID_VALUE = CUDA_ERROR_INVALID_VALUE, "invalid argument";
    OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY, "out of memory";
    NOT_INITIALIZED = CUDA_ERROR_NOT_INITIALIZED, "initialization error";
    NO_DEVICE = CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected";
    INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal";
    INVALID_CONTEXT = CUDA_ERROR_INVALID_CONTEXT, "invalid device context";
    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE, "invalid resource handle";
    ILLEGAL_STATE = CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state";
    NOT_READY = CUDA_ERROR_NOT_READY, "device not ready";
    ILLEGAL_ADDRESS = CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered";
    CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed";
    NOT_PERMITTED = CUDA_ERROR_NOT_PERMITTED, "operation not permitted";
    NOT_SUPPORTED = CUDA_ERROR_NOT_SUPPORTED, "operation not supported";
    STREAM_CAPTURE_UNSUPPORTED = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture";
    UNKNOWN = CUDA_ERROR_UNKNOWN, "unknown error";
}

/// Why a call is refused.
#[derive(Debug)]
pub struct Failure {
    /// What the caller gets.
    pub code: Status,
    /// What was wrong, if it is the caller's mistake: it counts as a violation.
    pub violation: Option<String>,
}

/// What a function of the driver gives inside of this crate.
pub type Answer<T = ()> = Result<T, Failure>;

impl From<Status> for Failure {
    /// A refusal that a correct caller may get: out of memory, not ready.
    fn from(code: Status) -> Self {
        Self { code, violation: None }
    }
}

/// A refusal that only a mistaken caller gets.
pub fn misuse(code: Status, sentence: impl Into<String>) -> Failure {
    Failure { code, violation: Some(sentence.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_names_and_others_none() {
        let (name, text) = words(700).expect("a known code");
        assert_eq!(
            (name.to_str(), text.to_str()),
            (Ok("CUDA_ERROR_ILLEGAL_ADDRESS"), Ok("an illegal memory access was encountered"))
        );
        assert_eq!(words(12345), None);
    }
}
