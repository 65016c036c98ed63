//! What the CPU engine builds once and would take down when the process exits: it stays.
//!
//! A thread that nobody waits for, as one of Python's daemons, may run programs until the very end. oneDNN makes code
//! for matrix products and gives it back in the destructors of statics, under the feet of the engine's threads that run
//! it: a process that had done all it was to do would end with SIGSEGV. The system takes everything back a moment
//! later, so these destructors are for nothing. The library registers them with `__cxa_atexit` (Itanium C++ ABI,
//! section 3.3.6), which from here on forgets them.

use std::ffi::{c_int, c_void};

use crate::{engine::imports, error::Result};

/// Lets what the library that `inside` belongs to builds from here on stay until the process is gone.
///
/// # Errors
/// `NOT_FOUND` or `INTERNAL` where its import table does not allow it. The library works on as before.
///
/// # Safety
/// `inside` must be the address of a function of a library that is never unloaded, and no other thread may be resolving
/// its imports.
pub unsafe fn keep(inside: *const c_void) -> Result<()> {
    // SAFETY: the function has the type of the one that it replaces; the rest is the caller's promise.
    unsafe { imports::redirect(inside, &[(c"__cxa_atexit", forget as *const c_void)]) }
}

/// `__cxa_atexit`: 0 says that the destructor was noted.
extern "C" fn forget(_: extern "C" fn(*mut c_void), _: *mut c_void, _: *mut c_void) -> c_int {
    0
}
