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
    /// The least that moving it costs.
    pub(super) floor: u64,
}

/// A hole, and the blocks between it and the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) span: usize,
    pub(super) size: u32,
    /// The next block above, as an index into the picture's blocks.
    pub(super) above: usize,
    /// The least that moving the blocks below it costs, down to the next hole or the run's end.
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
        let mut picture = Self {
            spans,
            tariff: Tariff::new(costs, layout.granule_shift),
            blocks: Vec::with_capacity(spans.len()),
            // Two holes never touch.
            holes: Vec::with_capacity(spans.len() / 2 + 1),
            runs: Vec::new(),
            free: 0,
            largest: 0,
            smallest_block: u32::MAX,
        };
        let is_fixed = |span: &Span| span.kind == Kind::Fixed;
        let mut start = 0;
        // A block that stays is a chunk of its own.
        for run in spans.chunk_by(|a, b| a.region == b.region && !is_fixed(a) && !is_fixed(b)) {
            if !is_fixed(&run[0]) {
                picture.add_run(start, run);
            }
            start += run.len();
        }
        picture
    }

    /// Adds the run `spans`, whose first one has the index `start`.
    fn add_run(&mut self, start: usize, spans: &[Span]) {
        let (blocks, holes) = (self.blocks.len(), self.holes.len());
        let mut low = spans.first().map_or(0, |span| span.offset);
        let mut floor = 0u64;
        for (span, index) in spans.iter().zip(start..) {
            let end = span.end();
            if span.is_hole() {
                if let Some(block) = self.blocks[blocks..].last_mut() {
                    block.room.high = end;
                }
                self.free += u64::from(span.size);
                self.largest = self.largest.max(span.size);
                self.holes.push(Hole { span: index, size: span.size, above: self.blocks.len(), floor });
                floor = 0;
            } else {
                let own = self.tariff.floor(span.size);
                self.smallest_block = self.smallest_block.min(span.size);
                self.blocks.push(Block { span: index, size: span.size, room: Extent { low, high: end }, floor: own });
                floor = floor.saturating_add(own);
                low = end;
            }
        }
        self.runs.push(Between {
            spans: start..start + spans.len(),
            blocks: blocks..self.blocks.len(),
            holes: holes..self.holes.len(),
        });
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
