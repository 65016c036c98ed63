//! Keeps forks and work under locks apart.
//!
//! A child after `fork` has only the thread that forked. A lock that another thread holds at that moment is never
//! released in the child. So work that a background thread does under a lock passes a gate, and forks wait at it. What
//! other threads do at that moment is not waited for: what the child has from its parent is left as it is, and no lock
//! of it is taken when it ends (`api/child.rs`).

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
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

/// How many forks lie between this process and the one that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process's generation: another one in a child than in its parent.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Has [`generation`] count children, from the first call on.
pub fn count_children() {
    static ASKED: OnceLock<()> = OnceLock::new();
    extern "C" fn count() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    ASKED.get_or_init(|| {
        // SAFETY: the function touches one atomic.
        let errno = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        if errno != 0 {
            log::info!("children are not told from their parents: pthread_atfork failed with {errno}");
        }
    });
}

/// Has each child call `act` before anything else of its own, from the first call on, and be counted before. It may
/// take no lock.
pub fn in_children(act: fn()) {
    static ACT: OnceLock<fn()> = OnceLock::new();
    extern "C" fn begin() {
        if let Some(act) = ACT.get() {
            act();
        }
    }
    // Children call them in the order in which they came.
    count_children();
    if ACT.set(act).is_ok() {
        // SAFETY: the function takes no lock.
        let errno = unsafe { libc::pthread_atfork(None, None, Some(begin)) };
        if errno != 0 {
            log::info!("arrays may not be collected in children: pthread_atfork failed with {errno}");
        }
    }
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
