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
//! What the thread moves itself meanwhile (arrays that are spilled, brought back or compacted) is work and does not
//! count as waiting, up to ten minutes of it. A wait of more than a second says so.
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
    runtime::device_memory::moves::moved_for,
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
/// A wait that takes so long says so, and again after so long.
const SLOW: Duration = Duration::from_secs(1);

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
    /// How long it did not count.
    paused: Cell<Duration>,
    /// How long the thread had moved arrays when it began: from then on that does not count either.
    moved_before: Duration,
    /// Told how long the wait is under way, once that is long.
    tell: Option<Box<dyn Fn(Duration) + 'a>>,
    /// How long it was when that was told last.
    told: Cell<Duration>,
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
        Self {
            deadline,
            programs: Vec::new(),
            callbacks: None,
            began,
            next_look,
            interrupted,
            paused: Cell::default(),
            moved_before: moved_for(),
            tell: None,
            told: Cell::default(),
        }
    }

    /// Has `tell` called every second, with the time since the beginning.
    #[must_use]
    pub fn telling(self, tell: impl Fn(Duration) + 'a) -> Self {
        Self { tell: Some(Box::new(tell)), ..self }
    }

    /// So much of the wait does not count.
    pub fn pause(&self, time: Duration) {
        self.paused.set(self.paused.get() + time);
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
        let paused = self.paused.get() + moved_for().saturating_sub(self.moved_before);
        let deadline = self.deadline + paused.min(BOUND_WITH_PROGRAMS - BOUND);
        let left = deadline.saturating_duration_since(Instant::now());
        let too_long = || self.deadline.elapsed() > BOUND_WITH_PROGRAMS - BOUND;
        let callbacks = || self.callbacks.is_some_and(|callbacks| callbacks.load(Ordering::Relaxed) != 0);
        if left.is_zero() && self.programs.iter().any(|program| program.is_under_way()) && !callbacks() && !too_long() {
            return POLL;
        }
        left
    }

    /// Ends the wait if a signal has arrived whose handler raises an exception. The thread must hold no lock. Says how
    /// long the wait takes, too.
    pub fn look_for_signals(&self) {
        let now = Instant::now();
        if let Some(tell) = &self.tell {
            let waited = now.duration_since(self.began);
            if waited >= self.told.get() + SLOW {
                self.told.set(waited);
                tell(waited);
            }
        }
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
    use std::{cell::RefCell, sync::atomic::AtomicBool, thread};

    use super::*;
    use crate::runtime::device_memory::moves::Moves;

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

    #[test]
    fn what_the_thread_moves_does_not_count() {
        let (moves, work) = (Moves::default(), Duration::from_millis(60));
        moves.during(|| thread::sleep(work));
        let deadline = Deadline::at(Instant::now() + work / 2);
        thread::scope(|scope| _ = scope.spawn(|| moves.during(|| thread::sleep(work))));
        assert!(deadline.is_over(), "another thread's moves count, and so do those before");
        let began = Instant::now();
        let deadline = Deadline::at(began + BOUND);
        moves.during(|| {
            assert!(moves.are_under_way());
            thread::sleep(work);
        });
        assert!(!moves.are_under_way());
        let left = deadline.left_in_all();
        assert!(left + began.elapsed() >= BOUND + work, "{left:?}");
        // Not for ever.
        deadline.pause(2 * BOUND_WITH_PROGRAMS);
        let left = deadline.left_in_all();
        assert!(left <= BOUND_WITH_PROGRAMS, "{left:?}");
    }

    #[test]
    fn a_long_wait_is_told_each_second() {
        let told = RefCell::new(Vec::new());
        let mut deadline = Deadline::at(Instant::now() + BOUND).telling(|waited| told.borrow_mut().push(waited));
        deadline.look_for_signals();
        assert!(told.borrow().is_empty());
        let Some(began) = deadline.began.checked_sub(SLOW) else { return };
        deadline.began = began;
        (0..2).for_each(|_| deadline.look_for_signals());
        let Some(began) = deadline.began.checked_sub(SLOW) else { return };
        deadline.began = began;
        (0..2).for_each(|_| deadline.look_for_signals());
        drop(deadline);
        assert!(matches!(told.borrow()[..], [first, second] if second - first >= SLOW && first >= SLOW));
    }
}
