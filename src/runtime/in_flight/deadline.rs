//! How long a call waits for memory that comes free by itself.
//!
//! Ten seconds. On GPUs longer, for programs that were under way when it began to wait, though not for ever: one that takes a
//! minute gives its arrays back after a minute. XLA's own allocators hand memory on in the order of a GPU's work and wait for nothing, so a
//! refusal before that would be ours alone. Programs that others start meanwhile prolong nothing. On CPUs, whose programs may run any handler
//! that a user has registered, such a wait could be the program's for itself.
//!
//! While a program with host callbacks runs it is a tenth of a second, however long that program takes: it may be waiting for the very thread that
//! waits here (engine behaviour T9).

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

/// See the module's documentation.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that programs under way prolong it to.
const FOR_PROGRAMS: Duration = Duration::from_secs(600);
/// The same while a program with host callbacks runs.
const PATIENCE_IN_CALLBACKS: Duration = Duration::from_millis(100);
/// How long a sleep is where only programs prolong the wait: whoever sleeps is woken by what lands, not by the end of the last of them.
const LOOK: Duration = Duration::from_millis(100);

/// A program, or a transfer, that may be under way.
pub trait UnderWay: Send + Sync {
    /// Whether it still is.
    fn is_under_way(&self) -> bool;
}

/// See the module's documentation.
pub struct Deadline<'a> {
    deadline: Instant,
    programs: Vec<Arc<dyn UnderWay>>,
    callbacks: Option<&'a AtomicI64>,
}

impl<'a> Deadline<'a> {
    /// From now on; `callbacks` are the programs with host callbacks that run, and `programs` gives all that is under way.
    pub fn new(callbacks: &'a AtomicI64, programs: impl FnOnce() -> Vec<Arc<dyn UnderWay>>) -> Self {
        let (bound, programs) = match callbacks.load(Ordering::Relaxed) {
            0 => (PATIENCE, programs()),
            _ => (PATIENCE_IN_CALLBACKS, Vec::new()),
        };
        Self { deadline: Instant::now() + bound, programs, callbacks: Some(callbacks) }
    }

    /// That ends at `deadline`, whatever is under way.
    pub fn at(deadline: Instant) -> Self {
        Self { deadline, programs: Vec::new(), callbacks: None }
    }

    /// How long to sleep at most; zero where it is over.
    pub fn left(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let too_long = || self.deadline.elapsed() > FOR_PROGRAMS - PATIENCE;
        let callbacks = || self.callbacks.is_some_and(|callbacks| callbacks.load(Ordering::Relaxed) != 0);
        if left.is_zero() && self.programs.iter().any(|program| program.is_under_way()) && !callbacks() && !too_long() {
            return LOOK;
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
        let mut patience =
            Deadline::new(callbacks, || programs.iter().map(|&program| Arc::clone(program) as _).collect());
        assert!(!patience.is_over() && patience.left() <= PATIENCE);
        patience.deadline = Instant::now();
        patience
    }

    #[test]
    fn programs_that_were_under_way_prolong_it_to_the_last_of_them() {
        let (callbacks, [first, last]) = (AtomicI64::new(0), [(); 2].map(|()| Arc::new(AtomicBool::new(true))));
        let patience = after_the_deadline(&callbacks, &[&first, &last]);
        assert_eq!(patience.left(), LOOK);
        first.store(false, Ordering::Relaxed);
        assert_eq!(patience.left(), LOOK);
        last.store(false, Ordering::Relaxed);
        assert!(patience.is_over());
        let Some(long_ago) = Instant::now().checked_sub(FOR_PROGRAMS) else { return };
        last.store(true, Ordering::Relaxed);
        assert!(Deadline { deadline: long_ago, ..patience }.is_over());
        assert!(after_the_deadline(&callbacks, &[]).is_over());
        assert!(Deadline::at(Instant::now()).is_over());
    }

    #[test]
    fn a_program_with_callbacks_ends_it_soon() {
        let (callbacks, program) = (AtomicI64::new(1), Arc::new(AtomicBool::new(true)));
        let patience = Deadline::new(&callbacks, || vec![Arc::clone(&program) as _]);
        assert!(patience.left() <= PATIENCE_IN_CALLBACKS);
        callbacks.store(0, Ordering::Relaxed);
        let patience = after_the_deadline(&callbacks, &[&program]);
        assert!(!patience.is_over());
        // One that begins while this waits for the other.
        callbacks.store(1, Ordering::Relaxed);
        assert!(patience.is_over());
    }
}
