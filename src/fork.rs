//! Keeps forks and work under locks apart.
//!
//! A child after `fork` has only the thread that forked. A lock that another thread holds at that moment is never
//! released in the child. So work that a background thread does under a lock passes a gate, and forks wait at it; and
//! what the child shares with its parent's engine is held over a fork, as C's `malloc` holds its own locks. What other
//! threads do at that moment is not waited for: what the child has from its parent is left as it is, and no lock of it
//! is taken when it ends (`api/child.rs`); and where the process has one table of what it made, the child has a new one
//! ([`PerProcess`]).
//!
//! ```text
//!  the thread that forks:  close the gate, take what is held | fork | release it, open the gate     (on both sides)
//!  the child, before that:                                          | it is counted, and acts
//! ```

use std::{
    cell::Cell,
    ops::Deref,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
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

/// The process's generation: another one in a child than in its parent, once [`register_handlers`] was called.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

static IN_CHILDREN: OnceLock<fn()> = OnceLock::new();

/// Has each child call `act` before anything else of its own, from the first call on, and be counted before. It may
/// take no lock. Only the first one counts.
pub fn in_children(act: fn()) {
    let _ = IN_CHILDREN.set(act);
    register_handlers();
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
    register_handlers();
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

extern "C" fn begin_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if let Some(act) = IN_CHILDREN.get() {
        act();
    }
    after();
}

/// Has each fork call `take` before it, when no step is under way, and `release` after it in the parent and the child;
/// a release may come without its take. Only the first ones count.
pub fn hold_over_forks(take: fn(), release: fn()) {
    let _ = AT_FORK.set(AtFork { take, release });
    register_handlers();
}

/// Has C call the functions above around each fork, from the first call on.
pub fn register_handlers() {
    static ASKED: OnceLock<()> = OnceLock::new();
    ASKED.get_or_init(|| {
        // SAFETY: they are plain functions, which are never unloaded; the child's takes no lock but what is held.
        let errno = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(begin_child)) };
        if errno != 0 {
            log::info!("children may hang after a fork: pthread_atfork failed with {errno}");
        }
    });
}

/// A table of what this process has made, for the process alone: its child has to [`renew`](Self::renew) it, and begins
/// with an empty one. A lock in its parent's may be in the hands of a thread that the child lacks.
pub struct PerProcess<T>(AtomicPtr<T>);

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    /// A table that is made when it is first used.
    pub const fn empty() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// The table, if it was used.
    #[inline(always)]
    pub fn used(&self) -> Option<&T> {
        // SAFETY: a table that was made is never freed.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Gives the process a new table. The old one is left as it is: nobody's references to it end. Takes no lock.
    pub fn renew(&self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }

    #[cold]
    fn make(&self) -> &T {
        let made = Box::into_raw(Box::<T>::default());
        let set = self.0.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: a table that was made is never freed, but for this one, which nobody has seen if another thread was
        // faster.
        unsafe {
            if let Err(other) = set {
                drop(Box::from_raw(made));
                return &*other;
            }
            &*made
        }
    }
}

impl<T: Default + Send + Sync + 'static> Deref for PerProcess<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.used().unwrap_or_else(|| self.make())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, time::Duration};

    use super::*;

    #[test]
    fn a_child_has_a_table_of_its_own_while_a_thread_holds_its_parents() {
        static TABLE: PerProcess<parking_lot::RwLock<Vec<u32>>> = PerProcess::empty();
        assert!(TABLE.used().is_none());
        TABLE.write().push(1);
        let parents = TABLE.read();
        // What a child does.
        TABLE.renew();
        assert!(TABLE.used().is_none());
        TABLE.try_write().expect("nobody holds it").push(2);
        assert_eq!((parents.as_slice(), TABLE.read().as_slice()), (&[1][..], &[2][..]));
    }

    #[test]
    fn threads_that_use_a_table_first_have_the_same_one() {
        static TABLE: PerProcess<AtomicU32> = PerProcess::empty();
        let begin = Barrier::new(4);
        let count = || {
            begin.wait();
            TABLE.fetch_add(1, Ordering::Relaxed);
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(count))));
        assert_eq!(TABLE.load(Ordering::Relaxed), 4);
    }

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
