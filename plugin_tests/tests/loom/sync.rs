//! The model checker's locks and atomic numbers under the names and signatures of the crate's own.

use std::{
    cell::Cell,
    ops::{Deref, DerefMut},
    sync::PoisonError,
    time::{Duration, Instant},
};

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// As `parking_lot::MutexGuard`; empty only inside [`Condvar::wait`].
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

/// As `parking_lot::WaitTimeoutResult`, of a clock that stands still: a thread that nobody wakes sleeps for ever, which
/// the checker reports.
pub struct InTime;

/// Who spins gets the lock when its holder gives it up; which of several does is the checker's choice.
pub type SpinMutex<T> = Mutex<T>;
pub type SpinMutexGuard<'a, T> = MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
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

    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> InTime {
        self.wait(guard);
        InTime
    }

    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> InTime {
        self.wait(guard);
        InTime
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl InTime {
    pub fn timed_out(&self) -> bool {
        false
    }
}

/// The checker takes `SeqCst` for `AcqRel`, which would fail models of code that is right; but it knows fences. There
/// are two ways to keep the order with fences, and compilers use one or the other: after each store, or before each
/// load. Each alone orders more than is promised, the first hides a load that should be `SeqCst` and is not, the second
/// such a store. So every model is checked under both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fences {
    AfterStores,
    BeforeLoads,
}

thread_local! {
    // The checker runs all threads of a model on one of the system's.
    static FENCES: Cell<Fences> = const { Cell::new(Fences::AfterStores) };
}

impl Fences {
    /// Of the models that this thread checks from here on.
    pub fn choose(self) {
        FENCES.set(self);
    }
}

/// As `std::sync::atomic`, what the files under test use of it.
pub mod atomic {
    pub use std::sync::atomic::Ordering;

    use loom::sync::atomic::fence;

    use super::{FENCES, Fences};

    fn fence_if(fences: Fences, order: Ordering) {
        if order == Ordering::SeqCst && FENCES.get() == fences {
            fence(order);
        }
    }

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    fence_if(Fences::BeforeLoads, order);
                    self.0.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, order);
                    fence_if(Fences::AfterStores, order);
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new(<$value>::default())
                }
            }
        };
    }

    macro_rules! counting {
        ($($name:ident, $value:ty;)*) => {$(
            atomic!($name, $value);

            impl $name {
                fn exchange(
                    &self,
                    order: Ordering,
                    exchange: impl FnOnce(&loom::sync::atomic::$name) -> $value,
                ) -> $value {
                    fence_if(Fences::BeforeLoads, order);
                    let before = exchange(&self.0);
                    fence_if(Fences::AfterStores, order);
                    before
                }

                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    self.exchange(order, |number| number.fetch_add(value, order))
                }

                pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    self.exchange(order, |number| number.fetch_sub(value, order))
                }
            }
        )*};
    }

    atomic!(AtomicBool, bool);
    counting!(AtomicIsize, isize; AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize;);
}

/// As the crate's own, by a lock that stands for the kernel's: it is held while the number is compared, and while
/// sleepers are woken.
pub mod futex {
    use std::time::Duration;

    use super::atomic::{AtomicU32, Ordering};

    loom::lazy_static! {
        static ref SLEEPERS: (super::Mutex<()>, super::Condvar) = (super::Mutex::new(()), super::Condvar::new());
    }

    pub fn wait(word: &AtomicU32, seen: u32, _: Duration) {
        let (lock, woken) = &*SLEEPERS;
        let mut held = lock.lock();
        if word.load(Ordering::Relaxed) == seen {
            woken.wait(&mut held);
        }
    }

    pub fn wake(_: &AtomicU32) {
        let (lock, woken) = &*SLEEPERS;
        let _held = lock.lock();
        woken.notify_all();
    }
}
