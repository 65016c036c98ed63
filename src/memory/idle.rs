//! When memory that is no longer used is trimmed without a call from the user: the rules, without clock or device.
//!
//! ```text
//!  use |   ______
//!      |  |      |                 highest use since the last trim: as much is resident
//!      |  |      |
//!      |  |      |_____ _______    at least 64 MiB less for the whole delay:
//!      |__|            |           what lies above is trimmed
//!      +------------------------------> windows
//! ```
//!
//! Trimming a GiB costs about 0.1 s in the background, touching it again 0.13 to 0.29 s in the user's program. So a
//! needless trim must be rare: when half of what was trimmed, or more, is used again within five minutes, the delay
//! doubles, from a second to an hour. A loop of large and small phases then pays a few times, and no more. A program
//! that needs the memory later than that pays once in five minutes at most, a thousandth of the time for each GiB.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::units::Bytes;

/// A device is watched from this much use on.
pub const WORTH_WATCHING: Bytes = Bytes::mib(64);

/// How long use must stay low before the first trim.
pub const DELAY: Duration = Duration::from_secs(1);

/// Less than this is not worth a trim.
pub const WORTH_TRIMMING: Bytes = Bytes::mib(64);

/// A trim was needless where the memory is used again so soon.
const REUSE_WINDOW: Duration = Duration::from_secs(300);

/// The longest delay.
const LONGEST: Duration = Duration::from_secs(3600);

/// What one memory's use was so far. See the module's documentation.
#[derive(Debug)]
pub struct Idle {
    delay: Duration,
    /// Where the last window ended.
    now: Duration,
    /// The highest use since the last trim: as much is believed to be resident.
    touched: Bytes,
    quiet: Option<Quiet>,
    last: Option<LastTrim>,
}

/// Windows, up to the last one, that used less than what was touched.
#[derive(Clone, Copy, Debug)]
struct Quiet {
    since: Duration,
    peak: Bytes,
}

/// The last trim.
#[derive(Clone, Copy, Debug)]
struct LastTrim {
    at: Duration,
    kept: Bytes,
    bytes: Bytes,
}

impl Idle {
    /// The rule for memory of which nothing was used yet, with this delay at first: [`DELAY`] but for tests.
    pub fn new(delay: Duration) -> Self {
        Self { delay, now: Duration::ZERO, touched: Bytes::ZERO, quiet: None, last: None }
    }

    /// Ends a window at `now`, counted from the first one's start, in which use went up to `peak`. Where it is time to
    /// trim: how much is to stay, what is in use included. The caller then reports with [`Self::record_release`] what
    /// it released.
    pub fn end_window(&mut self, now: Duration, peak: Bytes) -> Option<Bytes> {
        let began = std::mem::replace(&mut self.now, now);
        self.look_back(now, peak);
        self.touched = self.touched.max(peak);
        if self.touched.saturating_sub(peak) < WORTH_TRIMMING {
            self.quiet = None;
            return None;
        }
        let quiet = self.quiet.get_or_insert(Quiet { since: began, peak });
        quiet.peak = quiet.peak.max(peak);
        let Quiet { since, peak: keep } = *quiet;
        if now.saturating_sub(since) < self.delay || self.touched.saturating_sub(keep) < WORTH_TRIMMING {
            return None;
        }
        (self.touched, self.quiet) = (keep, None);
        Some(keep)
    }

    /// Records that `bytes` were released, and that `kept` stayed. Memory that was not resident cannot be missed.
    pub fn record_release(&mut self, bytes: Bytes, kept: Bytes) {
        if bytes >= WORTH_TRIMMING {
            self.last = Some(LastTrim { at: self.now, kept, bytes });
        }
    }

    /// How long use must stay low now.
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// Doubles the delay if the last trim was needless.
    fn look_back(&mut self, now: Duration, peak: Bytes) {
        let Some(last) = self.last else { return };
        if now.saturating_sub(last.at) > REUSE_WINDOW {
            self.last = None;
        } else if peak.saturating_sub(last.kept).get() >= last.bytes.get() / 2 {
            self.last = None;
            self.delay = (self.delay * 2).min(LONGEST);
        }
    }
}

/// The most that the arrays and the scratch of a client needed at once, as far as it was looked at.
#[derive(Debug, Default)]
pub struct Needed(AtomicU64);

impl Needed {
    /// By how much `resident` is more than was ever needed, where `now` is. Any thread may ask.
    pub fn excess(&self, now: Bytes, resident: Bytes) -> Bytes {
        let most = self.0.fetch_max(now.get(), Ordering::Relaxed).max(now.get());
        resident.saturating_sub(Bytes::new(most))
    }
}

/// Watches the process grow: before it is larger than it ever was, what nobody uses goes back.
///
/// ```text
///  resident |            _/\_   before
///           |   _  _ _ _/   |  _ _ _ _ _ _   allowed from now on: at least half of the difference is granted
///           | _/ \/         |_/   after
///           +-----------------------------> looks
/// ```
///
/// Much of what is free is used again, and is touched anew then. As each time the process may grow by half of what it
/// wanted, that happens a few times for each size that it comes to, and no more.
#[derive(Debug, Default)]
pub struct Growth {
    last: Bytes,
    allowed: Bytes,
}

/// What a look at the process found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is about as large as at the last look, or smaller.
    Quiet,
    /// It has grown since.
    Grows,
    /// It is larger than it may be while something is free.
    Exceeds,
}

/// A process that grows by less from one look to the next is quiet.
const GROWS: Bytes = Bytes::mib(4);

impl Growth {
    /// What a look says that found so much resident.
    pub fn look(&mut self, resident: Bytes) -> Look {
        let last = std::mem::replace(&mut self.last, resident);
        // A 32nd: so a process that grows is trimmed some thirty times until it is twice as large.
        if resident > self.allowed + Bytes::mib(32).max(Bytes::new(self.allowed.get() / 32)) {
            Look::Exceeds
        } else if resident > last + GROWS {
            Look::Grows
        } else {
            Look::Quiet
        }
    }

    /// Records that so much is resident after everything that was free went back.
    pub fn record_release(&mut self, resident: Bytes) {
        let wanted = self.last.saturating_sub(self.allowed);
        self.allowed = resident.max(self.allowed + Bytes::new(wanted.get() / 2));
        self.last = resident;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(500);
    const GIB: Bytes = Bytes::gib(1);

    /// A memory that a program uses as it is told to: what is resident, and what touching it cost.
    struct Play {
        idle: Idle,
        now: Duration,
        resident: Bytes,
        touched_again: Bytes,
        returns: usize,
    }

    impl Play {
        fn new() -> Self {
            Self {
                idle: Idle::new(DELAY),
                now: Duration::ZERO,
                resident: Bytes::ZERO,
                touched_again: Bytes::ZERO,
                returns: 0,
            }
        }

        /// Uses `peak` for so many tenths of a second.
        fn uses(&mut self, peak: Bytes, tenths: u64) {
            for _ in 0..tenths / 5 {
                self.now += TICK;
                self.touched_again += peak.saturating_sub(self.resident);
                self.resident = self.resident.max(peak);
                if let Some(keep) = self.idle.end_window(self.now, peak) {
                    assert!(keep >= peak, "what is in use stays: {keep}, {peak}");
                    self.idle.record_release(self.resident - keep, keep);
                    self.resident = keep;
                    self.returns += 1;
                }
            }
        }
    }

    #[test]
    fn idle_memory_is_trimmed_after_a_second_once() {
        let mut play = Play::new();
        play.uses(GIB, 60);
        play.uses(Bytes::mib(100), 5);
        assert_eq!(play.resident, GIB, "one window is too short");
        play.uses(Bytes::mib(100), 5);
        assert_eq!((play.resident, play.returns), (Bytes::mib(100), 1));
        play.uses(Bytes::mib(100), 3600);
        assert_eq!(play.returns, 1);
        play.uses(Bytes::ZERO, 3600);
        assert_eq!((play.resident, play.returns), (Bytes::ZERO, 2));
    }

    #[test]
    fn steady_use_and_small_memory_are_left_alone() {
        let mut play = Play::new();
        play.uses(GIB, 600);
        // Nearly all is in use.
        play.uses(Bytes::mib(961), 600);
        assert_eq!((play.returns, play.resident), (0, GIB));
        // Each window uses much, if only for a moment.
        (0..100).for_each(|_| (play.uses(GIB, 5), play.uses(Bytes::ZERO, 5)).1);
        assert_eq!(play.returns, 0);
        let mut small = Play::new();
        small.uses(Bytes::mib(63), 60);
        small.uses(Bytes::ZERO, 600);
        assert_eq!(small.returns, 0);
    }

    #[test]
    fn a_loop_of_large_and_small_phases_pays_a_few_times_only() {
        for phase in [10, 20, 60, 1400] {
            let mut play = Play::new();
            for _ in 0..1000 {
                play.uses(GIB, phase);
                play.uses(Bytes::mib(10), phase);
            }
            assert!(play.returns <= 9, "{phase}: {} returns", play.returns);
            // A program that stops for good is trimmed all the same.
            play.uses(Bytes::mib(10), 36_000);
            assert_eq!(play.resident, Bytes::mib(10), "{phase}");
        }
        // Where phases are longer than what counts as a mistake, touching again costs next to nothing of their time.
        let mut play = Play::new();
        for _ in 0..10 {
            play.uses(GIB, 4000);
            play.uses(Bytes::ZERO, 4000);
        }
        assert!(play.touched_again <= Bytes::gib(10) && play.returns == 10);
    }

    #[test]
    fn the_patience_doubles_with_each_mistake_up_to_an_hour() {
        let mut play = Play::new();
        let mut delay = DELAY;
        for _ in 0..14 {
            play.uses(GIB, 5);
            assert_eq!(play.idle.delay(), delay);
            let before = play.returns;
            play.uses(Bytes::ZERO, 10 * delay.as_secs() - 5);
            assert_eq!(play.returns, before, "{delay:?}");
            play.uses(Bytes::ZERO, 5);
            assert_eq!((play.returns, play.resident), (before + 1, Bytes::ZERO), "{delay:?}");
            delay = (2 * delay).min(Duration::from_secs(3600));
        }
        assert_eq!(delay, Duration::from_secs(3600));
    }

    #[test]
    fn the_highest_use_of_the_quiet_time_stays() {
        let mut play = Play::new();
        play.uses(GIB, 60);
        // Neither what was in use first nor what was last: the most of all these windows.
        play.uses(Bytes::mib(100), 5);
        let second = play.now + TICK;
        assert_eq!(play.idle.end_window(second, Bytes::mib(10)), Some(Bytes::mib(100)));
        // And the other way round.
        let mut play = Play::new();
        play.uses(GIB, 60);
        play.uses(Bytes::mib(10), 5);
        let second = play.now + TICK;
        assert_eq!(play.idle.end_window(second, Bytes::mib(100)), Some(Bytes::mib(100)));
    }

    #[test]
    fn so_much_less_than_was_touched_is_worth_it() {
        let given = |touched: u64, used: u64| {
            let mut play = Play::new();
            play.uses(Bytes::mib(touched), 60);
            play.uses(Bytes::mib(used), 60);
            play.returns
        };
        assert_eq!([given(1024, 960), given(1024, 961)], [1, 0]);
        assert_eq!([given(64, 0), given(63, 0)], [1, 0]);
    }

    #[test]
    fn a_mistake_is_counted_once() {
        let mut play = Play::new();
        play.uses(GIB, 5);
        play.uses(Bytes::ZERO, 10);
        // It is in use again for a while: one mistake, not one for each window.
        play.uses(GIB, 60);
        assert_eq!((play.returns, play.idle.delay()), (1, 2 * DELAY));
        // Nor is it one that more is used much later.
        let mut play = Play::new();
        play.uses(GIB, 5);
        play.uses(Bytes::ZERO, 10 + 3000);
        play.uses(GIB, 5);
        assert_eq!(play.idle.delay(), DELAY);
    }

    #[test]
    fn only_much_of_it_soon_is_a_mistake() {
        let delay = |again: Bytes, pause: u64| {
            let mut play = Play::new();
            play.uses(GIB, 5);
            play.uses(Bytes::ZERO, 10 + pause);
            play.uses(again, 5);
            play.idle.delay()
        };
        assert_eq!(delay(Bytes::mib(511), 0), DELAY);
        assert_eq!(delay(Bytes::mib(512), 0), 2 * DELAY);
        assert_eq!(delay(Bytes::mib(512), 2990), 2 * DELAY);
        assert_eq!(delay(Bytes::mib(512), 3000), DELAY);
        // Nothing was released: `growing` had released its regions before, or the user had trimmed.
        let mut idle = Idle::new(DELAY);
        let at = |ticks| ticks * TICK;
        assert_eq!(idle.end_window(at(1), GIB), None);
        assert_eq!(idle.end_window(at(2), Bytes::ZERO), None);
        assert_eq!(idle.end_window(at(3), Bytes::ZERO), Some(Bytes::ZERO));
        idle.record_release(Bytes::mib(1), Bytes::ZERO);
        assert_eq!(idle.end_window(at(4), GIB), None);
        assert_eq!(idle.delay(), DELAY);
    }

    #[test]
    fn what_was_never_needed_at_once_is_too_much() {
        let needed = Needed::default();
        assert_eq!(needed.excess(Bytes::mib(100), Bytes::mib(300)), Bytes::mib(200));
        assert_eq!(needed.excess(Bytes::mib(250), Bytes::mib(300)), Bytes::mib(50));
        // What was needed once may stay.
        assert_eq!(needed.excess(Bytes::mib(100), Bytes::mib(300)), Bytes::mib(50));
        assert_eq!(needed.excess(Bytes::mib(400), Bytes::mib(300)), Bytes::ZERO);
    }

    #[test]
    fn a_process_that_grows_gives_back_what_is_free_a_few_times() {
        // It wants `used`, and malloc keeps the most that it ever used.
        let trims = |phases: &[u64], free_at: &dyn Fn(usize) -> bool| {
            let (mut growth, mut resident, mut trims) = (Growth::default(), Bytes::ZERO, 0);
            for (number, &used) in phases.iter().enumerate() {
                resident = resident.max(Bytes::mib(used));
                if growth.look(resident) == Look::Exceeds {
                    trims += 1;
                    resident = if free_at(number) { Bytes::mib(100) } else { resident };
                    growth.record_release(resident);
                }
            }
            trims
        };
        // Each look finds a GiB that was freed a moment before, of which a program uses all again.
        assert!(trims(&[1024; 1000], &|_| true) <= 6);
        // It is in use: once.
        assert_eq!(trims(&[1024; 1000], &|_| false), 1);
        // A process that grows by a MiB at a time, to 16 GiB.
        let slowly: Vec<u64> = (100..16 << 10).collect();
        assert!(trims(&slowly, &|_| false) <= 200);
    }

    #[test]
    fn a_process_that_shrinks_or_stays_is_quiet() {
        let mut growth = Growth::default();
        assert_eq!(growth.look(Bytes::mib(300)), Look::Exceeds);
        growth.record_release(Bytes::mib(250));
        assert_eq!(growth.look(Bytes::mib(252)), Look::Quiet);
        assert_eq!(growth.look(Bytes::mib(262)), Look::Grows);
        assert_eq!(growth.look(Bytes::mib(282)), Look::Grows);
        assert_eq!(growth.look(Bytes::mib(283)), Look::Exceeds);
        assert_eq!(growth.look(Bytes::mib(100)), Look::Quiet);
    }
}
