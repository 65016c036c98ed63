//! The cheapest windows of a run that would yield enough room.

use std::{cmp::Ordering, collections::BinaryHeap, ops::Range};

use super::picture::Picture;

/// Windows that are tried; the heap keeps no more.
pub(super) const KEEP: usize = 64;

/// Neighbouring spans of a run; losing either end would yield too little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The least that moving all its blocks costs.
    pub(super) floor: u64,
    pub(super) spans: Range<usize>,
    /// The run it lies in, as an index into the picture's.
    pub(super) run: usize,
    /// Granules that it yields.
    pub(super) gain: u64,
}

impl Ord for Window {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |window: &Self| (window.floor, window.spans.len(), window.spans.start);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Window {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Finds up to `keep` windows that cost less than `below`, cheapest first.
///
/// A hole yields its size. So does a block of up to `threshold` granules, which is to leave the window; larger ones are
/// to slide within it and yield nothing. Two pointers a run: for each last span the latest first one. O(n log keep).
pub(super) fn cheapest(picture: &Picture, need: u64, threshold: u32, below: u64, keep: usize) -> Vec<Window> {
    let yields = |index: usize| {
        let span = &picture.spans[index];
        if span.is_hole() || span.size <= threshold { u64::from(span.size) } else { 0 }
    };
    let mut best = BinaryHeap::with_capacity(keep + 1);
    let mut below = below;
    for (run, range) in picture.runs.iter().enumerate() {
        let mut first = range.start;
        let (mut gain, mut floor) = (0u64, 0u64);
        for last in range.clone() {
            gain += yields(last);
            floor = floor.saturating_add(picture.floors[last]);
            if gain < need {
                continue;
            }
            let mut least = yields(first);
            while gain - least >= need {
                gain -= least;
                floor = floor.saturating_sub(picture.floors[first]);
                first += 1;
                least = yields(first);
            }
            // Where the last span adds nothing that is needed, the window that ended before it was better.
            if floor < below && gain - yields(last) < need {
                best.push(Window { floor, spans: first..last + 1, run, gain });
                if best.len() > keep {
                    best.pop();
                    below = best.peek().map_or(below, |worst: &Window| worst.floor);
                }
            }
        }
    }
    best.into_sorted_vec()
}
