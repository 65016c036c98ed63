//! Keeps forks and work under locks apart.
//!
//! A child after `fork` has only the thread that forked. A lock that another thread holds at that moment is never
//! released in the child. So work that a background thread does under a lock passes a gate, and forks wait at it.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// No lock that a child would find in the hands of a thread that it lacks: the forking thread opens it on both sides.
static CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn close() {
    while CLOSED.swap(true, Ordering::Acquire) {
        thread::yield_now();
    }
}

extern "C" fn open() {
    CLOSED.store(false, Ordering::Release);
}

/// Lets no fork begin while `work` runs.
pub fn passing<T>(work: impl FnOnce() -> T) -> T {
    struct Open;
    impl Drop for Open {
        fn drop(&mut self) {
            open();
        }
    }
    close();
    let _open = Open;
    work()
}

/// Lets forks wait for the gate, from the first call on.
pub fn close_at_forks() {
    static ASKED: OnceLock<()> = OnceLock::new();
    ASKED.get_or_init(|| {
        // SAFETY: the functions touch one atomic.
        let errno = unsafe { libc::pthread_atfork(Some(close), Some(open), Some(open)) };
        if errno != 0 {
            log::info!("forks do not wait for memory on its way back: pthread_atfork failed with {errno}");
        }
    });
}
