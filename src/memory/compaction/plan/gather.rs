//! The last resort: room for a window's blocks is made by sliding other runs.
//!
//! ```text
//!  before    | a a a b b . # . c c . |      # stays; three granules are wanted
//!  slide     |               c c . . |      opens what `b` needs
//!  move      | a a a . . . # c c b b |
//! ```
//!
//! Each run other than the window's, and each part of its own run beside the window, counts as one hole of all that is
//! free in it. Blocks are assigned largest first, best fit; then each run that took some gets the cheapest slide that
//! opens what they need, or none if its holes do as they are.

use std::ops::Range;

use smallvec::SmallVec;

use crate::memory::compaction::{
    layout::Spot,
    plan::{
        evacuate::split_by_size,
        fit::{BestFit, FreeRange},
        slide::Slider,
        snapshot::{Draft, Extent, LayoutSnapshot},
        step::Plan,
        windows::Candidates,
    },
};

/// Neighbouring spans, as far as they lie in an extent.
#[derive(Clone, Debug)]
struct Part {
    spans: Range<usize>,
    extent: Extent,
}

/// The window whose blocks are to leave.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) spans: Range<usize>,
    pub(super) extent: Extent,
    /// An index into the snapshot's runs.
    pub(super) run: usize,
}

/// One plan's trials, with scratch space.
#[derive(Debug)]
pub(super) struct Gathering<'a> {
    snapshot: &'a LayoutSnapshot<'a>,
    slider: &'a mut Slider,
    /// The owner is the run's index; behind the last run come the parts below and above the window.
    fit: BestFit,
    leaving: Vec<usize>,
    sliding: Vec<usize>,
    assigned: Vec<(u32, usize)>,
    draft: Draft,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(snapshot: &'a LayoutSnapshot<'a>, slider: &'a mut Slider) -> Self {
        let places = snapshot.runs.iter().zip(0..).map(|(run, owner)| {
            let size = snapshot.free_within(run.spans.clone(), snapshot.extent(&run.spans));
            FreeRange { size, owner, offset: 0 }
        });
        let fit = BestFit::new(places.filter(|place| place.size != 0).collect());
        let draft = Draft::default();
        Self { snapshot, slider, fit, leaving: Vec::new(), sliding: Vec::new(), assigned: Vec::new(), draft }
    }

    /// The cheapest way found to open a hole of `need` granules. O(n) for each of up to 64 windows a threshold.
    pub(super) fn open_hole(&mut self, need: u32) -> Option<Plan> {
        let mut best = None;
        let shelf = self.fit.shelf();
        let size = |rank: usize| shelf.get(rank).map(|place| place.size);
        let count = shelf.len();
        // None above the largest part can leave; fewer do where large parts are few.
        let ends = [count, count - count / 8, count - count / 4, count.div_ceil(2), count / 4];
        let ranks = ends.into_iter().filter_map(|end| end.checked_sub(1));
        let mut thresholds: SmallVec<[u32; 5]> = ranks.filter_map(size).collect();
        thresholds.dedup();
        for threshold in thresholds {
            let mut candidates = Candidates::new(self.snapshot, need, threshold, u64::MAX);
            while let Some(window) = candidates.next(best.as_ref().map_or(u64::MAX, |best: &Plan| best.cost)) {
                for extent in window.trims(self.snapshot, need).into_iter().flatten() {
                    let target = Target { spans: window.with_holes(self.snapshot), extent, run: window.run };
                    if self.open(&target, need, threshold).is_some() {
                        self.draft.offer(&mut best);
                    }
                }
                if best.is_none() {
                    candidates.extend(&window);
                }
            }
            if best.is_some() {
                break;
            }
        }
        best
    }

    /// Empties `target` whole.
    pub(super) fn clear(&mut self, target: &Target) -> Option<Plan> {
        self.open(target, target.extent.size(), u32::MAX)?;
        Some(std::mem::take(&mut self.draft.plan))
    }

    fn open(&mut self, target: &Target, need: u32, threshold: u32) -> Option<()> {
        let snapshot = self.snapshot;
        self.draft.clear();
        split_by_size(snapshot, &target.spans, threshold, &mut self.leaving, &mut self.sliding);

        let runs = u32::try_from(snapshot.runs.len()).ok()?;
        let own = u32::try_from(target.run).ok()?;
        let beside = beside(snapshot, target);
        self.fit.begin(own..own.checked_add(1)?);
        for (part, owner) in beside.iter().zip(runs..) {
            self.fit.add(FreeRange { size: snapshot.free_within(part.spans.clone(), part.extent), owner, offset: 0 });
        }
        self.assigned.clear();
        for &block in &self.leaving {
            let size = snapshot.spans[block].size;
            match self.fit.take(size) {
                Some(place) => {
                    self.fit.add(FreeRange { size: place.size - size, ..place });
                    self.assigned.push((place.owner, block));
                }
                None => self.sliding.push(block),
            }
        }
        let staying: u64 = self.sliding.iter().map(|&block| u64::from(snapshot.spans[block].size)).sum();
        if staying + u64::from(need) > target.extent.size().into() {
            return None;
        }
        // By owner, and within one still largest first.
        self.assigned.sort_by_key(|&(owner, _)| owner);
        for group in self.assigned.chunk_by(|a, b| a.0 == b.0) {
            let owner = group.first()?.0;
            let part = match snapshot.runs.get(owner as usize) {
                Some(run) => Part { spans: run.spans.clone(), extent: snapshot.extent(&run.spans) },
                None => beside.get((owner - runs) as usize)?.clone(),
            };
            move_in(snapshot, self.slider, &mut self.draft, &part, group)?;
        }
        self.sliding.sort_unstable();
        let free = self.slider.slide(snapshot, &self.sliding, target.extent, need, &mut self.draft)?;
        let region = snapshot.spans.get(target.spans.start)?.region;
        self.draft.finish(Spot { region, offset: free.low }, free.size());
        Some(())
    }
}

/// The parts of the target's run below and above it. A hole that straddles an edge belongs to the part as far as it
/// lies there; a block that does belongs to the target.
fn beside(snapshot: &LayoutSnapshot, target: &Target) -> [Part; 2] {
    let run = snapshot.runs.get(target.run).map(|run| run.spans.clone()).unwrap_or_default();
    let whole = snapshot.extent(&run);
    let hole = |span: usize| snapshot.spans.get(span).is_some_and(|span| span.is_hole());
    let Range { start, end } = target.spans.clone();
    let below = if hole(start) { start + 1 } else { start };
    let above = if hole(end.saturating_sub(1)) { end.saturating_sub(1) } else { end };
    [
        Part { spans: run.start..below, extent: Extent { low: whole.low, high: target.extent.low } },
        Part { spans: above..run.end, extent: Extent { low: target.extent.high, high: whole.high } },
    ]
}

/// Moves the blocks of `group`, largest first, into `part`, which has as much free as they need.
fn move_in(
    snapshot: &LayoutSnapshot,
    slider: &mut Slider,
    draft: &mut Draft,
    part: &Part,
    group: &[(u32, usize)],
) -> Option<()> {
    if let Some(places) = place_in_holes(snapshot, part, group) {
        for (block, to) in places {
            draft.push(snapshot, block, to);
        }
        return Some(());
    }
    let need: u64 = group.iter().map(|&(_, block)| u64::from(snapshot.spans[block].size)).sum();
    let need = u32::try_from(need).ok()?;
    let (spans, extent) = cheapest_slide(snapshot, part, need)?;
    let blocks: Vec<usize> = snapshot.blocks_of(spans).collect();
    let free = slider.slide(snapshot, &blocks, extent, need, draft)?;
    let region = snapshot.spans.get(part.spans.start)?.region;
    let mut offset = free.low;
    for &(_, block) in group {
        draft.push(snapshot, block, Spot { region, offset });
        offset = offset.checked_add(snapshot.spans[block].size)?;
    }
    Some(())
}

/// Places for all blocks of `group` in the holes of `part` as they are.
fn place_in_holes(snapshot: &LayoutSnapshot, part: &Part, group: &[(u32, usize)]) -> Option<Vec<(usize, Spot)>> {
    let holes = part.spans.clone().filter(|&span| snapshot.spans[span].is_hole());
    let places = holes.filter_map(|span| {
        let extent = part.extent.clip(&snapshot.spans[span]);
        Some(FreeRange { size: extent.size(), owner: u32::try_from(span).ok()?, offset: extent.low })
    });
    let mut fit = BestFit::new(places.collect());
    group
        .iter()
        .map(|&(_, block)| Some((block, crate::memory::compaction::plan::evacuate::settle(snapshot, &mut fit, block)?)))
        .collect()
}

/// The spans of `part` between whose holes the fewest blocks lie, by cost, for `need` granules. O(part).
fn cheapest_slide(snapshot: &LayoutSnapshot, part: &Part, need: u32) -> Option<(Range<usize>, Extent)> {
    let free = |span: usize| {
        let span = &snapshot.spans[span];
        if span.is_hole() { u64::from(part.extent.clip(span).size()) } else { 0 }
    };
    let floor_of = |span: usize| {
        let span = &snapshot.spans[span];
        if span.is_movable() { snapshot.tariff.floor(span.size) } else { 0 }
    };
    let mut best: Option<(u64, Range<usize>)> = None;
    let (mut gain, mut floor) = (0u64, 0u64);
    let mut first = part.spans.start;
    for last in part.spans.clone() {
        gain += free(last);
        floor = floor.saturating_add(floor_of(last));
        while first < last && gain - free(first) >= need.into() {
            gain -= free(first);
            floor = floor.saturating_sub(floor_of(first));
            first += 1;
        }
        if gain >= need.into() && best.as_ref().is_none_or(|(least, _)| floor < *least) {
            best = Some((floor, first..last + 1));
        }
    }
    let (_, spans) = best?;
    let whole = snapshot.extent(&spans);
    let extent = Extent { low: whole.low.max(part.extent.low), high: whole.high.min(part.extent.high) };
    Some((spans, extent))
}
