//! Emptying one place: for a program's scratch, or for a block that is about to be pinned there.

use std::ops::Range;

use crate::memory::compaction::{
    layout::{Run, Spot},
    plan::{
        evacuate::Evacuation,
        gather::{Gathering, Target},
        slide::{Slider, Toward, shove},
        snapshot::{Between, Draft, Extent, LayoutSnapshot},
        step::Plan,
    },
};

/// The plan behind [`crate::memory::compaction::plan::clear()`].
pub(super) fn clear(snapshot: &LayoutSnapshot, window: Run) -> Option<Plan> {
    let spot = Spot { region: window.region, offset: window.offset };
    let extent = Extent { low: window.offset, high: window.offset.checked_add(window.size)? };
    let mut draft = Draft::default();
    draft.finish(spot, window.size);
    let (run, spans) = locate(snapshot, window, extent)?;
    if snapshot.blocks_of(spans.clone()).next().is_none() {
        return Some(draft.plan);
    }
    let range = &snapshot.runs.get(run)?.spans;

    let mut best = None;
    let mut slider = Slider::default();
    let mut evacuation = Evacuation::new(snapshot, &mut slider);
    let (staying, draft) = evacuation.empty(&spans, extent, None);
    if staying.is_empty() {
        draft.finish(spot, window.size);
        draft.offer(&mut best);
    }
    // Those that fit elsewhere leave the run and the others make room within it, or all stay in the run.
    let all: Vec<usize> = snapshot.blocks_of(spans.clone()).collect();
    for toward in [Toward::High, Toward::Low] {
        let around = (spans.clone(), extent);
        let (staying, draft) = evacuation.empty(&spans, extent, Some(range));
        if shove(snapshot, range, around.clone(), staying, toward, draft).is_some() {
            draft.finish(spot, window.size);
            draft.offer(&mut best);
        }
        draft.clear();
        if shove(snapshot, range, around, &all, toward, draft).is_some() {
            draft.finish(spot, window.size);
            draft.offer(&mut best);
        }
    }
    best.or_else(|| Gathering::new(snapshot, &mut slider).clear(&Target { spans, extent, run }))
}

/// The run that `window` lies in, and the spans that intersect it. `None` if a block in it stays, or if it is not all
/// of one region. O(log n) for each step.
fn locate(snapshot: &LayoutSnapshot, window: Run, extent: Extent) -> Option<(usize, Range<usize>)> {
    let before = |run: &Between| {
        let (region, end) = (snapshot.spans[run.spans.start].region, snapshot.extent(&run.spans).high);
        (region, end) < (window.region, extent.high)
    };
    let run = snapshot.runs.partition_point(before);
    let range = &snapshot.runs.get(run)?.spans;
    let whole = snapshot.extent(range);
    let inside = snapshot.spans[range.start].region == window.region
        && whole.low <= extent.low
        && extent.high <= whole.high
        && extent.low < extent.high;
    let spans = &snapshot.spans[range.clone()];
    let start = range.start + spans.partition_point(|span| span.end() <= extent.low);
    let end = range.start + spans.partition_point(|span| span.offset < extent.high);
    (inside && start < end).then_some((run, start..end))
}
