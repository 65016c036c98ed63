//! What the engine orders between threads, told to ThreadSanitizer (`make tsan`).
//!
//! ```text
//!  thread A: writes, given(x) --> the engine's locks, which the sanitizer does not see --> thread B: taken(x), reads
//! ```
//!
//! The engine is built without the sanitizer, so whatever is handed over through it would be reported. Anywhere else
//! these functions are nothing: the engine's own locks do what they say.

/// Each call of the engine: before what the engine calls meanwhile, and later, on threads of its own.
pub static CALLS: u8 = 0;
/// What the engine called: before the end of an execution is known, and before what it calls with the results.
pub static CALLED: u8 = 0;

#[cfg(tsan)]
unsafe extern "C" {
    fn __tsan_release(address: *const std::ffi::c_void);
    fn __tsan_acquire(address: *const std::ffi::c_void);
}

/// What this thread did so far comes before [`taken`] of the same address.
#[inline(always)]
pub fn given<T>(address: *const T) {
    #[cfg(tsan)]
    // SAFETY: the address only names something; it is not followed.
    unsafe {
        __tsan_release(address.cast());
    }
    #[cfg(not(tsan))]
    let _ = address;
}

/// What other threads did before [`given`] of the same address comes before what this thread does next.
#[inline(always)]
pub fn taken<T>(address: *const T) {
    #[cfg(tsan)]
    // SAFETY: as above.
    unsafe {
        __tsan_acquire(address.cast());
    }
    #[cfg(not(tsan))]
    let _ = address;
}
