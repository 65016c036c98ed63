//! Calls of functions that were installed from outside, by the Python package.
//!
//! Such a function may wait for Python's lock, which the caller of the C API may hold or not. Another thread may hold
//! it while it waits for a lock of this library. So no lock of this library may be held during such a call.

use std::ffi::{c_int, c_void};

use crate::{handlers::python, sys::slice};

/// `give(reply, code, bytes, size)`: the answer. Each question defines its codes.
pub type Give = unsafe extern "C" fn(*mut c_void, c_int, *const u8, usize);

/// The answer to a question: `question(give, reply)` calls a function that calls `give` with `reply` before it returns.
/// `None` if it did not. What it calls must let a stack unwind: see [`python::staying_if_ending`].
pub fn ask(question: impl FnOnce(Give, *mut c_void)) -> Option<(c_int, Vec<u8>)> {
    let mut reply: Option<(c_int, Vec<u8>)> = None;
    python::staying_if_ending(|| question(take, (&raw mut reply).cast()));
    reply
}

/// Takes an answer; the first one stays.
///
/// # Safety
/// `reply` must be the one of an [`ask`] that has not returned, and `bytes` have `size` bytes.
unsafe extern "C" fn take(reply: *mut c_void, code: c_int, bytes: *const u8, size: usize) {
    // SAFETY: `reply` is that of an `ask` that has not returned and uses it only afterwards, and there are `size`
    // bytes, as this function asks.
    let (reply, bytes) = unsafe { (&mut *reply.cast::<Option<(c_int, Vec<u8>)>>(), slice(bytes, size)) };
    reply.get_or_insert_with(|| (code, bytes.to_vec()));
}
