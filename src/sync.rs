//! The locks and atomic numbers that threads share. A module of its own so that a model checker's can stand in for
//! them.

pub use std::sync::atomic;

pub use parking_lot::{Condvar, Mutex, MutexGuard};

/// A lock that spins; a thread that does not get it yields the processor.
pub type SpinMutex<T> = spin::mutex::SpinMutex<T, spin::Yield>;
pub use spin::mutex::SpinMutexGuard;

/// Asks the processor for the cache line of a value that will be written soon, without waiting for it.
#[inline(always)]
pub fn prefetch_write<T>(value: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(value) = value {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction. It changes nothing that a program can see, whatever
        // the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
