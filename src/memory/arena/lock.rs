//! The arena's lock: it spins, and a thread that waits for memory sleeps on a condition variable beside it.
//!
//! An uncontended parking lock costs two atomic exchanges of about 5 ns, which is as much as finding a block; a
//! spinning one gives up with a plain store. It suits what it guards: tens of nanoseconds, except while a strategy asks
//! the device for memory or a compaction is planned, which is rare. A thread that does not get it yields the processor.

use std::{
    ops::{Deref, DerefMut},
    time::Instant,
};

use crate::sync::{Condvar, Mutex, SpinMutex, SpinMutexGuard};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Lock<T> {
    state: SpinMutex<Guarded<T>>,
    /// How often sleepers were woken.
    wakes: Mutex<u64>,
    woken: Condvar,
}

#[derive(Debug)]
struct Guarded<T> {
    value: T,
    /// Threads in [`Lock::sleep`].
    sleepers: u32,
}

/// What [`Lock::lock`] gives.
pub(super) struct Guard<'a, T>(SpinMutexGuard<'a, Guarded<T>>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { state: SpinMutex::new(Guarded { value, sleepers: 0 }), wakes: Mutex::new(0), woken: Condvar::new() }
    }

    /// Locks.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard(self.state.lock())
    }

    /// Without locking: the exclusive reference shows that no other thread can hold it.
    pub(super) fn get_mut(&mut self) -> &mut T {
        &mut self.state.get_mut().value
    }

    /// Unlocks, sleeps until [`Self::wake`] or `deadline`, and locks again. Every wake after this call began counts.
    pub(super) fn sleep<'a>(&'a self, mut guard: Guard<'a, T>, deadline: Option<Instant>) -> Guard<'a, T> {
        guard.0.sleepers += 1;
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
        let mut guard = self.lock();
        guard.0.sleepers -= 1;
        guard
    }

    /// Wakes all sleepers, who find what was changed under `guard`.
    #[inline]
    pub(super) fn wake(&self, guard: &Guard<'_, T>) {
        if guard.0.sleepers != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }

    /// Threads that sleep.
    #[cfg(test)]
    pub(super) fn sleepers(&self) -> u32 {
        self.state.lock().sleepers
    }
}
