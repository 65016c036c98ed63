//! Sliding blocks apart.
//!
//! ```text
//!  before   |  a  . b  . . c . |      low ... high, `.` is free
//!  down     |a b c             |      all to the lower end
//!  up       |             a b c|
//!  split    |a             b c |      those below a point down, the others up
//! ```
//!
//! Every block moves once at most. Down moves run in order of address and up moves against it, so a destination is
//! free, was vacated before, or is the block's own place.

use std::ops::Range;

use crate::memory::compaction::{
    layout::Spot,
    plan::{
        snapshot::{Draft, Extent, LayoutSnapshot},
        step::Plan,
        windows::{self, KEEP, SPANS},
    },
};

/// Where each block would go in one direction; `[0]` is the block that moves first.
#[derive(Debug, Default)]
struct Pass {
    to: Vec<u32>,
    /// Spent on the first blocks, and slack left free between them: one element more than blocks.
    cost: Vec<u64>,
    slack: Vec<u32>,
}

/// Scratch space for slides.
#[derive(Debug, Default)]
pub(super) struct Slider {
    down: Pass,
    up: Pass,
}

/// The end towards which blocks slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Toward {
    Low,
    High,
}

impl Slider {
    /// Moves `blocks`, ascending and all within `extent`, apart so that `need` granules of it are contiguous: the
    /// cheapest of all splits. Appends the steps and returns what is free then; `None` if there is too little.
    /// O(blocks).
    pub(super) fn slide(
        &mut self,
        snapshot: &LayoutSnapshot,
        blocks: &[usize],
        extent: Extent,
        need: u32,
        draft: &mut Draft,
    ) -> Option<Extent> {
        let live: u64 = blocks.iter().map(|&block| u64::from(snapshot.spans[block].size)).sum();
        let slack = u64::from(extent.size()).checked_sub(live)?.checked_sub(need.into())?;
        let slack = u32::try_from(slack).ok()?;
        self.down.fill(snapshot, blocks.iter().copied(), extent, slack, Toward::Low)?;
        self.up.fill(snapshot, blocks.iter().rev().copied(), extent, slack, Toward::High)?;

        // Ties go down: to where best fit with the lower address would have put the blocks.
        let count = blocks.len();
        let split = (0..=count)
            .rev()
            .filter(|&split| {
                u64::from(self.down.slack[split]) + u64::from(self.up.slack[count - split]) <= slack.into()
            })
            .min_by_key(|&split| self.down.cost[split].saturating_add(self.up.cost[count - split]))?;

        let mut free = extent;
        for (&block, &to) in blocks[..split].iter().zip(&self.down.to) {
            draft.push(snapshot, block, Spot { region: snapshot.spans[block].region, offset: to });
            free.low = to.saturating_add(snapshot.spans[block].size);
        }
        for (&block, &to) in blocks[split..].iter().rev().zip(&self.up.to) {
            draft.push(snapshot, block, Spot { region: snapshot.spans[block].region, offset: to });
            free.high = to;
        }
        Some(free)
    }
}

impl Pass {
    /// Lays out `blocks` from one end of `extent` on. A block may lie up to `slack` granules further in, all blocks
    /// together, where it then can stay, or have its pages exchanged.
    fn fill(
        &mut self,
        snapshot: &LayoutSnapshot,
        blocks: impl ExactSizeIterator<Item = usize>,
        extent: Extent,
        slack: u32,
        toward: Toward,
    ) -> Option<()> {
        self.to.clear();
        self.cost.clear();
        self.slack.clear();
        let count = blocks.len();
        self.to.reserve(count);
        self.cost.reserve(count + 1);
        self.slack.reserve(count + 1);
        self.cost.push(0);
        self.slack.push(0);
        let page = snapshot.tariff.page();
        let (mut cost, mut used) = (0u64, 0u32);
        let mut edge = match toward {
            Toward::Low => extent.low,
            Toward::High => extent.high,
        };
        for block in blocks {
            let span = &snapshot.spans[block];
            let spot = |offset| Spot { region: span.region, offset };
            let nearest = match toward {
                Toward::Low => edge,
                Toward::High => edge.checked_sub(span.size)?,
            };
            let distance = nearest.abs_diff(span.offset);
            // To lie alike is to be a whole number of pages away: a little less far than the nearest place.
            let gap = if distance <= slack - used { distance } else { distance % page };
            let further = match toward {
                Toward::Low => nearest.saturating_add(gap),
                Toward::High => nearest.saturating_sub(gap),
            };
            let (mut to, mut price) = (nearest, snapshot.price(block, spot(nearest)));
            if gap != 0 && gap <= slack - used {
                let other = snapshot.price(block, spot(further));
                if other < price {
                    (to, price) = (further, other);
                    used += gap;
                }
            }
            cost = cost.saturating_add(price);
            edge = match toward {
                Toward::Low => to.checked_add(span.size)?,
                Toward::High => to,
            };
            self.to.push(to);
            self.cost.push(cost);
            self.slack.push(used);
        }
        Some(())
    }
}

/// The cheapest slide that opens a hole of `need` granules: exact where blocks are copied, because a window between two
/// holes that yields just enough leaves no block of it where it is. `None` if no run has so much free. O(n).
pub(super) fn cheapest(snapshot: &LayoutSnapshot, slider: &mut Slider, need: u32) -> Option<Plan> {
    let mut best = None;
    let mut draft = Draft::default();
    let mut blocks = Vec::new();
    let mut attempt = |need_with_slack: u64, keep: usize, best: &mut Option<Plan>| {
        let below = best.as_ref().map_or(u64::MAX, |plan: &Plan| plan.cost);
        let mut looked_at = 0;
        for window in windows::cheapest_to_slide(snapshot, need_with_slack, below, keep) {
            looked_at += window.spans.len();
            let first = looked_at == window.spans.len();
            if (looked_at > SPANS && !first) || best.as_ref().is_some_and(|best| window.floor >= best.cost) {
                break;
            }
            draft.clear();
            blocks.clear();
            blocks.extend(snapshot.blocks_of(window.spans.clone()));
            let extent = window.extent(snapshot);
            let Some(free) = slider.slide(snapshot, &blocks, extent, need, &mut draft) else { continue };
            draft.finish(Spot { region: snapshot.spans[window.spans.start].region, offset: free.low }, free.size());
            draft.offer(best);
        }
    };
    if snapshot.tariff.exchanges() {
        attempt(need.into(), KEEP, &mut best);
        // A page more, so that blocks can lie alike.
        attempt(u64::from(need) + u64::from(snapshot.tariff.page() - 1), KEEP, &mut best);
    } else {
        attempt(need.into(), 1, &mut best);
    }
    best
}

/// Moves `movers`, ascending, out of `window` and directly beyond its upper or lower end; the blocks there make way
/// within the run `run`. Holes of the run must not have been used before.
///
/// Appends the steps; `None`, with some of them appended, if the run has too little room. O(run).
pub(super) fn shove(
    snapshot: &LayoutSnapshot,
    run: &Range<usize>,
    window: (Range<usize>, Extent),
    movers: &[usize],
    toward: Toward,
    draft: &mut Draft,
) -> Option<()> {
    let limit = snapshot.extent(run);
    let (spans, window) = window;
    let mut moves: Vec<(usize, u32)> = Vec::new();
    match toward {
        Toward::High => {
            let mut edge = window.high;
            let mut place = |block: usize, edge: &mut u32| {
                let to = *edge;
                *edge = edge.checked_add(snapshot.spans[block].size).filter(|&end| end <= limit.high)?;
                moves.push((block, to));
                Some(())
            };
            for &block in movers {
                place(block, &mut edge)?;
            }
            for block in snapshot.blocks_of(spans.end..run.end) {
                if snapshot.spans[block].offset >= edge {
                    break;
                }
                place(block, &mut edge)?;
            }
        }
        Toward::Low => {
            let mut edge = window.low;
            let mut place = |block: usize, edge: &mut u32| {
                *edge = edge.checked_sub(snapshot.spans[block].size).filter(|&to| to >= limit.low)?;
                moves.push((block, *edge));
                Some(())
            };
            for &block in movers.iter().rev() {
                place(block, &mut edge)?;
            }
            for block in snapshot.blocks_of(run.start..spans.start).rev() {
                if snapshot.spans[block].end() <= edge {
                    break;
                }
                place(block, &mut edge)?;
            }
        }
    }
    for &(block, to) in moves.iter().rev() {
        draft.push(snapshot, block, Spot { region: snapshot.spans[block].region, offset: to });
    }
    Some(())
}
