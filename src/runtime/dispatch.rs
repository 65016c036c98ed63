//! Which thread runs a program: the caller's, or one of the engine's.
//!
//! A thread of the engine's costs a short program more than the program itself: to hand it over, and to wake who waits
//! for it. A long one in the caller's thread keeps the caller from running ahead. So each program's own times decide:
//!
//! ```text
//!                                short               long                so many short ones
//!   first execution, engine ---> caller's thread ---> engine's threads ------------------> caller's thread
//! ```
//!
//! A time is short, or long, by half a millisecond. Of an execution that waits for others only the end is known, so its
//! time is too long rather than too short, and only short ones count. A program that is long now and then waits for more
//! short times each time: what it costs its caller is bounded by what it saves.
//!
//! A program with a custom call may fail while it runs. In the caller's thread Execute gives the error, elsewhere the
//! results have it. So that it is always the same, nothing is measured there: it is where XLA has it on JAX's own CPU
//! backend, as far as the program can be read.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// From here on a time is long.
const LONG: Duration = Duration::from_micros(500);

/// Where a program was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// In the caller's thread, unless it had to wait for something.
    Callers,
    /// On one of the engine's.
    Engines,
}

/// What a long time in the caller's thread costs, in short ones.
const PRICE: i32 = 16;
/// The most that short times count, and long ones.
const MOST: i32 = 4 * PRICE;

/// See the module's documentation.
#[derive(Debug)]
pub struct Dispatch {
    /// Above zero the caller's thread runs the program.
    credit: AtomicI32,
    is_measured: bool,
}

impl Dispatch {
    /// Of a program whose times decide.
    pub fn measured() -> Self {
        Self { credit: AtomicI32::new(0), is_measured: true }
    }

    /// Of a program that the caller's thread always runs, or never.
    pub fn fixed(inline: bool) -> Self {
        Self { credit: AtomicI32::new(i32::from(inline)), is_measured: false }
    }

    /// Whether the caller's thread is to run the program.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.credit.load(Ordering::Relaxed) > 0
    }

    /// An execution took so long in the caller's thread.
    #[inline]
    pub fn note_inline(&self, time: Duration) {
        if !self.is_measured {
            return;
        }
        let credit = self.credit.load(Ordering::Relaxed);
        let now = if time < LONG { credit + 1 } else { credit - PRICE };
        if now != credit {
            // Threads that do this at once lose a count, no more.
            self.credit.store(now.clamp(-MOST, MOST), Ordering::Relaxed);
        }
    }

    /// An execution took so long on a thread of the engine's, or less.
    fn note_asynchronous(&self, at_most: Duration) {
        if at_most < LONG {
            self.note_inline(at_most);
        }
    }
}

/// When the last execution of a client ended.
#[derive(Clone, Debug)]
pub struct LastEnd {
    base: Instant,
    nanoseconds: Arc<AtomicU64>,
}

impl Default for LastEnd {
    fn default() -> Self {
        Self { base: Instant::now(), nanoseconds: Arc::default() }
    }
}

/// An execution on a thread of the engine's, to be told when it ends.
pub struct Timed {
    /// What is known of the program.
    pub program: Arc<Dispatch>,
    /// When it was executed.
    pub began: Instant,
    /// When the one before it ended, where the client's executions come one after another.
    pub last_end: Option<LastEnd>,
}

impl Timed {
    /// It has ended.
    pub fn end(&self) {
        let now = Instant::now();
        let mut began = self.began;
        if let Some(LastEnd { base, nanoseconds }) = &self.last_end {
            let end = nanoseconds.swap(now.duration_since(*base).as_nanos() as u64, Ordering::Relaxed);
            began = began.max(*base + Duration::from_nanos(end));
        }
        self.program.note_asynchronous(now.saturating_duration_since(began));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    #[test]
    fn a_short_program_runs_in_the_callers_thread_from_its_second_execution_on() {
        let program = Dispatch::measured();
        assert!(!program.is_inline(), "nothing is known of it");
        program.note_asynchronous(SHORT);
        assert!(program.is_inline());
        (0..1000).for_each(|_| program.note_inline(SHORT));
        program.note_inline(LONG);
        assert!(program.is_inline(), "an interruption is no change");
    }

    #[test]
    fn a_long_program_never_does() {
        let program = Dispatch::measured();
        (0..1000).for_each(|_| program.note_asynchronous(LONG));
        assert!(!program.is_inline());
    }

    #[test]
    fn a_program_that_becomes_long_leaves_and_comes_back() {
        let program = Dispatch::measured();
        program.note_asynchronous(SHORT);
        program.note_inline(10 * LONG);
        assert!(!program.is_inline());
        let needed = (1..).find(|_| {
            program.note_asynchronous(SHORT);
            program.is_inline()
        });
        assert_eq!(needed, Some(PRICE));
        // Long each second time: it loses more than it gains, and mostly stays with the engine.
        let waits = (0..1000).filter(|number| {
            let inline = program.is_inline();
            let time = if number % 2 == 0 { SHORT } else { 10 * LONG };
            if inline {
                program.note_inline(time)
            } else {
                program.note_asynchronous(time)
            }
            inline && time > LONG
        });
        let most = 500 / PRICE as usize;
        assert!((1..=most + 1).contains(&waits.count()), "one for so many short times");
    }

    #[test]
    fn what_is_fixed_stays() {
        for inline in [false, true] {
            let program = Dispatch::fixed(inline);
            for time in [SHORT, 10 * LONG] {
                (0..1000).for_each(|_| {
                    program.note_inline(time);
                    program.note_asynchronous(time);
                });
                assert_eq!(program.is_inline(), inline);
            }
        }
    }

    #[test]
    fn the_wait_for_the_one_before_is_no_time_of_its_own() {
        let program = Arc::new(Dispatch::measured());
        let (last_end, long_ago) = (LastEnd::default(), Instant::now());
        let timed = |last_end| Timed { program: Arc::clone(&program), began: long_ago, last_end };
        std::thread::sleep(LONG);
        timed(None).end();
        assert!(!program.is_inline(), "it may have taken all that time");
        timed(Some(last_end.clone())).end();
        timed(Some(last_end)).end();
        assert!(program.is_inline());
    }
}
