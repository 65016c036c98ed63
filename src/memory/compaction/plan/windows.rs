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

use crate::memory::compaction::{
    layout::Span,
    plan::snapshot::{Extent, LayoutSnapshot},
};

/// Windows that are tried; no heap keeps more of them.
pub(super) const KEEP: usize = 64;

/// Windows that are found at first: mostly one of them is it, and the fewer are kept, the fewer are looked at.
const FEW: usize = 8;

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
    /// The run it lies in, as an index into the snapshot's.
    pub(super) run: usize,
    /// Granules of the blocks that are to slide.
    pub(super) sliding: u64,
}

impl Window {
    /// The spans of its blocks and of the holes beside them.
    pub(super) fn with_holes(&self, snapshot: &LayoutSnapshot) -> Range<usize> {
        let (core, extent) = (snapshot.extent(&self.spans), self.extent(snapshot));
        let Range { start, end } = self.spans;
        start - usize::from(extent.low < core.low)..end + usize::from(core.high < extent.high)
    }

    /// From the lower end of the hole below its blocks to the upper end of the hole above.
    pub(super) fn extent(&self, snapshot: &LayoutSnapshot) -> Extent {
        let run = &snapshot.runs[self.run].spans;
        let Range { start, end } = self.spans;
        Extent { low: snapshot.room(run, start).low, high: snapshot.room(run, end - 1).high }
    }

    /// The places where the blocks of the window and no others are in the way of `need` granules. What is not needed of
    /// the holes beside them can take blocks; so there are two: as far up, and as far down as the holes reach.
    pub(super) fn trims(&self, snapshot: &LayoutSnapshot, need: u32) -> [Option<Extent>; 2] {
        let (core, extent) = (snapshot.extent(&self.spans), self.extent(snapshot));
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
pub(super) fn cheapest_to_slide(snapshot: &LayoutSnapshot, need: u64, below: u64, keep: usize) -> Vec<Window> {
    let mut best = Cheapest::new(keep, below);
    for (run, range) in snapshot.runs.iter().enumerate() {
        let edges = &snapshot.edges[range.edges.clone()];
        let mut first = 0;
        for last in edges {
            let free = last.free + u64::from(last.hole.size());
            while edges.get(first + 1).is_some_and(|next| free >= need + next.free) {
                first += 1;
            }
            let first = &edges[first];
            let (floor, spans) = (last.floor - first.floor, first.above()..last.span);
            if floor < best.below && free >= need + first.free && !spans.is_empty() {
                best.push(Window { floor, spans, run, sliding: 0 });
            }
        }
    }
    best.heap.into_sorted_vec()
}

/// Finds up to `keep` windows that yield `need` granules and cost less than `below`, cheapest first.
///
/// Blocks of up to `threshold` granules are to leave the window, larger ones slide within it. `need` is more than any
/// hole has. For each last block the latest first one. Few are cheap enough, so that the blocks of a cluster are looked
/// at only where [`Outline`] promises something. O(n log keep).
pub(super) fn cheapest_to_leave(
    snapshot: &LayoutSnapshot,
    need: u32,
    threshold: u32,
    below: u64,
    keep: usize,
) -> Vec<Window> {
    let (spans, need) = (snapshot.spans, u64::from(need));
    let slid = sliding_below_edges(snapshot, threshold);
    let outline = Outline::new(snapshot, need, &slid, below, keep);
    let mut best = Cheapest::new(keep, outline.below);
    let cost = |span: usize| snapshot.tariff.floor(spans[span].size);
    let slides = |span: usize| slides(&spans[span], threshold);
    for (run, range) in snapshot.runs.iter().enumerate() {
        let edges = &snapshot.edges[range.edges.clone()];
        let slid = &slid[range.edges.clone()];
        let outline = &outline.ends[range.edges.clone()];
        // The window: the blocks from `first` up to the edge `seen`. Neither ever goes down.
        let (mut first, mut seen, mut floor, mut sliding) = (range.spans.start, 0, 0u64, 0u64);
        for (last, end) in outline.iter().enumerate().skip(1) {
            if end.floor >= best.below {
                continue;
            }
            // Down to where the window costs too much, or where it was before.
            let (under, over) = (&edges[last - 1], &edges[last]);
            let mut low = end.first;
            while low > 0 && edges[low].above() > first && under.floor - edges[low].floor < best.below {
                low -= 1;
            }
            if first < edges[low].above() {
                first = edges[low].above();
                (seen, floor, sliding) = (low, 0, 0);
            }
            floor = floor.saturating_add(under.floor - edges[seen].floor);
            sliding += slid[last - 1] - slid[seen];
            seen = last;
            let cluster = under.above()..over.span;
            for (block, top) in spans[cluster.clone()].iter().zip(cluster) {
                floor = floor.saturating_add(cost(top));
                sliding += slides(top);
                let high = if top + 1 == over.span { over.hole.high } else { block.end() };
                let yields = |first: usize, sliding: u64| {
                    need + sliding + u64::from(snapshot.room(&range.spans, first).low) <= high.into()
                };
                // Blocks are dropped from below while the window costs too much, or yields enough without them.
                let mut enough = false;
                while first <= top {
                    let next = snapshot.block_after(first);
                    let fewer = sliding.saturating_sub(slides(first));
                    if floor < best.below {
                        enough = enough || yields(first, sliding);
                        if !enough || next > top || !yields(next, fewer) {
                            break;
                        }
                    }
                    floor = floor.saturating_sub(cost(first));
                    (first, sliding) = (next, fewer);
                }
                if enough && first <= top {
                    best.push(Window { floor, spans: first..top + 1, run, sliding });
                }
            }
        }
    }
    best.heap.into_sorted_vec()
}

/// What can be said about windows from edges alone.
#[derive(Debug)]
struct Outline {
    /// For each edge, of the windows whose last block is in the cluster below it.
    ends: Vec<End>,
    /// What the cheapest windows cost less than.
    below: u64,
}

#[derive(Clone, Copy, Debug)]
struct End {
    /// The edge below the latest cluster in which they begin, counted from the run's first edge.
    first: usize,
    /// What they cost at least; `u64::MAX` if there are none.
    floor: u64,
}

impl Outline {
    /// The `keep` cheapest windows cost less than `below`, and no more than the `keep` cheapest of those windows that
    /// have whole clusters. O(edges · log keep).
    fn new(snapshot: &LayoutSnapshot, need: u64, slid: &[u64], below: u64, keep: usize) -> Self {
        let mut ends = Vec::with_capacity(snapshot.edges.len());
        let mut floors = BinaryHeap::with_capacity(keep);
        let mut bound = below;
        let (least, largest) = (snapshot.tariff.floor(0), snapshot.block_sizes.1);
        let pair = least.saturating_mul(2);
        for range in &snapshot.runs {
            let edges = &snapshot.edges[range.edges.clone()];
            let slid = &slid[range.edges.clone()];
            let mut first = 0;
            for (last, over) in edges.iter().enumerate() {
                let yields = |first: usize| {
                    need + slid[last] - slid[first] + u64::from(edges[first].hole.low) <= over.hole.high.into()
                };
                while first + 1 < last && yields(first + 1) {
                    first += 1;
                }
                if first >= last || !yields(first) {
                    ends.push(End { first, floor: u64::MAX });
                    continue;
                }
                let lowest = &edges[first];
                let holes = over.free + u64::from(over.hole.size()) - lowest.free;
                let bulk = |needed: u64, taken: u64| snapshot.tariff.bulk(needed.saturating_sub(taken), largest);
                let cheapest = match &edges[first + 1..last] {
                    // All blocks of one cluster, or some of an earlier one as well.
                    [] => bulk(need, holes).max(least).min(pair),
                    [low, ..] => {
                        let high = &edges[last - 1];
                        // All between the outer clusters; of those at least one block each, and what is lacking, or the
                        // whole first one and a block of an earlier one.
                        let sliding = slid[last - 1] - slid[first + 1];
                        let outer = bulk(need + sliding, holes + low.blocks_up_to(high)).max(pair);
                        let outer = outer.min((low.floor - lowest.floor).saturating_add(pair));
                        (high.floor - low.floor).saturating_add(outer)
                    }
                };
                ends.push(End { first, floor: cheapest });
                let floor = over.floor - lowest.floor;
                if floor < bound {
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
        Self { ends, below: bound.saturating_add(1).min(below) }
    }
}

/// For each edge, what blocks below it take away from a window by sliding in it: from the first one of the layout on.
fn sliding_below_edges(snapshot: &LayoutSnapshot, threshold: u32) -> Vec<u64> {
    if snapshot.block_sizes.1 <= threshold {
        return vec![0; snapshot.edges.len()];
    }
    let mut start = 0;
    let sums = snapshot.edges.iter().scan(0u64, |sum, edge| {
        let cluster = snapshot.spans.get(start..edge.span).unwrap_or_default();
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
    snapshot: &'a LayoutSnapshot<'a>,
    need: u32,
    threshold: u32,
    heap: BinaryHeap<Reverse<Window>>,
    /// All that were ever put into the heap: two ways lead to most of the longer windows.
    known: FxHashSet<Range<usize>>,
    /// What was not looked for yet costs at least so much; `None` once all was.
    beyond: Option<u64>,
    tries: Range<usize>,
    looked_at: usize,
}

impl<'a> Candidates<'a> {
    /// Windows as [`cheapest_to_leave`] finds them.
    pub(super) fn new(snapshot: &'a LayoutSnapshot<'a>, need: u32, threshold: u32, below: u64) -> Self {
        let (heap, known) = (BinaryHeap::new(), FxHashSet::default());
        let mut candidates =
            Self { snapshot, need, threshold, heap, known, beyond: None, tries: 0..KEEP, looked_at: 0 };
        candidates.beyond = candidates.find(below, FEW);
        candidates
    }

    /// The cheapest window that costs less than `below`; `None` also after 64 of them, or 3,072 spans.
    pub(super) fn next(&mut self, below: u64) -> Option<Window> {
        let first = self.tries.next()? == 0;
        let cheapest = self.heap.peek().map_or(u64::MAX, |Reverse(window)| window.floor);
        if self.beyond.is_some_and(|beyond| beyond < below && beyond < cheapest) {
            self.beyond = None;
            self.find(below, KEEP);
        }
        let Reverse(window) = self.heap.pop()?;
        self.looked_at += window.spans.len();
        (window.floor < below && (first || self.looked_at <= SPANS)).then_some(window)
    }

    /// Adds what has a block more than `window` at either end.
    pub(super) fn extend(&mut self, window: &Window) {
        let snapshot = self.snapshot;
        let Some(run) = snapshot.runs.get(window.run).map(|run| &run.spans) else { return };
        let Range { start, end } = window.spans.clone();
        let below = snapshot.blocks_of(run.start..start).next_back().map(|block| (block..end, block));
        let above = snapshot.blocks_of(end..run.end).next().map(|block| (start..block + 1, block));
        for (spans, added) in [below, above].into_iter().flatten() {
            let block = &snapshot.spans[added];
            let floor = window.floor.saturating_add(snapshot.tariff.floor(block.size));
            let sliding = window.sliding + slides(block, self.threshold);
            self.add(Window { floor, spans, run: window.run, sliding });
        }
    }

    /// Looks for the `keep` cheapest; what others cost at least, if there can be any.
    fn find(&mut self, below: u64, keep: usize) -> Option<u64> {
        let windows = cheapest_to_leave(self.snapshot, self.need, self.threshold, below, keep);
        let dearest = windows.last().filter(|_| windows.len() == keep).map(|window| window.floor);
        windows.into_iter().for_each(|window| self.add(window));
        dearest
    }

    fn add(&mut self, window: Window) {
        if self.known.insert(window.spans.clone()) {
            self.heap.push(Reverse(window));
        }
    }
}
