//! Why the driver cannot be asked, and what it answers when it refuses.

use std::{error, fmt};

use cudarc::driver::sys::CUresult;

use crate::{
    device::cuda::vendor::Vendor,
    error::{Code, Error},
    memory::budget::Over,
};

/// A status of the driver, `CUresult` or `hipError_t` in C.
pub(super) type Status = u32;

/// Why nothing can be said about GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The driver's library cannot be opened: as a rule, there is no driver.
    Library {
        /// Whose driver it would be.
        vendor: Vendor,
        /// The library that was looked for.
        name: String,
        /// What the dynamic loader said.
        why: String,
    },
    /// The library is not the driver, or one older than all that CUDA 11.4 or ROCm 6 knows.
    Symbol {
        /// Whose driver it would be.
        vendor: Vendor,
        /// The library.
        library: String,
        /// The function that it lacks.
        symbol: &'static str,
    },
    /// The driver answered a call with an error; without a GPU, already the first.
    Call {
        /// Whose driver it is.
        vendor: Vendor,
        /// The function.
        function: &'static str,
        /// The driver's code.
        code: u32,
        /// The code's name and meaning in the driver's words; empty if the driver does not know it.
        name: String,
    },
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What nearly every machine without a GPU says. The loader names the file that is missing first, which may
            // be another one that the library needs.
            Self::Library { vendor, name, why } if is_missing(name, why) => {
                write!(f, "no {vendor} driver ({name} not found)")
            }
            Self::Library { vendor, name, why } => write!(f, "no {vendor} driver: {name} cannot be loaded: {why}"),
            Self::Symbol { vendor, library, symbol } => {
                write!(f, "no {vendor} driver that can be asked: {library} has no symbol {symbol}")
            }
            Self::Call { vendor, function, code, name } => {
                let name = if name.is_empty() { "an error without a name" } else { name };
                write!(f, "the {vendor} driver shows no GPU: {function} gave {code}, {name}")
            }
        }
    }
}

/// Whether the loader says of a library that there is none.
pub(super) fn is_missing(name: &str, why: &str) -> bool {
    why.starts_with(name) && why.ends_with("No such file or directory")
}

impl error::Error for Unavailable {}

impl Unavailable {
    /// A driver that answers with an error when it is asked for its GPUs.
    pub(super) fn call(vendor: Vendor, failure: &DriverError) -> Self {
        Self::Call { vendor, function: failure.function, code: failure.code, name: failure.words() }
    }
}

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverError {
    /// The function; empty where none was called.
    pub(super) function: &'static str,
    /// The driver's code.
    pub(super) code: Status,
    /// The code's name; empty if the driver does not know it.
    pub(super) name: String,
    /// What the driver says that it means; empty as above.
    pub(super) text: String,
}

impl DriverError {
    /// Our own limit leaves no room, though the driver's might: to the caller it is the same.
    pub(super) fn over(over: Over) -> Self {
        let code = match over.code() {
            Code::ResourceExhausted => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            _ => CUresult::CUDA_ERROR_UNKNOWN,
        } as Status;
        Self { function: "", code, name: String::new(), text: over.to_string() }
    }

    /// Whether the driver answered with `code`.
    pub(super) fn is(&self, code: CUresult) -> bool {
        self.code == code as Status
    }

    /// Whether there was no memory, or our own limit left none.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Whether what the driver held is gone, and nothing can be released to it: it is shut down already, as at the end
    /// of a process, or a kernel has failed, after which each call in the process answers so (CUDA's reference of
    /// `CUresult`: "the process must be terminated and relaunched"). Who launched the kernel is told; each piece of
    /// memory need not be.
    pub(super) fn is_over(&self) -> bool {
        [
            CUresult::CUDA_ERROR_DEINITIALIZED,
            CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUresult::CUDA_ERROR_INVALID_PC,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
        ]
        .into_iter()
        .any(|code| self.is(code))
    }

    fn words(&self) -> String {
        [self.name.as_str(), &self.text].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(": ")
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.function.is_empty() {
            return f.write_str(&self.text);
        }
        let words = self.words();
        let words = if words.is_empty() { "an error without a name" } else { &words };
        write!(f, "{} gave {}, {words}", self.function, self.code)
    }
}

impl From<DriverError> for Error {
    fn from(failure: DriverError) -> Self {
        let code = if failure.is_out_of_memory() { Code::ResourceExhausted } else { Code::Internal };
        Self::new(code, failure.to_string())
    }
}
