//! Threads that are in this library when the interpreter ends.

use crate::handlers::python::table::PYTHON;

/// Calls what may wait for Python's lock inside. Python up to 3.13 unwinds the stacks of threads that wait for it when
/// the interpreter ends: such a thread stops here for good, because none of the frames below may be unwound.
pub fn staying_if_ending<T>(wait: impl FnOnce() -> T) -> T {
    match PYTHON.get() {
        Some(python) => python.staying_if_ending(wait),
        None => wait(),
    }
}

/// Stops this thread for good if the interpreter is ending and the thread would come back to it: jaxlib wants the GIL
/// then, which ends the process as well. The main thread, which ends the interpreter, goes on.
pub fn stop_if_ending() {
    if let Some(python) = PYTHON.get()
        && python.is_ending()
        && !is_main_thread()
    {
        python.stop_if_ending();
    }
}

/// Whether this is the process's main thread.
pub(super) fn is_main_thread() -> bool {
    // SAFETY: both functions only return a number.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}
