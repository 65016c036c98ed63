//! Signals that arrive while a thread of Python's waits in this library.
//!
//! Python runs its handlers of signals, Ctrl-C's among them, only when its main thread comes back to its code, or asks
//! for it. A wait that may take long asks: what a handler raises ends the wait, and is raised again as soon as the
//! call has returned to Python.
//!
//! ```text
//!  Ctrl-C -> Python notes the signal       main thread, in a wait: every 100 ms PyErr_CheckSignals
//!                                            -> the handler raises KeyboardInterrupt: kept; the wait ends
//!                                          CANCELLED -> jaxlib raises its error -> the pending call raises what was kept
//! ```
//!
//! The functions are found by name in the process, because engines for GPUs need no [`Table`](super::Table).

use std::ffi::{c_int, c_void};

use once_cell::sync::Lazy;

use crate::handlers::python::{
    ending::{is_main_thread, staying_if_ending},
    table::{Borrowed, New},
};

/// An exception in its three parts, as Python up to 3.11 keeps it, and later versions take it.
type Raised = [Option<New>; 3];

/// Functions of Python's C API. All but the first two may be called only with the GIL.
struct Functions {
    is_initialized: unsafe extern "C-unwind" fn() -> c_int,
    gil_ensure: unsafe extern "C-unwind" fn() -> c_int,
    gil_release: unsafe extern "C-unwind" fn(c_int),
    /// Whether an exception is on its way already.
    occurred: unsafe extern "C-unwind" fn() -> Option<Borrowed<'static>>,
    /// Runs the handlers of signals that have arrived; -1 if one has raised an exception.
    check_signals: unsafe extern "C-unwind" fn() -> c_int,
    fetch: unsafe extern "C-unwind" fn(&mut Option<New>, &mut Option<New>, &mut Option<New>),
    restore: unsafe extern "C-unwind" fn(Option<New>, Option<New>, Option<New>),
    /// Has the main thread call a function with that argument before it goes on with Python code; 0 if it will.
    add_pending_call:
        unsafe extern "C-unwind" fn(unsafe extern "C-unwind" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
}

static PYTHON: Lazy<Option<Functions>> = Lazy::new(Functions::find);

impl Functions {
    /// Those of the interpreter in this process; `None` where there is none, or where it hides them.
    fn find() -> Option<Self> {
        let process = libloading::os::unix::Library::this();
        // SAFETY: the functions of these names in Python's C API have these types: an object is a pointer, which is
        // NULL where there is none. The interpreter's library is not unloaded: this thread waits for a call of it, or
        // Python's names are those of the program itself.
        unsafe {
            Some(Self {
                is_initialized: *process.get(b"Py_IsInitialized\0").ok()?,
                gil_ensure: *process.get(b"PyGILState_Ensure\0").ok()?,
                gil_release: *process.get(b"PyGILState_Release\0").ok()?,
                occurred: *process.get(b"PyErr_Occurred\0").ok()?,
                check_signals: *process.get(b"PyErr_CheckSignals\0").ok()?,
                fetch: *process.get(b"PyErr_Fetch\0").ok()?,
                restore: *process.get(b"PyErr_Restore\0").ok()?,
                add_pending_call: *process.get(b"Py_AddPendingCall\0").ok()?,
            })
        }
    }

    /// Has the handlers of signals run, and what one raises be raised when this call is over. Whether one did.
    fn handle_signals(&self) -> bool {
        // SAFETY: the function may be called without the GIL, at any time.
        if unsafe { (self.is_initialized)() } == 0 {
            return false;
        }
        // SAFETY: the interpreter is there. The thread takes the GIL, or has it already, and gives up what it took.
        // With the GIL an exception may be fetched; its three places hold none before. The function that is to be
        // called later is passed the box that it takes over.
        unsafe {
            let state = staying_if_ending(|| (self.gil_ensure)());
            let raised = (self.occurred)().is_none() && (self.check_signals)() != 0;
            if raised {
                let mut parts: Raised = [None, None, None];
                let [class, exception, traceback] = &mut parts;
                (self.fetch)(class, exception, traceback);
                let parts = Box::into_raw(Box::new(parts));
                if (self.add_pending_call)(raise, parts.cast()) != 0 {
                    log::warn!("what the handler of a signal raised is lost: Python has too many pending calls");
                    drop(Box::from_raw(parts));
                }
            }
            (self.gil_release)(state);
            raised
        }
    }
}

/// Raises what is kept: Python's main thread calls this when it is back in Python's code.
///
/// # Safety
/// The thread must hold the GIL, and `parts` be a box of a [`Raised`] that is passed on here.
unsafe extern "C-unwind" fn raise(parts: *mut c_void) -> c_int {
    let Some(python) = &*PYTHON else { return 0 };
    // SAFETY: the box is passed on, as this function asks.
    let [class, exception, traceback] = *unsafe { Box::from_raw(parts.cast::<Raised>()) };
    // SAFETY: the GIL is held, as this function asks, and the references are given up.
    unsafe { (python.restore)(class, exception, traceback) };
    -1
}

/// Has Python's handlers of signals run, if this is the process's main thread and Python's code called from it.
/// Whether one raised an exception: the caller is to return soon, and Python raises it then.
///
/// The calling thread must hold no lock: a handler may do anything.
pub fn interrupted() -> bool {
    is_main_thread() && PYTHON.as_ref().is_some_and(Functions::handle_signals)
}
