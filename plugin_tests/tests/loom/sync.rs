//! The model checker's locks under the names and signatures of the crate's own.

use std::{
    ops::{Deref, DerefMut},
    sync::PoisonError,
};

/// As `parking_lot::Mutex`.
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// As `parking_lot::MutexGuard`; empty only inside [`Condvar::wait`].
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

/// As `parking_lot::Condvar`.
pub struct Condvar(loom::sync::Condvar);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held outside of wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held outside of wait")
    }
}

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("held outside of wait");
        guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
