//! The arena's lock: it spins, and who waits for memory sleeps beside it.
//!
//! An uncontended parking lock costs two atomic exchanges of about 5 ns, which is as much as finding a block; a spinning one
//! gives up with a plain store. It suits what it guards: tens of nanoseconds, except while a strategy asks the device for
//! memory or a compaction is planned, which is rare. Who does not get it gives the processor away.

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
    /// How often the bell was rung.
    rings: Mutex<u64>,
    bell: Condvar,
}

impl<T> Lock<T> {
    pub(super) fn new(state: T) -> Self {
        Self { state: SpinMutex::new(state), rings: Mutex::new(0), bell: Condvar::new() }
    }

    /// Locks.
    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.state.lock()
    }

    /// Without locking, because nobody else can have it.
    pub(super) fn get_mut(&mut self) -> &mut T {
        self.state.get_mut()
    }

    /// Unlocks, sleeps until somebody rings or `deadline`, and locks again. A ring from the moment of the call on counts.
    pub(super) fn sleep<'a>(&'a self, guard: Guard<'a, T>, deadline: Option<Instant>) -> Guard<'a, T> {
        let before = *self.rings.lock();
        drop(guard);
        let mut rings = self.rings.lock();
        while *rings == before {
            match deadline {
                Some(deadline) if self.bell.wait_until(&mut rings, deadline).timed_out() => break,
                Some(_) => {}
                None => self.bell.wait(&mut rings),
            }
        }
        drop(rings);
        self.lock()
    }

    /// Wakes all sleepers.
    pub(super) fn ring(&self) {
        *self.rings.lock() += 1;
        self.bell.notify_all();
    }
}
