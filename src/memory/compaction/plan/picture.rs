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
    /// All holes, in order of address.
    pub(super) holes: Vec<Hole>,
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
    /// The least that moving the run's blocks up to this one costs; without it, and with it.
    pub(super) floors: [u64; 2],
}

/// A hole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) span: usize,
    pub(super) size: u32,
    /// The next block above, as an index into the picture's blocks.
    pub(super) above: usize,
    /// The least that moving the run's blocks below it costs.
    pub(super) floor: u64,
}

/// A run: spans of a region without a barrier between them.
#[derive(Clone, Debug, Default)]
pub(super) struct Between {
    pub(super) spans: Range<usize>,
    /// Indices into the picture's blocks.
    pub(super) blocks: Range<usize>,
    /// Indices into the picture's holes.
    pub(super) holes: Range<usize>,
}

impl<'a> Picture<'a> {
    pub(super) fn new(layout: &'a Layout, costs: &Costs) -> Self {
        let spans = &layout.spans[..];
        let tariff = Tariff::new(costs, layout.granule_shift);
        let mut blocks: Vec<Block> = Vec::with_capacity(spans.len());
        // Two holes never touch.
        let mut holes = Vec::with_capacity(spans.len() / 2 + 1);
        let mut runs = Vec::new();
        let mut run = Between::default();
        let mut region = spans.first().map(|span| span.region);
        // Where the last block ended, and what moving the run's blocks so far costs.
        let (mut low, mut floor) = (spans.first().map_or(0, |span| span.offset), 0u64);
        for (index, span) in spans.iter().enumerate() {
            if region != Some(span.region) {
                region = Some(span.region);
                runs.push(run.split_off(index, &blocks, &holes));
                (low, floor) = (span.offset, 0);
            }
            let end = span.end();
            match span.kind {
                Kind::Hole => {
                    if let Some(block) = blocks[run.blocks.start..].last_mut() {
                        block.room.high = end;
                    }
                    holes.push(Hole { span: index, size: span.size, above: blocks.len(), floor });
                }
                Kind::Movable => {
                    let before = floor;
                    floor = floor.saturating_add(tariff.floor(span.size));
                    let room = Extent { low, high: end };
                    blocks.push(Block { span: index, size: span.size, room, floors: [before, floor] });
                    low = end;
                }
                Kind::Fixed => {
                    runs.push(run.split_off(index, &blocks, &holes));
                    run.spans.start = index + 1;
                    (low, floor) = (end, 0);
                }
            }
        }
        runs.push(run.split_off(spans.len(), &blocks, &holes));
        runs.retain(|run| !run.spans.is_empty());
        // Apart from the loop above, which has enough to keep in registers.
        let free = holes.iter().map(|hole| u64::from(hole.size)).sum();
        let largest = holes.iter().map(|hole| hole.size).max().unwrap_or(0);
        let smallest_block = blocks.iter().map(|block| block.size).min().unwrap_or(u32::MAX);
        Self { spans, tariff, blocks, holes, runs, free, largest, smallest_block }
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

impl Block {
    /// The least that moving it costs.
    pub(super) fn floor(&self) -> u64 {
        self.floors[1] - self.floors[0]
    }
}

impl Between {
    /// Ends the run before the span `end`, and begins the next one there.
    fn split_off(&mut self, end: usize, blocks: &[Block], holes: &[Hole]) -> Self {
        let next = Self { spans: end..end, blocks: blocks.len()..blocks.len(), holes: holes.len()..holes.len() };
        let Self { spans, blocks, holes } = std::mem::replace(self, next.clone());
        Self {
            spans: spans.start..next.spans.start,
            blocks: blocks.start..next.blocks.start,
            holes: holes.start..next.holes.start,
        }
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
