//! The cheapest windows of a run that would yield enough room.
//!
//! ```text
//!  | a a . . b b b . c c d . . |      the window of `b` and `c`: between the arrows all but the blocks that slide
//!       ^---------------^
//! ```

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    ops::Range,
};

use rustc_hash::FxHashSet;

use super::picture::{Extent, Picture};
use crate::memory::compaction::Span;

/// Windows that are tried; no heap keeps more of them.
pub(super) const KEEP: usize = 64;

/// Spans that the windows tried may have in all: bounds a plan whose windows hold thousands of blocks each. The first
/// trial is always made.
pub(super) const SPANS: usize = 3_072;

/// Neighbouring blocks of a run, with the holes beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The least that moving all its blocks costs.
    pub(super) floor: u64,
    /// From the first block to the last; never empty.
    pub(super) spans: Range<usize>,
    /// The run it lies in, as an index into the picture's.
    pub(super) run: usize,
    /// Granules of the blocks that are to slide.
    pub(super) sliding: u64,
}

impl Window {
    /// The spans of its blocks and of the holes beside them.
    pub(super) fn with_holes(&self, picture: &Picture) -> Range<usize> {
        let (core, extent) = (picture.extent(&self.spans), self.extent(picture));
        let Range { start, end } = self.spans;
        start - usize::from(extent.low < core.low)..end + usize::from(core.high < extent.high)
    }

    /// From the lower end of the hole below its blocks to the upper end of the hole above.
    pub(super) fn extent(&self, picture: &Picture) -> Extent {
        let run = &picture.runs[self.run].spans;
        let Range { start, end } = self.spans;
        Extent { low: picture.room(run, start).low, high: picture.room(run, end - 1).high }
    }

    /// The places where the blocks of the window and no others are in the way of `need` granules. What is not needed of
    /// the holes beside them can take blocks; so there are two: as far up, and as far down as the holes reach.
    pub(super) fn trims(&self, picture: &Picture, need: u32) -> [Option<Extent>; 2] {
        let (core, extent) = (picture.extent(&self.spans), self.extent(picture));
        let below = core.low.saturating_sub(extent.low);
        let above = extent.high.saturating_sub(core.high);
        let missing = (u64::from(need) + self.sliding).saturating_sub(core.size().into());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let reach = |low: u32, high: u32| Extent { low: core.low - low, high: core.high + high };
        let up = reach(missing.saturating_sub(above).min(below), missing.min(above));
        let down = reach(missing.min(below), missing.saturating_sub(below).min(above));
        [Some(up), (down != up).then_some(down)]
    }
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

/// The cheapest windows met so far.
#[derive(Debug)]
struct Cheapest {
    heap: BinaryHeap<Window>,
    keep: usize,
    /// What a window must cost less than to be kept.
    below: u64,
}

impl Cheapest {
    fn new(keep: usize, below: u64) -> Self {
        Self { heap: BinaryHeap::with_capacity(keep), keep, below }
    }

    /// Keeps `window`, which costs less than [`Self::below`], instead of the dearest.
    fn push(&mut self, window: Window) {
        if self.heap.len() < self.keep {
            self.heap.push(window);
        } else if let Some(mut worst) = self.heap.peek_mut() {
            *worst = window;
        }
        if self.heap.len() == self.keep {
            self.below = self.heap.peek().map_or(self.below, |worst| worst.floor);
        }
    }
}

/// Finds up to `keep` windows that yield `need` granules if all their blocks slide, and cost less than `below`,
/// cheapest first.
///
/// They begin and end with a hole: blocks beyond would cost and yield nothing. `need` is more than any hole has. Two
/// pointers a run: for each last hole the latest first one. O(holes · log keep).
pub(super) fn cheapest_to_slide(picture: &Picture, need: u64, below: u64, keep: usize) -> Vec<Window> {
    let mut best = Cheapest::new(keep, below);
    for (run, range) in picture.runs.iter().enumerate() {
        let edges = &picture.edges[range.edges.clone()];
        let Some(mut first) = edges.first() else { continue };
        let (mut rest, mut free) = (&edges[1..], u64::from(first.hole.size()));
        for last in &edges[1..] {
            free += u64::from(last.hole.size());
            // `rest` begins behind `first`, and never behind `last`: free granules remain as long as it has some.
            while let Some((next, others)) = rest.split_first()
                && free - u64::from(first.hole.size()) >= need
            {
                free -= u64::from(first.hole.size());
                (first, rest) = (next, others);
            }
            let (floor, spans) = (last.floor - first.floor, first.above()..last.span);
            if free >= need && floor < best.below && !spans.is_empty() {
                best.push(Window { floor, spans, run, sliding: 0 });
            }
        }
    }
    best.heap.into_sorted_vec()
}

/// Finds up to `keep` windows that yield `need` granules and cost less than `below`, cheapest first.
///
/// Blocks of up to `threshold` granules are to leave the window, larger ones slide within it. `need` is more than any
/// hole has. For each last block the latest first one. Once some windows are known few others are cheaper, so the pass
/// looks from edge to edge, and at the blocks only where a window that is cheap enough reaches far enough.
/// O(n log keep).
fn cheapest_to_leave(picture: &Picture, need: u32, threshold: u32, below: u64, keep: usize) -> Vec<Window> {
    let need = u64::from(need);
    let slid = sliding_below_edges(picture, threshold);
    let mut best = Cheapest::new(keep, bound_to_leave(picture, need, &slid, below, keep));
    for (run, range) in picture.runs.iter().enumerate() {
        let edges = &picture.edges[range.edges.clone()];
        let slid = &slid[range.edges.clone()];
        let cost = |span: usize| picture.spans.get(span).map_or(0, |span| picture.tariff.floor(span.size));
        let slides = |span: usize| picture.spans.get(span).map_or(0, |span| slides(span, threshold));
        // The window: the blocks from `first` up to the cluster that is looked at. `first` never goes down.
        let (mut first, mut floor, mut sliding) = (range.spans.start, 0u64, 0u64);
        // The lowest cluster from which all others between cost little enough.
        let mut lowest = 0;
        for (top, pair) in edges.windows(2).enumerate() {
            let [under, over] = pair else { continue };
            while lowest < top && under.floor - edges[lowest + 1].floor >= best.below {
                lowest += 1;
            }
            let low = &edges[lowest];
            if u64::from(over.hole.high) < need + u64::from(low.hole.low) {
                floor = floor.saturating_add(over.floor - under.floor);
                sliding += slid[top + 1] - slid[top];
                continue;
            }
            if first < low.above() {
                (first, floor, sliding) = (low.above(), under.floor - low.floor, slid[top] - slid[lowest]);
            }
            for last in under.above()..over.span {
                floor = floor.saturating_add(cost(last));
                sliding += slides(last);
                let high = picture.room(&range.spans, last).high;
                let yields = |first: usize, sliding: u64| {
                    need + sliding + u64::from(picture.room(&range.spans, first).low) <= high.into()
                };
                while first <= last
                    && (floor >= best.below
                        || picture.block_after(first) <= last
                            && yields(picture.block_after(first), sliding.saturating_sub(slides(first))))
                {
                    floor = floor.saturating_sub(cost(first));
                    sliding = sliding.saturating_sub(slides(first));
                    first = picture.block_after(first);
                }
                if first <= last && yields(first, sliding) {
                    best.push(Window { floor, spans: first..last + 1, run, sliding });
                }
            }
        }
    }
    best.heap.into_sorted_vec()
}

/// What the `keep` cheapest windows cost less than: less than `below` in any case, and no more than the `keep` cheapest
/// of those windows that begin and end at an edge. O(edges · log keep).
fn bound_to_leave(picture: &Picture, need: u64, slid: &[u64], below: u64, keep: usize) -> u64 {
    let mut floors = BinaryHeap::with_capacity(keep);
    let mut bound = below;
    for range in &picture.runs {
        let edges = &picture.edges[range.edges.clone()];
        let slid = &slid[range.edges.clone()];
        let mut first = 0;
        for (last, over) in edges.iter().enumerate() {
            let yields = |first: usize| {
                need + slid[last] - slid[first] + u64::from(edges[first].hole.low) <= over.hole.high.into()
            };
            while first < last && yields(first + 1) {
                first += 1;
            }
            let floor = over.floor - edges[first].floor;
            if floor < bound && first < last && yields(first) {
                if floors.len() < keep {
                    floors.push(floor);
                } else if let Some(mut dearest) = floors.peek_mut() {
                    *dearest = floor;
                }
                if floors.len() == keep {
                    bound = floors.peek().map_or(bound, |&dearest| dearest);
                }
            }
        }
    }
    // Windows that cost as much as the dearest are as good.
    bound.saturating_add(1).min(below)
}

/// For each edge, what blocks below it take away from a window by sliding in it: from the first one of the layout on.
fn sliding_below_edges(picture: &Picture, threshold: u32) -> Vec<u64> {
    if picture.block_sizes.1 <= threshold {
        return vec![0; picture.edges.len()];
    }
    let mut start = 0;
    let sums = picture.edges.iter().scan(0u64, |sum, edge| {
        let cluster = picture.spans.get(start..edge.span).unwrap_or_default();
        *sum += cluster.iter().map(|span| slides(span, threshold)).sum::<u64>();
        start = edge.span;
        Some(*sum)
    });
    sums.collect()
}

/// What a block takes away from a window by sliding in it. Holes and blocks that stay do not.
fn slides(span: &Span, threshold: u32) -> u64 {
    // No branch: sizes come in no order that a processor could learn.
    u64::from(span.size) * u64::from(span.size > threshold) * u64::from(span.is_movable())
}

/// Windows in order of cost: the cheapest that yield enough, and for each that was tried in vain the two that have a
/// block more.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    picture: &'a Picture<'a>,
    threshold: u32,
    heap: BinaryHeap<Reverse<Window>>,
    /// All that were ever put into the heap: two ways lead to most of the longer windows.
    known: FxHashSet<Range<usize>>,
    tries: Range<usize>,
    looked_at: usize,
}

impl<'a> Candidates<'a> {
    /// Windows as [`cheapest_to_leave`] finds them.
    pub(super) fn new(picture: &'a Picture<'a>, need: u32, threshold: u32, below: u64) -> Self {
        let windows = cheapest_to_leave(picture, need, threshold, below, KEEP);
        let known = windows.iter().map(|window| window.spans.clone()).collect();
        let heap = windows.into_iter().map(Reverse).collect();
        Self { picture, threshold, heap, known, tries: 0..KEEP, looked_at: 0 }
    }

    /// The cheapest window that costs less than `below`; `None` also after 64 of them, or 3,072 spans.
    pub(super) fn next(&mut self, below: u64) -> Option<Window> {
        let first = self.tries.next()? == 0;
        let Reverse(window) = self.heap.pop()?;
        self.looked_at += window.spans.len();
        (window.floor < below && (first || self.looked_at <= SPANS)).then_some(window)
    }

    /// Adds what has a block more than `window` at either end.
    pub(super) fn extend(&mut self, window: &Window) {
        let picture = self.picture;
        let Some(run) = picture.runs.get(window.run).map(|run| &run.spans) else { return };
        let Range { start, end } = window.spans.clone();
        let below = picture.blocks_of(run.start..start).next_back().map(|block| (block..end, block));
        let above = picture.blocks_of(end..run.end).next().map(|block| (start..block + 1, block));
        for (spans, added) in [below, above].into_iter().flatten() {
            if self.known.insert(spans.clone()) {
                let block = &picture.spans[added];
                let floor = window.floor.saturating_add(picture.tariff.floor(block.size));
                let sliding = window.sliding + slides(block, self.threshold);
                self.heap.push(Reverse(Window { floor, spans, run: window.run, sliding }));
            }
        }
    }
}
