//! How long an allocation waits for memory that operations under way will free.
//!
//! Ten seconds. On GPUs longer, for programs that were under way when the wait began, up to ten minutes: a program
//! that takes a minute frees its arrays after a minute. XLA's own allocators reuse memory in the order of a GPU's
//! work and wait for nothing, so XLA by itself would not refuse such an allocation. Programs that other threads start
//! meanwhile prolong nothing. On CPUs nothing prolongs the wait: programs there may run any handler that a user has
//! registered, and one of them could wait for itself.
//!
//! While a program with host callbacks runs it is a tenth of a second, however long that program takes: the program
//! may wait for the very thread that waits here (engine behaviour T9).
//!
//! A signal ends the wait of Python's main thread, where its handler raises an exception: Ctrl-C, as a rule.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    error::{Code, Error},
    handlers::python,
};

/// How long an allocation waits if nothing prolongs it.
const BOUND: Duration = Duration::from_secs(10);
/// The longest wait for programs under way.
const BOUND_WITH_PROGRAMS: Duration = Duration::from_secs(600);
/// The same while a program with host callbacks runs.
const BOUND_IN_CALLBACKS: Duration = Duration::from_millis(100);
/// How long one sleep takes where only programs prolong the wait: an operation that completes wakes the waiting
/// thread, the end of the last program does not. And how often a waiting thread looks for signals.
const POLL: Duration = Duration::from_millis(100);

/// A program, or a transfer, that may be under way.
pub trait UnderWay: Send + Sync {
    /// Whether it is under way at this moment.
    fn is_under_way(&self) -> bool;
}

/// See the module's documentation.
pub struct Deadline<'a> {
    deadline: Instant,
    programs: Vec<Arc<dyn UnderWay>>,
    callbacks: Option<&'a AtomicI64>,
    began: Instant,
    /// When signals are looked for next.
    next_look: Cell<Instant>,
    /// How long after the beginning a signal ended it.
    interrupted: Cell<Option<Duration>>,
}

impl<'a> Deadline<'a> {
    /// Begins now; `callbacks` counts the programs with host callbacks that run, and `programs` gives all that is
    /// under way.
    pub fn new(callbacks: &'a AtomicI64, programs: impl FnOnce() -> Vec<Arc<dyn UnderWay>>) -> Self {
        let (bound, programs) = match callbacks.load(Ordering::Relaxed) {
            0 => (BOUND, programs()),
            _ => (BOUND_IN_CALLBACKS, Vec::new()),
        };
        Self { programs, callbacks: Some(callbacks), ..Self::at(Instant::now() + bound) }
    }

    /// A deadline at this instant, whatever is under way.
    pub fn at(deadline: Instant) -> Self {
        let began = Instant::now();
        let (next_look, interrupted) = (Cell::new(began + POLL), Cell::new(None));
        Self { deadline, programs: Vec::new(), callbacks: None, began, next_look, interrupted }
    }

    /// How long to sleep before [`Self::look_for_signals`] at most; zero where it is over.
    pub fn left(&self) -> Duration {
        self.left_in_all().min(POLL)
    }

    /// When it is over, as far as that is known now.
    pub fn until(&self) -> Instant {
        Instant::now() + self.left_in_all()
    }

    fn left_in_all(&self) -> Duration {
        if self.interrupted.get().is_some() {
            return Duration::ZERO;
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        let too_long = || self.deadline.elapsed() > BOUND_WITH_PROGRAMS - BOUND;
        let callbacks = || self.callbacks.is_some_and(|callbacks| callbacks.load(Ordering::Relaxed) != 0);
        if left.is_zero() && self.programs.iter().any(|program| program.is_under_way()) && !callbacks() && !too_long() {
            return POLL;
        }
        left
    }

    /// Ends the wait if a signal has arrived whose handler raises an exception. The thread must hold no lock.
    pub fn look_for_signals(&self) {
        let now = Instant::now();
        if now >= self.next_look.get() && self.interrupted.get().is_none() {
            if python::interrupted() {
                self.interrupted.set(Some(self.began.elapsed()));
            }
            self.next_look.set(Instant::now() + POLL);
        }
    }

    /// How long after the beginning a signal ended the wait, if one did.
    pub fn interrupted(&self) -> Option<Duration> {
        self.interrupted.get()
    }

    /// The error of what was waited for in vain: CANCELLED where a signal ended the wait.
    pub fn explain(&self, error: Error) -> Error {
        self.interrupted().map_or(error.clone(), |after| cancelled(after, &error.message))
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

/// The error of a wait that a signal ended after so long; `why` it waited.
#[cold]
pub fn cancelled(after: Duration, why: &str) -> Error {
    Error::new(Code::Cancelled, format!("A signal ended the wait for memory after {after:.1?}. {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    impl UnderWay for AtomicBool {
        fn is_under_way(&self) -> bool {
            self.load(Ordering::Relaxed)
        }
    }

    fn after_the_deadline<'a>(callbacks: &'a AtomicI64, programs: &[&Arc<AtomicBool>]) -> Deadline<'a> {
        let mut deadline =
            Deadline::new(callbacks, || programs.iter().map(|&program| Arc::clone(program) as _).collect());
        assert!(!deadline.is_over() && deadline.left_in_all() <= BOUND);
        deadline.deadline = Instant::now();
        deadline
    }

    #[test]
    fn programs_that_were_under_way_prolong_it_to_the_last_of_them() {
        let (callbacks, [first, last]) = (AtomicI64::new(0), [(); 2].map(|()| Arc::new(AtomicBool::new(true))));
        let deadline = after_the_deadline(&callbacks, &[&first, &last]);
        assert_eq!(deadline.left(), POLL);
        first.store(false, Ordering::Relaxed);
        assert_eq!(deadline.left(), POLL);
        last.store(false, Ordering::Relaxed);
        assert!(deadline.is_over());
        let Some(long_ago) = Instant::now().checked_sub(BOUND_WITH_PROGRAMS) else { return };
        last.store(true, Ordering::Relaxed);
        assert!(Deadline { deadline: long_ago, ..deadline }.is_over());
        assert!(after_the_deadline(&callbacks, &[]).is_over());
        assert!(Deadline::at(Instant::now()).is_over());
    }

    #[test]
    fn a_program_with_callbacks_ends_it_soon() {
        let (callbacks, program) = (AtomicI64::new(1), Arc::new(AtomicBool::new(true)));
        let deadline = Deadline::new(&callbacks, || vec![Arc::clone(&program) as _]);
        assert!(deadline.left() <= BOUND_IN_CALLBACKS);
        callbacks.store(0, Ordering::Relaxed);
        let deadline = after_the_deadline(&callbacks, &[&program]);
        assert!(!deadline.is_over());
        // A program with callbacks that begins during the wait.
        callbacks.store(1, Ordering::Relaxed);
        assert!(deadline.is_over());
    }
}
