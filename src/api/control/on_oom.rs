//! A function of the user's that is told when memory is exhausted.
//!
//! ```text
//!   oom::exhausted     remembers what is known, for this thread; locks may be held here
//!        |
//!   api/entry.rs       the call is over and holds no lock; before the caller gets the error:  tell  --> the function
//! ```

use std::{
    cell::Cell,
    ffi::{CString, c_char, c_void},
};

use parking_lot::Mutex;
use serde_json::json;

use crate::{engine::Failure, runtime::allocator::oom};

/// Is told of an error: `report` is `length` bytes of JSON, with a NUL behind them.
pub type OnOom = unsafe extern "C" fn(report: *const c_char, length: usize, data: *mut c_void);

#[derive(Clone, Copy)]
struct Told {
    function: OnOom,
    data: *mut c_void,
}

// SAFETY: `pjrt_arena_on_oom` asks that the function may be called with the data on any thread.
unsafe impl Send for Told {}

static TOLD: Mutex<Option<Told>> = Mutex::new(None);

thread_local! {
    /// Whether this thread runs the function: what that asks for in vain is not told.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Has `function` called whenever memory is exhausted: on the thread whose call fails, before the caller gets the
/// error, while no lock of this library is held. The report is JSON: `text`, the error; `device`, `requested_bytes` and
/// `origin`, what it was for, or null where only the engine knows. It is valid during the call. NULL ends that; a call
/// that is under way on another thread may last longer. There is one function at a time: the last one.
///
/// # Safety
/// The function may be called with `data` on any thread, at once on several, until the process ends, and lets no
/// exception out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_on_oom(function: Option<OnOom>, data: *mut c_void) {
    *TOLD.lock() = function.map(|function| Told { function, data });
}

/// Tells the user's function of `failure`, if there is one and memory is exhausted.
pub fn tell(failure: &Failure) {
    if !failure.is_exhausted() {
        return;
    }
    let last = oom::take_last();
    // In a statement of its own, so that the lock is free when the function is called.
    let told = *TOLD.lock();
    let Some(told) = told else { return };
    if TELLING.try_with(|telling| telling.replace(true)) != Ok(false) {
        return;
    }
    let text = match failure {
        Failure::Own(error) => error.message.clone(),
        Failure::Engine(error) => error.message(),
    };
    // One that did not become an error is not this one's.
    let known = last.filter(|known| text.contains(&known.text));
    let report = json!({
        "device": known.as_ref().map(|known| &known.device),
        "requested_bytes": known.as_ref().map(|known| known.requested.get()),
        "origin": known.as_ref().map(|known| &known.origin),
        "text": text,
    });
    // JSON has no NUL: in a text it is \u0000.
    let report = CString::new(report.to_string()).unwrap_or_default();
    // SAFETY: the function may be called with its data on any thread, as `pjrt_arena_on_oom` asks; the report is a C
    // string of that length, which lives until the call has ended.
    unsafe { (told.function)(report.as_ptr(), report.as_bytes().len(), told.data) };
    let _ = TELLING.try_with(|telling| telling.set(false));
}
