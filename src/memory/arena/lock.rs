//! The arena's lock: it spins, and a thread that waits for memory sleeps on a condition variable beside it.
//!
//! An uncontended parking lock costs two atomic exchanges of about 5 ns, which is as much as finding a block; a
//! spinning one gives up with a plain store. It suits what it guards: tens of nanoseconds, except while a strategy asks
//! the device for memory or a compaction is planned, which is rare. A thread that does not get it yields the processor.
//!
//! A panic while it is held unlocks it, and tells what it guards ([`Interrupted`]): that may be half changed.

use std::{
    ops::{Deref, DerefMut},
    thread,
    time::Instant,
};

use crate::sync::{Condvar, Mutex, SpinMutex, SpinMutexGuard};

/// What a lock guards.
pub(super) trait Interrupted {
    /// A panic has interrupted whoever held the lock. Must not panic itself.
    fn interrupted(&mut self);
}

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
pub(super) struct Guard<'a, T: Interrupted> {
    lock: &'a Lock<T>,
    state: SpinMutexGuard<'a, Guarded<T>>,
    /// Whether the thread was unwinding before, so that its panic has interrupted nothing here.
    unwinding: bool,
}

impl<T: Interrupted> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.state.value
    }
}

impl<T: Interrupted> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state.value
    }
}

impl<T: Interrupted> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // One load, as long as no thread of the process panics.
        if thread::panicking() && !self.unwinding {
            self.interrupted();
        }
    }
}

impl<T: Interrupted> Guard<'_, T> {
    #[cold]
    #[inline(never)]
    fn interrupted(&mut self) {
        self.state.value.interrupted();
        // Those who wait for memory are told that there will be none.
        self.lock.wake(self);
    }
}

impl<T: Interrupted> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { state: SpinMutex::new(Guarded { value, sleepers: 0 }), wakes: Mutex::new(0), woken: Condvar::new() }
    }

    /// Locks.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        Guard { lock: self, state: self.state.lock(), unwinding: thread::panicking() }
    }

    /// Without locking: the exclusive reference shows that no other thread can hold it.
    pub(super) fn get_mut(&mut self) -> &mut T {
        &mut self.state.get_mut().value
    }

    /// Unlocks, sleeps until [`Self::wake`] or `deadline`, and locks again. Every wake after this call began counts.
    pub(super) fn sleep<'a>(&'a self, mut guard: Guard<'a, T>, deadline: Option<Instant>) -> Guard<'a, T> {
        guard.state.sleepers += 1;
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
        guard.state.sleepers -= 1;
        guard
    }

    /// Wakes all sleepers, who find what was changed under `guard`.
    #[inline]
    pub(super) fn wake(&self, guard: &Guard<'_, T>) {
        if guard.state.sleepers != 0 {
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
        self.lock().state.sleepers
    }
}
