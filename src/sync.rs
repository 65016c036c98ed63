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

/// A number on which threads sleep until another one changes it, in this process or in one that has the same memory
/// mapped.
pub mod futex {
    use std::{sync::atomic::AtomicU32, time::Duration};

    use rustix::thread::{Timespec, futex};

    /// Sleeps while the number is `seen`, until [`wake`] or for `at_most`; it may return earlier.
    pub fn wait(word: &AtomicU32, seen: u32, at_most: Duration) {
        let at_most = Timespec::try_from(at_most).ok();
        // Each error means that the thread slept as long as it may: another number, a signal, the time.
        let _ = futex::wait(word, futex::Flags::empty(), seen, at_most.as_ref());
    }

    /// Wakes all who sleep on it.
    pub fn wake(word: &AtomicU32) {
        // It fails for addresses that are no memory, which a reference is not.
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }
}
