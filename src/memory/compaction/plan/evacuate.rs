//! Evacuating a window: its blocks go into holes elsewhere, largest first, best fit.
//!
//! ```text
//!  before   | a a . b b b b c . . . # # . . . . # |      # stays
//!                   ^-------------^                      seven granules are wanted
//!  after    | a a c . . . . . . . . # # b b b b # |
//! ```
//!
//! A block too large for every hole elsewhere slides within the window instead, and the window is longer by it.
//! Evacuations never overlap and go to what was free from the start, so their order is free.

use std::{cmp::Reverse, ops::Range};

use smallvec::SmallVec;

use crate::memory::compaction::{
    layout::Spot,
    plan::{
        fit::{BestFit, FreeRange},
        slide::Slider,
        snapshot::{Draft, Extent, LayoutSnapshot},
        step::Plan,
        windows::Candidates,
    },
};

/// One plan's trials: the holes as places to go (the owner is the span's index), and scratch space.
#[derive(Debug)]
pub(super) struct Evacuation<'a> {
    snapshot: &'a LayoutSnapshot<'a>,
    slider: &'a mut Slider,
    fit: BestFit,
    leaving: Vec<usize>,
    sliding: Vec<usize>,
    draft: Draft,
}

impl<'a> Evacuation<'a> {
    pub(super) fn new(snapshot: &'a LayoutSnapshot<'a>, slider: &'a mut Slider) -> Self {
        let least = snapshot.block_sizes.0.max(1);
        let places = snapshot.edges.iter().filter(|edge| edge.hole.size() >= least).map(|edge| FreeRange {
            size: edge.hole.size(),
            owner: u32::try_from(edge.span).unwrap_or(u32::MAX),
            offset: edge.hole.low,
        });
        let fit = BestFit::new(places.collect());
        Self { snapshot, slider, fit, leaving: Vec::new(), sliding: Vec::new(), draft: Draft::default() }
    }

    /// Leaves in `best` the cheapest evacuation that opens a hole of `need` granules, if that costs less than what is
    /// there. O(n log n).
    pub(super) fn improve(&mut self, need: u32, best: &mut Option<Plan>) {
        // None above the largest place can leave; fewer should where large places are few.
        let shelf = self.fit.shelf();
        let size =
            |share: usize| shelf.get((shelf.len() - shelf.len() / share).checked_sub(1)?).map(|place| place.size);
        let largest = shelf.last().map(|place| place.size);
        let usual = size(8).filter(|&usual| largest.is_some_and(|largest| usual < largest / 2));
        for threshold in [largest, usual].into_iter().flatten() {
            let before = best.as_ref().map_or(u64::MAX, |best| best.cost);
            let mut candidates = Candidates::new(self.snapshot, need, threshold, before);
            while let Some(window) = candidates.next(best.as_ref().map_or(u64::MAX, |best| best.cost)) {
                let mut opened = false;
                let spans = window.with_holes(self.snapshot);
                for extent in window.trims(self.snapshot, need).into_iter().flatten() {
                    if self.open(&spans, extent, need, threshold).is_some() {
                        self.draft.offer(best);
                        opened = true;
                    }
                }
                if !opened {
                    candidates.extend(&window);
                }
            }
            if best.as_ref().is_some_and(|best| best.cost < before) {
                break;
            }
        }
    }

    /// Drafts the opening of `need` granules in the part `extent` of the window `spans`.
    fn open(&mut self, spans: &Range<usize>, extent: Extent, need: u32, threshold: u32) -> Option<()> {
        self.evacuate(spans, extent, None, threshold);
        let free = self.slider.slide(self.snapshot, &self.sliding, extent, need, &mut self.draft)?;
        let region = self.snapshot.spans.get(spans.start)?.region;
        self.draft.finish(Spot { region, offset: free.low }, free.size());
        Some(())
    }

    /// Drafts the emptying of the part `extent` of the window `spans`, but uses no hole of the run `avoid`. Returns the
    /// blocks that found no place, ascending, and the draft.
    pub(super) fn empty(
        &mut self,
        spans: &Range<usize>,
        extent: Extent,
        avoid: Option<&Range<usize>>,
    ) -> (&[usize], &mut Draft) {
        self.evacuate(spans, extent, avoid, u32::MAX);
        (&self.sliding, &mut self.draft)
    }

    /// Drafts the moves of the blocks of up to `threshold` granules; `self.sliding` is what remains, ascending.
    fn evacuate(&mut self, spans: &Range<usize>, extent: Extent, avoid: Option<&Range<usize>>, threshold: u32) {
        let snapshot = self.snapshot;
        self.draft.clear();
        split_by_size(snapshot, spans, threshold, &mut self.leaving, &mut self.sliding);
        let owner = |span| u32::try_from(span).unwrap_or(u32::MAX);
        let barred = avoid.unwrap_or(spans);
        self.fit.begin(owner(barred.start)..owner(barred.end));
        if avoid.is_none() {
            leftovers(snapshot, spans, extent).into_iter().for_each(|place| self.fit.add(place));
        }
        for &block in &self.leaving {
            match settle(snapshot, &mut self.fit, block) {
                Some(to) => self.draft.push(snapshot, block, to),
                None => self.sliding.push(block),
            }
        }
        self.sliding.sort_unstable();
    }
}

/// Takes a place for `block`: the best fit, or a slightly worse one where its pages can be exchanged. Places are owned
/// by holes.
pub(super) fn settle(snapshot: &LayoutSnapshot, fit: &mut BestFit, block: usize) -> Option<Spot> {
    let span = &snapshot.spans[block];
    let page = snapshot.tariff.page();
    // From the place's first granule to the first that lies in its page as the block does.
    let gap = |place: FreeRange| match span.offset.checked_sub(place.offset) {
        Some(distance) => distance % page,
        None => (page - (place.offset - span.offset) % page) % page,
    };
    let alike = |place: FreeRange| u64::from(gap(place)) + u64::from(span.size) <= place.size.into();
    let mut exchanged = None;
    if snapshot.exchangeable(block) {
        exchanged = fit.take_accepted(span.size, span.size.saturating_add(page - 1), alike);
    }
    let place = match exchanged {
        Some(place) => place,
        None => fit.take(span.size)?,
    };
    let gap = if exchanged.is_some() { gap(place) } else { 0 };
    let to = place.offset.saturating_add(gap);
    fit.add(FreeRange { size: gap, ..place });
    fit.add(FreeRange { size: place.size - gap - span.size, offset: to.saturating_add(span.size), ..place });
    let region = snapshot.spans.get(place.owner as usize)?.region;
    Some(Spot { region, offset: to })
}

/// Parts the blocks of `spans` into those of up to `threshold` granules, largest first, and the others.
pub(super) fn split_by_size(
    snapshot: &LayoutSnapshot,
    spans: &Range<usize>,
    threshold: u32,
    leaving: &mut Vec<usize>,
    sliding: &mut Vec<usize>,
) {
    leaving.clear();
    sliding.clear();
    for block in snapshot.blocks_of(spans.clone()) {
        if snapshot.spans[block].size <= threshold { leaving.push(block) } else { sliding.push(block) }
    }
    leaving.sort_unstable_by_key(|&block| (Reverse(snapshot.spans[block].size), block));
}

/// What of the holes at the ends of `spans` lies outside of `extent`.
fn leftovers(snapshot: &LayoutSnapshot, spans: &Range<usize>, extent: Extent) -> SmallVec<[FreeRange; 2]> {
    let mut places = SmallVec::new();
    if let Some(hole) = snapshot.spans.get(spans.start).filter(|span| span.is_hole()) {
        let owner = u32::try_from(spans.start).unwrap_or(u32::MAX);
        places.push(FreeRange { size: extent.low.saturating_sub(hole.offset), owner, offset: hole.offset });
    }
    let last = spans.end.saturating_sub(1);
    if let Some(hole) = snapshot.spans.get(last).filter(|span| span.is_hole()) {
        let owner = u32::try_from(last).unwrap_or(u32::MAX);
        places.push(FreeRange { size: hole.end().saturating_sub(extent.high), owner, offset: extent.high });
    }
    places
}
