//! What all plans look at: the spans with their prices and runs.

use std::ops::Range;

use super::{Plan, Step};
use crate::memory::compaction::{Costs, Kind, Layout, Run, Span, Spot, costs::Tariff};

/// A layout, prepared: O(n), once a plan.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) spans: &'a [Span],
    pub(super) tariff: Tariff,
    /// All that may move, in order of address.
    pub(super) blocks: Vec<Block>,
    /// What lies between barriers: blocks that stay and ends of regions. None is empty.
    pub(super) runs: Vec<Between>,
    /// Granules in holes.
    pub(super) free: u64,
    /// Granules of the largest hole.
    pub(super) largest: u32,
    /// Granules of the smallest block that may move; `u32::MAX` if none may.
    pub(super) smallest_block: u32,
}

/// A block that may move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) span: usize,
    pub(super) size: u32,
    /// The block and the holes beside it.
    pub(super) room: Extent,
    /// The least that moving it costs.
    pub(super) floor: u64,
}

/// A run: spans of a region without a barrier between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Between {
    pub(super) spans: Range<usize>,
    /// Indices into the picture's blocks.
    pub(super) blocks: Range<usize>,
}

impl<'a> Picture<'a> {
    pub(super) fn new(layout: &'a Layout, costs: &Costs) -> Self {
        let spans = &layout.spans[..];
        let tariff = Tariff::new(costs, layout.granule_shift);
        let mut runs = Vec::new();
        let mut blocks: Vec<Block> = Vec::with_capacity(spans.len());
        let (mut free, mut largest, mut smallest_block) = (0, 0, u32::MAX);
        let mut run = Between::default();
        let mut last: Option<&Span> = None;
        for (index, span) in spans.iter().enumerate() {
            if last.is_some_and(|last| last.region != span.region) {
                runs.push(std::mem::replace(
                    &mut run,
                    Between { spans: index..index, blocks: blocks.len()..blocks.len() },
                ));
                last = None;
            }
            let hole_before = last.filter(|last| last.is_hole());
            match span.kind {
                Kind::Hole => {
                    free += u64::from(span.size);
                    largest = largest.max(span.size);
                    if last.is_some_and(Span::is_movable)
                        && let Some(block) = blocks.last_mut()
                    {
                        block.room.high = span.end();
                    }
                }
                Kind::Movable => {
                    smallest_block = smallest_block.min(span.size);
                    let room = Extent { low: hole_before.map_or(span.offset, |hole| hole.offset), high: span.end() };
                    blocks.push(Block { span: index, size: span.size, room, floor: tariff.floor(span.size) });
                }
                Kind::Fixed => {
                    runs.push(std::mem::take(&mut run));
                    run = Between { spans: index + 1..index + 1, blocks: blocks.len()..blocks.len() };
                }
            }
            if span.kind != Kind::Fixed {
                run.spans.end = index + 1;
                run.blocks.end = blocks.len();
            }
            last = Some(span);
        }
        runs.push(run);
        runs.retain(|run| !run.spans.is_empty());
        Self { spans, tariff, blocks, runs, free, largest, smallest_block }
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
    pub(super) fn push(&mut self, picture: &Picture, span: usize, to: Spot) {
        let block = &picture.spans[span];
        if block.spot() == to {
            return;
        }
        self.plan.steps.push(Step { span, region: to.region, to: to.offset });
        self.plan.moved += u64::from(block.size);
        self.plan.cost = self.plan.cost.saturating_add(picture.price(span, to));
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
