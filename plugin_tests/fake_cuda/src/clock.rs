//! Vector clocks: what has happened before what.
//!
//! ```text
//!  stream 1   kernel(1) --- record(2) ------------- kernel(3)
//!                               \                            a clock says how far it has seen each stream:
//!  stream 2   kernel(1) ------- wait(2) --- copy(3)          the copy's is {1: 2, 2: 3}; so it comes after
//!                                                            1's record, and is not ordered with 1's third
//! ```

use std::collections::BTreeMap;

/// The number by which a stream, or the host, is known to clocks. Never used twice.
pub type Line = u64;

/// All host threads. What one of them has seen, another one may have been told: the driver cannot know, so they count
/// as one, and no order that the program made by locks or channels is missed.
pub const HOST: Line = 0;

/// One operation: the `number`th of its line, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Whose.
    pub line: Line,
    /// Its place.
    pub number: u64,
}

/// For each line, how many of its operations have happened before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<Line, u64>);

impl Clock {
    /// Whether `point` has happened before.
    pub fn has_seen(&self, point: Point) -> bool {
        self.0.get(&point.line).is_some_and(|&seen| seen >= point.number)
    }

    /// Adds all that `other` has seen.
    pub fn join(&mut self, other: &Self) {
        for (&line, &number) in &other.0 {
            self.see(Point { line, number });
        }
    }

    /// Adds `point`, and with it what came before on its line.
    pub fn see(&mut self, point: Point) {
        let seen = self.0.entry(point.line).or_default();
        *seen = (*seen).max(point.number);
    }

    /// What had been seen just before `point`, the last of its line here.
    pub fn before(&self, point: Point) -> Self {
        let mut before = self.clone();
        before.0.insert(point.line, point.number - 1);
        before
    }

    /// The next operation of `line`, which now has happened.
    pub fn tick(&mut self, line: Line) -> Point {
        let number = self.0.entry(line).or_default();
        *number += 1;
        Point { line, number: *number }
    }
}

/// What came before points that clocks have seen too early to know it: a collective that one rank has called comes
/// after operations of ranks that have yet to call.
///
/// ```text
///  rank 0's stream   collective{9: 1} --- copy{9: 1}                the copy comes after rank 1's kernel: this is known when
///  rank 1's stream                   kernel(1) --- collective       rank 1 has called, and told then for {9: 1}
/// ```
#[derive(Debug, Default)]
pub struct DeferredClocks(BTreeMap<Line, BTreeMap<u64, Clock>>);

/// How many clocks a line keeps. What has seen an older point counts as having seen the oldest of them, which hides a
/// race at most.
const KEPT: usize = 64;

impl DeferredClocks {
    /// Says what came before `point`, and with it what came before the points of its line that were told earlier.
    pub fn tell(&mut self, point: Point, clock: Clock) {
        let told = self.0.entry(point.line).or_default();
        told.insert(point.number, clock);
        while told.len() > KEPT {
            told.pop_first();
        }
    }

    /// Whether `point` has happened before what `clock` belongs to, by all that is known now.
    pub fn has_seen(&self, clock: &Clock, point: Point) -> bool {
        clock.has_seen(point) || !self.0.is_empty() && self.complete(clock).has_seen(point)
    }

    /// Adds what was told since.
    fn complete(&self, clock: &Clock) -> Clock {
        let mut complete = clock.clone();
        let mut added: BTreeMap<Line, u64> = BTreeMap::new();
        loop {
            let next = self.0.iter().find_map(|(&line, told)| {
                let &seen = complete.0.get(&line)?;
                (added.get(&line) < Some(&seen)).then_some((line, seen, told))
            });
            let Some((line, seen, told)) = next else { return complete };
            added.insert(line, seen);
            let last = told.range(..=seen).next_back().or_else(|| told.range(seen..).next());
            if let Some((_, clock)) = last {
                complete.join(clock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_sees_what_it_was_joined_with() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        let first = a.tick(1);
        let event = a.clone();
        let second = a.tick(1);
        b.tick(2);
        assert!(!b.has_seen(first));
        b.join(&event);
        assert!(b.has_seen(first) && !b.has_seen(second) && a.has_seen(second));
        assert!(a.before(second).has_seen(first) && !a.before(second).has_seen(second));
    }

    #[test]
    fn what_is_told_later_counts_for_clocks_of_before() {
        let (mut deferred, mut a, mut b) = (DeferredClocks::default(), Clock::default(), Clock::default());
        let meeting = Point { line: 9, number: 1 };
        a.see(meeting);
        let kernel = b.tick(2);
        assert!(!deferred.has_seen(&a, kernel));
        b.see(Point { line: 8, number: 4 });
        deferred.tell(meeting, b.clone());
        assert!(deferred.has_seen(&a, kernel));
        // By way of another line, and not for what came after.
        let next = b.tick(2);
        let mut c = Clock::default();
        c.see(Point { line: 8, number: 3 });
        deferred.tell(Point { line: 8, number: 2 }, a);
        assert!(deferred.has_seen(&c, kernel) && !deferred.has_seen(&c, next));
    }
}
