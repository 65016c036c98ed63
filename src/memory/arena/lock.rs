//! The arena's lock: it spins, and a thread that waits for memory sleeps on a condition variable beside it.
//!
//! An uncontended parking lock costs two atomic exchanges of about 5 ns, which is as much as finding a block; a
//! spinning one gives up with a plain store. It suits what it guards: tens of nanoseconds, except while a strategy asks
//! the device for memory or a compaction is planned, which is rare. A thread that does not get it yields the processor.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use spin::{
    Yield,
    mutex::{SpinMutex, SpinMutexGuard},
};

/// What [`Lock::lock`] gives.
pub(super) type Guard<'a, T> = SpinMutexGuard<'a, T>;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Lock<T> {
    state: SpinMutex<T, Yield>,
    /// How often sleepers were woken.
    wakes: Mutex<u64>,
    woken: Condvar,
}

impl<T> Lock<T> {
    pub(super) fn new(state: T) -> Self {
        Self { state: SpinMutex::new(state), wakes: Mutex::new(0), woken: Condvar::new() }
    }

    /// Locks.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.state.lock()
    }

    /// Without locking: the exclusive reference shows that no other thread can hold it.
    pub(super) fn get_mut(&mut self) -> &mut T {
        self.state.get_mut()
    }

    /// Unlocks, sleeps until [`Self::wake`] or `deadline`, and locks again. Every wake after this call began counts.
    pub(super) fn sleep<'a>(&'a self, guard: Guard<'a, T>, deadline: Option<Instant>) -> Guard<'a, T> {
        let before = *self.wakes.lock();
        drop(guard);
        let mut wakes = self.wakes.lock();
        while *wakes == before {
            match deadline {
                Some(deadline) if self.woken.wait_until(&mut wakes, deadline).timed_out() => break,
                Some(_) => {}
                None => self.woken.wait(&mut wakes),
            }
        }
        drop(wakes);
        self.lock()
    }

    /// Wakes all sleepers.
    pub(super) fn wake(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }
}
