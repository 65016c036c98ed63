//! Whether arrays of a memory are moved at this moment, and how long this thread has moved arrays so far.
//!
//! To spill an array, to bring one back and to compact take as long as their copies take. That is work and no wait:
//! what bounds waits leaves it out (`in_flight/deadline.rs`).

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

thread_local! {
    static MOVED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long this thread has moved arrays so far.
pub fn moved_for() -> Duration {
    // A thread that is about to end counts no more.
    MOVED.try_with(Cell::get).unwrap_or_default()
}

/// The threads that move arrays of one memory at this moment.
#[derive(Debug, Default)]
pub struct Moves(AtomicUsize);

impl Moves {
    /// Counts `work` as moves of this thread: not within other such work.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Move<'a>(&'a Moves, Instant);
        impl Drop for Move<'_> {
            fn drop(&mut self) {
                self.0.0.fetch_sub(1, Ordering::Relaxed);
                let _ = MOVED.try_with(|moved| moved.set(moved.get() + self.1.elapsed()));
            }
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        let _move = Move(self, Instant::now());
        work()
    }

    /// Whether a thread moves arrays.
    pub fn are_under_way(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
