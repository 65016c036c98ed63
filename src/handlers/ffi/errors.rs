//! Errors of XLA FFI for callers that take them apart as C++ objects.
//!
//! An error is opaque to a handler: it asks for the message, and has the error destroyed. jaxlib up to 0.11.0 does
//! otherwise where a buffer callback asks for its stream (`context.stream`; there is none on a CPU): it assumes the
//! XLA that it was built with, for which an error is a pointer to an `absl::Status`, moves that out of it, and frees
//! the rest. What a status points to has the layout of the engine's Abseil, and is read by jaxlib's:
//!
//! ```text
//!  bytes   0..4        4..8   8..40     40..48             64..72
//!          references  code   message   payloads                     Abseil of 2023-08 to 2026-01
//!          references  code   message   source locations   payloads  Abseil of 2026-05
//! ```
//!
//! So jaxlib 0.10 reads a count of source locations as a pointer to payloads, which was a segmentation fault. Errors
//! made here are zero from byte 40 on, which every Abseil reads as none. What they point to is never freed: its
//! references never reach zero, and there is one status for each message.

use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use parking_lot::Mutex;

use crate::sys;

/// libstdc++'s `std::string`, with its text elsewhere.
#[repr(C)]
struct Text {
    /// Constant.
    data: AtomicPtr<u8>,
    length: usize,
    capacity: usize,
    unused: usize,
}

/// What an `absl::Status` that is not OK points to, at an even address.
#[repr(C)]
struct Status {
    references: AtomicI32,
    code: u32,
    message: Text,
    /// More than any Abseil has there.
    none: [usize; 8],
}

/// The references that this library keeps.
const OURS: i32 = 1 << 30;

/// One status for each code and message that there was, with the message.
static STATUSES: Mutex<Vec<(&'static str, &'static Status)>> = Mutex::new(Vec::new());

impl Status {
    /// The status with that code and message, made when it is the first.
    fn of(code: sys::XLA_FFI_Error_Code, message: String) -> &'static Self {
        let mut statuses = STATUSES.lock();
        if let Some((_, status)) = statuses.iter().find(|(text, status)| status.code == code.0 && *text == message) {
            return status;
        }
        let length = message.len();
        let text = format!("{message}\0").leak(); // C++ expects a zero behind it
        let status = &*Box::leak(Box::new(Self {
            references: AtomicI32::new(OURS),
            code: code.0,
            message: Text { data: AtomicPtr::new(text.as_mut_ptr()), length, capacity: length, unused: 0 },
            none: [0; 8],
        }));
        statuses.push((&text[..length], status));
        status
    }
}

/// An error with that code and message, which its receiver may take apart, or pass to the engine's functions; NULL,
/// which is success, when there is no memory for a pointer.
pub fn readable(code: sys::XLA_FFI_Error_Code, message: String) -> *mut sys::XLA_FFI_Error {
    let status = Status::of(code, message);
    // C++'s `operator delete` frees it, which is `free`. SAFETY: allocating has no precondition; what is not NULL has
    // room for one pointer, aligned, and nothing else uses it yet.
    unsafe {
        let error = libc::malloc(size_of::<*const Status>()).cast::<*const Status>();
        if !error.is_null() {
            status.references.fetch_add(1, Ordering::Relaxed);
            error.write(status);
        }
        error.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_laid_out_as_every_abseil_reads_it() {
        let message = "no stream here, and a text that is longer than libstdc++ keeps in place";
        let errors =
            [0, 1].map(|_| readable(sys::XLA_FFI_Error_Code_UNIMPLEMENTED, message.to_owned()).cast::<*const usize>());
        // SAFETY: an error is a pointer to a status, of which Abseil of 2026-05 reads nine words.
        let [first, second] = errors.map(|error| unsafe { *error });
        assert_eq!(first, second, "a message is kept once");
        assert_eq!(first.addr() % 2, 0, "an odd one would be a code");
        // SAFETY: a status has more than nine words, and lives for ever.
        let words = unsafe { std::slice::from_raw_parts(first, 9) };
        assert_eq!(words[0] >> 32, 12, "the code of UNIMPLEMENTED");
        assert_eq!(words[0] as u32, (OURS + 2) as u32, "two errors, and us");
        assert_ne!(words[1], first.wrapping_add(3).addr(), "the text is not in place, as libstdc++ would free it not");
        assert_eq!((words[2], words[3]), (message.len(), message.len()));
        // SAFETY: the text is followed by a zero, and lives for ever.
        let text = unsafe { std::slice::from_raw_parts(words[1] as *const u8, message.len() + 1) };
        assert_eq!(text, format!("{message}\0").as_bytes());
        assert_eq!(words[5..], [0; 4], "neither payloads nor source locations");
        for error in errors {
            // SAFETY: the error comes from `malloc`, and is not used again.
            unsafe { libc::free(error.cast()) };
        }
    }
}
