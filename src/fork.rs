//! Keeps forks and work under locks apart.
//!
//! A child after `fork` has only the thread that forked. A lock that another thread holds at that moment is never
//! released in the child. So work that a background thread does under a lock passes a gate, and forks wait at it; and
//! what the child shares with its parent's engine is held over a fork, as C's `malloc` holds its own locks. What other
//! threads do at that moment is not waited for: what the child has from its parent is left as it is, and no lock of it
//! is taken when it ends (`api/child.rs`).
//!
//! ```text
//!  the thread that forks:  close the gate, take what is held | fork | release it, open the gate     (on both sides)
//! ```

use std::{
    cell::Cell,
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

thread_local! {
    /// Whether this thread is one of this library's own.
    static IN_STEPS: Cell<bool> = const { Cell::new(false) };
}

/// This thread is one of this library's own: from here on no fork begins during a [`step`] of it.
pub fn work_in_steps() {
    close_at_forks();
    IN_STEPS.set(true);
}

/// A piece of work, short enough that a fork may wait for it: of a thread that [works in steps](work_in_steps) it
/// passes the gate. Of any other thread forks do not wait for it. There is no step within a step, and nothing in one
/// may wait for the thread that forks: for Python's lock, say, as what the engine destroys may.
pub fn step<T>(work: impl FnOnce() -> T) -> T {
    if IN_STEPS.get() { passing(work) } else { work() }
}

/// What [`hold_over_forks`] was given.
struct AtFork {
    take: fn(),
    release: fn(),
}

static AT_FORK: OnceLock<AtFork> = OnceLock::new();

extern "C" fn before() {
    // First, so that no step waits for what is held.
    close();
    if let Some(at_fork) = AT_FORK.get() {
        (at_fork.take)();
    }
}

extern "C" fn after() {
    if let Some(at_fork) = AT_FORK.get() {
        (at_fork.release)();
    }
    open();
}

/// Has each fork call `take` before it, when no step is under way, and `release` after it in the parent and the child;
/// a release may come without its take. Only the first ones count.
pub fn hold_over_forks(take: fn(), release: fn()) {
    let _ = AT_FORK.set(AtFork { take, release });
    close_at_forks();
}

/// Lets forks wait for the gate, from the first call on.
pub fn close_at_forks() {
    static ASKED: OnceLock<()> = OnceLock::new();
    ASKED.get_or_init(|| {
        // SAFETY: they are plain functions, which are never unloaded.
        let errno = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
        if errno != 0 {
            log::info!("forks do not wait for memory on its way back: pthread_atfork failed with {errno}");
        }
    });
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, time::Duration};

    use super::*;

    #[test]
    fn a_fork_waits_for_a_step_of_a_thread_that_works_in_steps_and_for_no_other_work() {
        let (begun, end, closed) = (Barrier::new(2), Barrier::new(2), AtomicBool::new(false));
        let work = || {
            step(|| {
                begun.wait();
                end.wait();
            });
        };
        // What a fork does before and after.
        let fork = || {
            close();
            open();
            closed.store(true, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            scope.spawn(work);
            begun.wait();
            fork();
            end.wait();
        });
        closed.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                IN_STEPS.set(true);
                work();
            });
            begun.wait();
            scope.spawn(fork);
            thread::sleep(Duration::from_millis(20));
            assert!(!closed.load(Ordering::Relaxed), "the fork began during the step");
            end.wait();
        });
        assert!(closed.load(Ordering::Relaxed));
    }
}
