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

use super::picture::{Block, Extent, Picture};

/// Windows that are tried; no heap keeps more of them.
pub(super) const KEEP: usize = 64;

/// Blocks that the trials of one kind may look at in all: bounds a plan whose windows hold thousands of blocks each.
/// The first trial is always made.
pub(super) const BLOCKS: usize = 2_048;

/// Neighbouring blocks of a run, with the holes beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The least that moving all its blocks costs.
    pub(super) floor: u64,
    /// Indices into the picture's blocks; never empty.
    pub(super) blocks: Range<usize>,
    /// The run it lies in, as an index into the picture's.
    pub(super) run: usize,
    /// Granules of the blocks that are to slide.
    pub(super) sliding: u64,
}

impl Window {
    /// The spans of its blocks and of the holes beside them.
    pub(super) fn spans(&self, picture: &Picture) -> Range<usize> {
        let (first, last) = self.ends(picture);
        let start = if first.room.low < picture.spans[first.span].offset { first.span - 1 } else { first.span };
        let end = if last.room.high > picture.spans[last.span].end() { last.span + 2 } else { last.span + 1 };
        start..end
    }

    /// From the lower end of the hole below its blocks to the upper end of the hole above.
    pub(super) fn extent(&self, picture: &Picture) -> Extent {
        let (first, last) = self.ends(picture);
        Extent { low: first.room.low, high: last.room.high }
    }

    /// The places where the blocks of the window and no others are in the way of `need` granules. What is not needed of
    /// the holes beside them can take blocks; so there are two: as far up, and as far down as the holes reach.
    pub(super) fn trims(&self, picture: &Picture, need: u32) -> [Option<Extent>; 2] {
        let (first, last) = self.ends(picture);
        let core = Extent { low: picture.spans[first.span].offset, high: picture.spans[last.span].end() };
        let below = core.low.saturating_sub(first.room.low);
        let above = last.room.high.saturating_sub(core.high);
        let missing = (u64::from(need) + self.sliding).saturating_sub(core.size().into());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let reach = |low: u32, high: u32| Extent { low: core.low - low, high: core.high + high };
        let up = reach(missing.saturating_sub(above).min(below), missing.min(above));
        let down = reach(missing.min(below), missing.saturating_sub(below).min(above));
        [Some(up), (down != up).then_some(down)]
    }

    fn ends<'p>(&self, picture: &'p Picture) -> (&'p Block, &'p Block) {
        (&picture.blocks[self.blocks.start], &picture.blocks[self.blocks.end - 1])
    }
}

impl Ord for Window {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |window: &Self| (window.floor, window.blocks.len(), window.blocks.start);
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
        let holes = &picture.holes[range.holes.clone()];
        let (mut first, mut free) = (0, 0u64);
        for (last, hole) in holes.iter().enumerate() {
            free += u64::from(hole.size);
            while first < last && free - u64::from(holes[first].size) >= need {
                free -= u64::from(holes[first].size);
                first += 1;
            }
            let floor = hole.floor - holes[first].floor;
            let blocks = holes[first].above..hole.above;
            if free >= need && floor < best.below && !blocks.is_empty() {
                best.push(Window { floor, blocks, run, sliding: 0 });
            }
        }
    }
    best.heap.into_sorted_vec()
}

/// Finds up to `keep` windows that yield `need` granules and cost less than `below`, cheapest first.
///
/// Blocks of up to `threshold` granules are to leave the window, larger ones slide within it. `need` is more than any
/// hole has. Two pointers a run: behind each last block the longest window that is cheap enough. Few of them yield enough
/// once some windows are known; those are made as short as may be. O(n log keep).
fn cheapest_to_leave(picture: &Picture, need: u32, threshold: u32, below: u64, keep: usize) -> Vec<Window> {
    let mut best = Cheapest::new(keep, below);
    for (run, range) in picture.runs.iter().enumerate() {
        let blocks = &picture.blocks[range.blocks.clone()];
        let (mut first, mut sliding) = (0, 0u64);
        for (last, block) in blocks.iter().enumerate() {
            sliding += slides(block, threshold);
            while first <= last && block.floors[1] - blocks[first].floors[0] >= best.below {
                sliding -= slides(&blocks[first], threshold);
                first += 1;
            }
            let yields = |first: usize, sliding: u64| {
                u64::from(need) + sliding + u64::from(blocks[first].room.low) <= block.room.high.into()
            };
            if first > last || !yields(first, sliding) {
                continue;
            }
            while first < last {
                let fewer = sliding - slides(&blocks[first], threshold);
                if !yields(first + 1, fewer) {
                    break;
                }
                (first, sliding) = (first + 1, fewer);
            }
            let floor = block.floors[1] - blocks[first].floors[0];
            let blocks = range.blocks.start + first..range.blocks.start + last + 1;
            best.push(Window { floor, blocks, run, sliding });
        }
    }
    best.heap.into_sorted_vec()
}

/// What `block` takes away from a window by sliding in it.
fn slides(block: &Block, threshold: u32) -> u64 {
    // No branch: sizes come in no order that a processor could learn.
    u64::from(block.size) * u64::from(block.size > threshold)
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
        let known = windows.iter().map(|window| window.blocks.clone()).collect();
        let heap = windows.into_iter().map(Reverse).collect();
        Self { picture, threshold, heap, known, tries: 0..KEEP, looked_at: 0 }
    }

    /// The cheapest window that costs less than `below`; `None` also after 64 of them, or 2,048 blocks.
    pub(super) fn next(&mut self, below: u64) -> Option<Window> {
        let first = self.tries.next()? == 0;
        let Reverse(window) = self.heap.pop()?;
        self.looked_at += window.blocks.len();
        (window.floor < below && (first || self.looked_at <= BLOCKS)).then_some(window)
    }

    /// Adds what has a block more than `window` at either end.
    pub(super) fn extend(&mut self, window: &Window) {
        let Some(run) = self.picture.runs.get(window.run) else { return };
        let Range { start, end } = window.blocks;
        let below = (run.blocks.start < start).then(|| (start - 1..end, start - 1));
        let above = (end < run.blocks.end).then(|| (start..end + 1, end));
        for (blocks, added) in [below, above].into_iter().flatten() {
            if self.known.insert(blocks.clone()) {
                let block = &self.picture.blocks[added];
                let floor = window.floor.saturating_add(block.floor());
                let sliding = window.sliding + slides(block, self.threshold);
                self.heap.push(Reverse(Window { floor, blocks, run: window.run, sliding }));
            }
        }
    }
}
