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
}
