//! What the planner's tests share: layouts as text, and a simulator that is too simple to be wrong.

use std::{cmp::Reverse, ops::Range};

use crate::memory::{
    compaction::{
        costs::Costs,
        layout::{Kind, Layout, Span, Spot},
        plan::step::Plan,
    },
    space::node::RegionId,
};

/// A granule of 256 bytes.
pub(in super::super) const SHIFT: u32 = 8;

pub(in super::super) fn spot(region: u16, offset: u32) -> Spot {
    Spot { region: RegionId(region), offset }
}

/// A layout of one region for each text, with one letter a granule: `.` is free, `#` stays, equal letters are a block.
pub(super) fn layout(regions: &[&str]) -> Layout {
    let mut spans: Vec<Span> = Vec::new();
    for (region, text) in regions.iter().enumerate() {
        let mut last = None;
        for (offset, letter) in text.bytes().enumerate() {
            if last == Some(letter) {
                spans.last_mut().expect("the span of the last letter").size += 1;
            } else {
                let kind = match letter {
                    b'.' => Kind::Hole,
                    b'#' => Kind::Fixed,
                    _ => Kind::Movable,
                };
                spans.push(Span { region: RegionId(region as u16), offset: offset as u32, size: 1, kind, node: None });
            }
            last = Some(letter);
        }
    }
    Layout { spans, granule_shift: SHIFT }
}

/// The price of a move, from the documentation of [`Costs`], in wide integers.
pub(super) fn price(layout: &Layout, costs: &Costs, span: &Span, to: Spot) -> u128 {
    let bytes = u128::from(span.size) << layout.granule_shift;
    let by_size = |per_mib: u32| (bytes * u128::from(per_mib)) >> 20;
    let copied = u128::from(costs.per_move) + by_size(costs.per_mib);
    let Some(remap) = costs.remap else { return copied };
    let distance = u128::from(span.offset.abs_diff(to.offset)) << layout.granule_shift;
    let chunk = if span.region == to.region { bytes.min(distance) } else { bytes };
    if !distance.is_multiple_of(u128::from(remap.page.get())) || chunk < u128::from(remap.least.get()) {
        return copied;
    }
    let exchanged = bytes.div_ceil(chunk) * u128::from(remap.per_exchange) + by_size(remap.per_mib);
    copied.min(u128::from(costs.per_move) + exchanged)
}

/// Carries `plan` out on a map with one cell a granule, and checks every promise that a plan makes. Returns the map:
/// for each region, which span's block holds each granule.
pub(super) fn carry_out(layout: &Layout, costs: &Costs, plan: &Plan) -> Vec<Vec<Option<usize>>> {
    let mut map: Vec<Vec<Option<usize>>> = Vec::new();
    for (index, span) in layout.spans.iter().enumerate() {
        let region = usize::from(span.region.0);
        map.resize(map.len().max(region + 1), Vec::new());
        assert_eq!(map[region].len(), span.offset as usize, "the layout has a gap");
        let holder = (span.kind != Kind::Hole).then_some(index);
        map[region].extend((0..span.size).map(|_| holder));
    }
    let before = map.clone();
    let (mut moved, mut cost) = (0u64, 0u128);
    let mut seen = vec![false; layout.spans.len()];
    for step in &plan.steps {
        let span = &layout.spans[step.span];
        assert_eq!(span.kind, Kind::Movable, "{step:?} moves what does not move");
        assert!(!std::mem::replace(&mut seen[step.span], true), "{step:?} moves a block for the second time");
        assert_ne!((step.region, step.to), (span.region, span.offset), "{step:?} goes nowhere");
        for cell in &mut map[usize::from(span.region.0)][span.offset as usize..][..span.size as usize] {
            assert_eq!(cell.take(), Some(step.span), "{step:?}: the block is not whole");
        }
        let to = step.to as usize;
        let region = &mut map[usize::from(step.region.0)];
        assert!(to + span.size as usize <= region.len(), "{step:?} crosses the region's end");
        for cell in &mut region[to..to + span.size as usize] {
            assert_eq!(cell.replace(step.span), None, "{step:?}: the destination is taken");
        }
        moved += u64::from(span.size);
        cost += price(layout, costs, span, Spot { region: step.region, offset: step.to });
    }
    assert_eq!(plan.moved, moved);
    assert_eq!(u128::from(plan.cost), cost);
    let count = |map: &[Vec<Option<usize>>]| {
        let mut counts = vec![0; layout.spans.len()];
        map.iter().flatten().flatten().for_each(|&index| counts[index] += 1);
        counts
    };
    assert_eq!(count(&map), count(&before), "a block was overwritten");
    if let Some(hole) = plan.hole {
        let cells = &map[usize::from(hole.region.0)][hole.offset as usize..][..hole.size as usize];
        assert!(cells.iter().all(Option::is_none), "the hole is not free");
    }
    map
}

/// The map as text, one letter a granule as in [`layout`]; blocks are named by their order.
pub(super) fn text(layout: &Layout, map: &[Vec<Option<usize>>]) -> Vec<String> {
    let movable: Vec<usize> = (0..layout.spans.len()).filter(|&i| layout.spans[i].kind == Kind::Movable).collect();
    let letter = |cell: &Option<usize>| match cell {
        None => '.',
        Some(index) => movable.binary_search(index).map_or('#', |order| char::from(b'a' + order as u8)),
    };
    map.iter().map(|region| region.iter().map(letter).collect()).collect()
}

/// What lies between two spans that stay, the block itself taken for one that moves.
struct Stretch {
    spans: Range<usize>,
    low: u32,
    high: u32,
}

impl Stretch {
    fn size(&self) -> u32 {
        self.high.saturating_sub(self.low)
    }
}

/// The upper ends of the five largest stretches that hold the block.
pub(super) fn pin_ends(layout: &Layout, block: usize) -> Vec<usize> {
    let mut stretches = stretches(layout);
    stretches.retain(|stretch| stretch.size() >= layout.spans[block].size);
    stretches.sort_by_key(|stretch| Reverse(stretch.size()));
    stretches.iter().take(5).map(|stretch| stretch.spans.end - 1).collect()
}

fn stretches(layout: &Layout) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut open = false;
    let mut region = None;
    for (index, span) in layout.spans.iter().enumerate() {
        open &= region == Some(span.region);
        region = Some(span.region);
        if span.kind == Kind::Fixed {
            open = false;
        } else if let Some(stretch) = stretches.last_mut().filter(|_| open) {
            stretch.spans.end = index + 1;
            stretch.high = span.end();
        } else {
            stretches.push(Stretch { spans: index..index + 1, low: span.offset, high: span.end() });
            open = true;
        }
    }
    stretches
}
