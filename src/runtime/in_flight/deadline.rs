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

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long an allocation waits if nothing prolongs it.
const BOUND: Duration = Duration::from_secs(10);
/// The longest wait for programs under way.
const BOUND_WITH_PROGRAMS: Duration = Duration::from_secs(600);
/// The same while a program with host callbacks runs.
const BOUND_IN_CALLBACKS: Duration = Duration::from_millis(100);
/// How long one sleep takes where only programs prolong the wait: an operation that completes wakes the waiting
/// thread, the end of the last program does not.
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
}

impl<'a> Deadline<'a> {
    /// Begins now; `callbacks` counts the programs with host callbacks that run, and `programs` gives all that is
    /// under way.
    pub fn new(callbacks: &'a AtomicI64, programs: impl FnOnce() -> Vec<Arc<dyn UnderWay>>) -> Self {
        let (bound, programs) = match callbacks.load(Ordering::Relaxed) {
            0 => (BOUND, programs()),
            _ => (BOUND_IN_CALLBACKS, Vec::new()),
        };
        Self { deadline: Instant::now() + bound, programs, callbacks: Some(callbacks) }
    }

    /// A deadline at this instant, whatever is under way.
    pub fn at(deadline: Instant) -> Self {
        Self { deadline, programs: Vec::new(), callbacks: None }
    }

    /// How long to sleep at most; zero where it is over.
    pub fn left(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let too_long = || self.deadline.elapsed() > BOUND_WITH_PROGRAMS - BOUND;
        let callbacks = || self.callbacks.is_some_and(|callbacks| callbacks.load(Ordering::Relaxed) != 0);
        if left.is_zero() && self.programs.iter().any(|program| program.is_under_way()) && !callbacks() && !too_long() {
            return POLL;
        }
        left
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }
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
        assert!(!deadline.is_over() && deadline.left() <= BOUND);
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
