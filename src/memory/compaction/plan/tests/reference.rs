//! Plans that were found by trying everything: what the planner's cost is compared with.

use crate::memory::compaction::{
    costs::Costs,
    layout::{Kind, Layout, Span, Spot},
    plan::testing::price,
};

/// Holes as (size, region, offset).
type Holes = Vec<(u32, u16, u32)>;

/// Runs of spans between barriers, as lists of indices.
pub(super) fn runs(layout: &Layout) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = vec![Vec::new()];
    for (index, span) in layout.spans.iter().enumerate() {
        let last = runs.last().and_then(|run| run.last()).map(|&last| layout.spans[last].region);
        if span.kind == Kind::Fixed || last.is_some_and(|last| last != span.region) {
            runs.push(Vec::new());
        }
        if span.kind != Kind::Fixed {
            runs.last_mut().expect("one at least").push(index);
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

pub(super) fn free(layout: &Layout, run: &[usize]) -> u64 {
    run.iter()
        .map(|&index| &layout.spans[index])
        .filter(|span| span.kind == Kind::Hole)
        .map(|s| u64::from(s.size))
        .sum()
}

/// What copying `span` costs: a move that is a granule off no page.
fn copied(layout: &Layout, costs: &Costs, span: &Span) -> u128 {
    let copies = Costs { remap: None, ..*costs };
    price(layout, &copies, span, Spot { region: span.region, offset: span.offset ^ 1 })
}

/// The cheapest slide of all blocks of a run to its lower end, if that opens `need`.
pub(super) fn full_slide(layout: &Layout, costs: &Costs, need: u32) -> Option<u128> {
    let enough = runs(layout).into_iter().filter(|run| free(layout, run) >= need.into());
    enough
        .map(|run| {
            run.iter()
                .map(|&i| &layout.spans[i])
                .filter(|s| s.kind == Kind::Movable)
                .map(|s| copied(layout, costs, s))
                .sum()
        })
        .min()
}

/// The cheapest slide of the blocks between two holes of a run, over all pairs.
pub(super) fn slide(layout: &Layout, costs: &Costs, need: u32) -> Option<u128> {
    let mut best = None;
    for run in runs(layout) {
        for first in 0..run.len() {
            for last in first..run.len() {
                let window = &run[first..=last];
                if free(layout, window) >= need.into() {
                    let blocks = window.iter().map(|&i| &layout.spans[i]).filter(|span| span.kind == Kind::Movable);
                    let cost = blocks.map(|span| copied(layout, costs, span)).sum();
                    best = Some(best.map_or(cost, |best: u128| best.min(cost)));
                }
            }
        }
    }
    best
}

/// The cheapest evacuation of `need` granules at any place of a run that `begin` accepts by its ends, where `place`
/// says if blocks, largest first, fit into holes.
pub(super) fn evacuation(
    layout: &Layout,
    costs: &Costs,
    need: u32,
    begin: fn(&Layout, u16, [u32; 2]) -> bool,
    place: fn(&[u32], &mut Holes) -> bool,
) -> Option<u128> {
    let mut best = None;
    for run in runs(layout) {
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else { continue };
        let region = layout.spans[first].region;
        let end = layout.spans[last].offset + layout.spans[last].size;
        for low in layout.spans[first].offset..=end.saturating_sub(need) {
            let high = low + need;
            if high > end || !begin(layout, region.0, [low, high]) {
                continue;
            }
            let inside = |span: &Span| span.region == region && span.offset < high && span.offset + span.size > low;
            let mut blocks: Vec<&Span> =
                layout.spans.iter().filter(|span| span.kind == Kind::Movable && inside(span)).collect();
            blocks.sort_by_key(|span| std::cmp::Reverse(span.size));
            let mut holes = Holes::new();
            for span in layout.spans.iter().filter(|span| span.kind == Kind::Hole) {
                if inside(span) {
                    holes.push((low.saturating_sub(span.offset), region.0, span.offset));
                    holes.push(((span.offset + span.size).saturating_sub(high), region.0, high));
                } else {
                    holes.push((span.size, span.region.0, span.offset));
                }
            }
            let sizes: Vec<u32> = blocks.iter().map(|span| span.size).collect();
            if place(&sizes, &mut holes) {
                let cost = blocks.iter().map(|span| copied(layout, costs, span)).sum();
                best = Some(best.map_or(cost, |best: u128| best.min(cost)));
            }
        }
    }
    best
}

/// Places that begin or end with a span: they leave all that they can of the hole at the other end.
pub(super) fn at_spans(layout: &Layout, region: u16, ends: [u32; 2]) -> bool {
    let spans = layout.spans.iter().filter(|span| span.region.0 == region);
    spans.flat_map(|span| [span.offset, span.offset + span.size]).any(|edge| ends.contains(&edge))
}

/// All places.
pub(super) fn anywhere(_: &Layout, _: u16, _: [u32; 2]) -> bool {
    true
}

/// Best fit by size, then address.
pub(super) fn best_fit(sizes: &[u32], holes: &mut Holes) -> bool {
    sizes.iter().all(|&size| {
        let Some(hole) = holes.iter_mut().filter(|hole| hole.0 >= size).min() else { return false };
        hole.0 -= size;
        hole.2 += size;
        true
    })
}

/// Every way to place them.
pub(super) fn every_way(sizes: &[u32], holes: &mut Holes) -> bool {
    let Some((&size, rest)) = sizes.split_first() else { return true };
    (0..holes.len()).any(|index| {
        if holes[index].0 < size {
            return false;
        }
        holes[index].0 -= size;
        let fits = every_way(rest, holes);
        holes[index].0 += size;
        fits
    })
}
