//! What all plans look at: the spans with their prices and runs.

use std::ops::Range;

use crate::memory::compaction::{
    costs::{Costs, Tariff},
    layout::{Kind, Layout, Run, Span, Spot},
    plan::step::{Plan, Step},
};

/// A layout, prepared: O(n), once a plan.
#[derive(Debug)]
pub(super) struct LayoutSnapshot<'a> {
    pub(super) spans: &'a [Span],
    pub(super) tariff: Tariff,
    /// In order of address.
    pub(super) edges: Vec<Edge>,
    /// What lies between barriers: blocks that stay and ends of regions. None is empty.
    pub(super) runs: Vec<Between>,
    /// Granules in holes.
    pub(super) free: u64,
    /// Granules of the largest hole.
    pub(super) largest: u32,
    /// Granules of the smallest block that may move, and of the largest; `u32::MAX` and zero if none may.
    pub(super) block_sizes: (u32, u32),
}

/// Where a cluster of touching blocks ends: a hole, or an end of the run.
///
/// The searches for windows go from edge to edge, because there are far fewer of them than blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// The hole, or the first span of the run, or the one behind its last.
    pub(super) span: usize,
    /// The hole; empty at an end of the run.
    pub(super) hole: Extent,
    /// The least that moving all blocks below it costs, from the first one of the layout on.
    pub(super) floor: u64,
    /// Granules in all holes below it.
    pub(super) free: u64,
}

/// A run: spans of a region without a barrier between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Between {
    pub(super) spans: Range<usize>,
    /// Indices into the snapshot's edges: where the first cluster begins, and where each one ends.
    pub(super) edges: Range<usize>,
}

impl Edge {
    /// The first span of the cluster above.
    pub(super) fn above(&self) -> usize {
        self.span + usize::from(self.hole.size() != 0)
    }

    /// Granules of the blocks between this edge and a higher one of the same run.
    pub(super) fn blocks_up_to(&self, higher: &Self) -> u64 {
        u64::from(higher.hole.low.saturating_sub(self.hole.low)).saturating_sub(higher.free - self.free)
    }
}

impl<'a> LayoutSnapshot<'a> {
    pub(super) fn new(layout: &'a Layout, costs: &Costs) -> Self {
        let spans = &layout.spans[..];
        let tariff = Tariff::new(costs, layout.granule_shift);
        // Two holes never touch.
        let mut edges = Vec::with_capacity(spans.len() / 2 + 2);
        let mut runs = Vec::new();
        let (mut floor, mut free, mut smallest, mut largest) = (0u64, 0, u32::MAX, 0);
        let mut start = 0;
        while let Some(first) = spans.get(start) {
            let first_edge = edges.len();
            if first.is_movable() {
                edges.push(Edge { span: start, hole: Extent { low: first.offset, high: first.offset }, floor, free });
            }
            let mut end = start;
            for span in &spans[start..] {
                match span.kind {
                    _ if span.region != first.region => break,
                    Kind::Fixed => break,
                    Kind::Hole => {
                        let hole = Extent { low: span.offset, high: span.end() };
                        edges.push(Edge { span: end, hole, floor, free });
                        free += u64::from(hole.size());
                    }
                    Kind::Movable => {
                        floor = floor.saturating_add(tariff.floor(span.size));
                        smallest = smallest.min(span.size);
                        largest = largest.max(span.size);
                    }
                }
                end += 1;
            }
            if start == end {
                // A block that stays.
                start += 1;
                continue;
            }
            if let Some(last) = spans[start..end].last().filter(|last| last.is_movable()) {
                edges.push(Edge { span: end, hole: Extent { low: last.end(), high: last.end() }, floor, free });
            }
            runs.push(Between { spans: start..end, edges: first_edge..edges.len() });
            start = end;
        }
        let largest_hole = edges.iter().map(|edge| edge.hole.size()).max().unwrap_or(0);
        Self { spans, tariff, edges, runs, free, largest: largest_hole, block_sizes: (smallest, largest) }
    }

    /// The span `span` of the run `run` and the holes beside it.
    pub(super) fn room(&self, run: &Range<usize>, span: usize) -> Extent {
        let hole =
            |at: Option<usize>| at.filter(|at| run.contains(at)).map(|at| &self.spans[at]).filter(|at| at.is_hole());
        Extent {
            low: hole(span.checked_sub(1)).map_or(self.spans[span].offset, |hole| hole.offset),
            high: hole(span.checked_add(1)).map_or(self.spans[span].end(), Span::end),
        }
    }

    /// The span of the next block above the one at `block`, if its run has one.
    pub(super) fn block_after(&self, block: usize) -> usize {
        block + 1 + usize::from(self.spans.get(block + 1).is_some_and(Span::is_hole))
    }

    /// Blocks that may move among the spans `range`, in order of address.
    pub(super) fn blocks_of(&self, range: Range<usize>) -> impl DoubleEndedIterator<Item = usize> {
        range.filter(|&index| self.spans[index].is_movable())
    }

    /// From the first granule of the spans `range` to behind the last.
    pub(super) fn extent(&self, range: &Range<usize>) -> Extent {
        let spans = &self.spans[range.clone()];
        Extent { low: spans.first().map_or(0, |span| span.offset), high: spans.last().map_or(0, Span::end) }
    }

    /// Granules in holes among the spans `range`, as far as they lie in `extent`.
    pub(super) fn free_within(&self, range: Range<usize>, extent: Extent) -> u32 {
        let free: u64 = self.spans[range]
            .iter()
            .filter(|span| span.is_hole())
            .map(|span| u64::from(extent.clip(span).size()))
            .sum();
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    /// The price of moving the block `span` to `to`.
    pub(super) fn price(&self, span: usize, to: Spot) -> u64 {
        self.tariff.price(self.spans[span].size, self.spans[span].spot(), to)
    }

    /// Whether exchanging its pages is the cheapest move of the block `span`.
    pub(super) fn exchangeable(&self, span: usize) -> bool {
        let size = self.spans[span].size;
        self.tariff.floor(size) < self.tariff.copied(size)
    }
}

/// Granules `low..high` of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) low: u32,
    pub(super) high: u32,
}

impl Extent {
    pub(super) fn size(self) -> u32 {
        self.high.saturating_sub(self.low)
    }

    /// What of `span` lies within.
    pub(super) fn clip(self, span: &Span) -> Self {
        Self { low: span.offset.max(self.low), high: span.end().min(self.high) }
    }
}

/// A plan that grows.
#[derive(Clone, Debug, Default)]
pub(super) struct Draft {
    pub(super) plan: Plan,
}

impl Draft {
    pub(super) fn clear(&mut self) {
        self.plan.steps.clear();
        self.plan = Plan { steps: std::mem::take(&mut self.plan.steps), ..Plan::default() };
    }

    /// Appends the move of the block `span` to `to`; nothing if it is there.
    pub(super) fn push(&mut self, snapshot: &LayoutSnapshot, span: usize, to: Spot) {
        let block = &snapshot.spans[span];
        if block.spot() == to {
            return;
        }
        self.plan.steps.push(Step { span, region: to.region, to: to.offset });
        self.plan.moved += u64::from(block.size);
        self.plan.cost = self.plan.cost.saturating_add(snapshot.price(span, to));
    }

    /// Names the hole.
    pub(super) fn finish(&mut self, spot: Spot, size: u32) {
        self.plan.hole = Some(Run { region: spot.region, offset: spot.offset, size });
    }

    /// Leaves the plan in `best` if it costs less than what is there.
    pub(super) fn offer(&mut self, best: &mut Option<Plan>) {
        if best.as_ref().is_none_or(|best| (self.plan.cost, self.plan.moved) < (best.cost, best.moved)) {
            *best = Some(std::mem::take(&mut self.plan));
        }
    }
}
