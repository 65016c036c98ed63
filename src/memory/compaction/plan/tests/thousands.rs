//! Random layouts.

use proptest::prelude::*;

use crate::memory::{
    compaction::{
        layout::{Kind, Span},
        plan::{
            step::Step,
            testing::SHIFT,
            tests::{reference, *},
        },
    },
    space::node::RegionId,
};

/// Spans of one region: holes never touch. `stays` of a hundred blocks stay.
fn region(spans: usize, size: u32, stays: u32) -> impl Strategy<Value = Vec<(u32, Kind)>> {
    let kind = prop_oneof![
        40 => Just(Kind::Hole),
        60 * (100 - stays) / 100 => Just(Kind::Movable),
        60 * stays / 100 => Just(Kind::Fixed),
    ];
    // Small sizes as often as large ones.
    let size = (1..=size).prop_flat_map(|most| 1..=most);
    prop::collection::vec((size, kind), 1..spans).prop_map(|mut spans| {
        spans.dedup_by(|b, a| a.1 == Kind::Hole && b.1 == Kind::Hole);
        spans
    })
}

fn build(regions: Vec<Vec<(u32, Kind)>>) -> Layout {
    let mut layout = Layout { spans: Vec::new(), granule_shift: SHIFT };
    for (region, spans) in regions.into_iter().enumerate() {
        let mut offset = 0u32;
        for (size, kind) in spans {
            // Hostile sizes: a region has fewer than 2^32 granules.
            let size = size.min(u32::MAX - offset);
            if size != 0 {
                layout.spans.push(Span { region: RegionId(region as u16), offset, size, kind, node: None });
                offset += size;
            }
        }
    }
    layout
}

/// What no layout may be: spans in any order, overlapping, past the end of a region.
fn broken() -> impl Strategy<Value = Layout> {
    let number = || prop_oneof![0..20u32, any::<u32>()];
    let kind = prop::sample::select(vec![Kind::Hole, Kind::Movable, Kind::Movable, Kind::Fixed]);
    let span = (0..3u16, number(), number(), kind).prop_map(|(region, offset, size, kind)| Span {
        region: RegionId(region),
        offset,
        size,
        kind,
        node: None,
    });
    prop::collection::vec(span, 0..12).prop_map(|spans| Layout { spans, granule_shift: SHIFT })
}

fn layouts(regions: usize, spans: usize, size: u32) -> impl Strategy<Value = Layout> {
    prop::sample::select(vec![0u32, 0, 5, 30])
        .prop_flat_map(move |stays| prop::collection::vec(region(spans, size, stays), 1..=regions).prop_map(build))
}

fn costs() -> impl Strategy<Value = Costs> {
    prop::sample::select(vec![
        UNIT,
        REMAP,
        Costs::COPY,
        Costs { per_move: 0, per_mib: 0, remap: None },
        Costs { per_move: 0, ..REMAP },
        Costs {
            remap: Some(Remap { page: Bytes::kib(4), least: Bytes::kib(4), per_exchange: 9, per_mib: 100 }),
            ..UNIT
        },
    ])
}

/// A share of `all`, at least one.
fn share(all: u64, index: prop::sample::Index) -> u32 {
    u32::try_from(1 + index.index(usize::try_from(all).unwrap_or(1).max(1))).unwrap_or(u32::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn holes_open_and_every_step_is_sound(
        layout in layouts(4, 40, 24), costs in costs(), index in any::<prop::sample::Index>(),
    ) {
        let runs = reference::runs(&layout);
        let free: u64 = runs.iter().map(|run| reference::free(&layout, run)).sum();
        let need = share(free + 2, index);
        let plan = open_hole(&layout, need, &costs);
        if let Some(plan) = &plan {
            carry_out(&layout, &costs, plan);
            prop_assert!(plan.hole.is_some_and(|hole| hole.size >= need), "{plan:?} for {need}");
        }
        prop_assert!(plan.is_none() || free >= need.into());
        if let Some(slide) = reference::full_slide(&layout, &costs, need) {
            let cost = plan.as_ref().map(|plan| u128::from(plan.cost));
            prop_assert!(cost.is_some_and(|cost| cost <= slide), "{cost:?}: a full slide costs {slide}");
        }
    }

    #[test]
    fn no_slide_and_no_evacuation_of_a_tight_window_costs_less(
        // Few enough for the planner to try all windows.
        layout in layouts(2, 8, 12), index in any::<prop::sample::Index>(),
    ) {
        let free: u64 = reference::runs(&layout).iter().map(|run| reference::free(&layout, run)).sum();
        let need = share(free + 1, index);
        let cost = open_hole(&layout, need, &UNIT).map(|plan| u128::from(plan.cost));
        for other in [
            reference::slide(&layout, &UNIT, need),
            reference::evacuation(&layout, &UNIT, need, reference::at_spans, reference::best_fit),
        ].into_iter().flatten() {
            prop_assert!(cost.is_some_and(|cost| cost <= other), "{cost:?}: another plan costs {other}, need {need}");
        }
    }

    #[test]
    fn the_cheapest_windows_are_found_without_looking_at_all(
        layout in layouts(3, 80, 12), costs in costs(), index in any::<prop::sample::Index>(),
        threshold in 0..16u32, keep in 1..5usize, below in prop_oneof![Just(u64::MAX), 0..400u64],
    ) {
        let snapshot = LayoutSnapshot::new(&layout, &costs);
        let need = snapshot.largest + share(snapshot.largest.into(), index);
        let found: Vec<u64> = windows::cheapest_to_leave(&snapshot, need, threshold, below, keep)
            .iter()
            .map(|window| window.floor)
            .collect();
        let mut all = Vec::new();
        for run in &snapshot.runs {
            let blocks: Vec<usize> = snapshot.blocks_of(run.spans.clone()).collect();
            for last in 0..blocks.len() {
                let yields = |&first: &usize| {
                    let within = blocks[first..=last].iter().map(|&block| layout.spans[block].size);
                    let sliding: u32 = within.filter(|&size| size > threshold).sum();
                    let low = snapshot.room(&run.spans, blocks[first]).low;
                    low + need + sliding <= snapshot.room(&run.spans, blocks[last]).high
                };
                if let Some(first) = (0..=last).rev().find(yields) {
                    let floors = blocks[first..=last].iter().map(|&block| snapshot.tariff.floor(layout.spans[block].size));
                    all.push(floors.sum::<u64>());
                }
            }
        }
        all.retain(|&floor| floor < below);
        all.sort_unstable();
        all.truncate(keep);
        prop_assert_eq!(found, all);
    }

    #[test]
    fn places_are_cleared_and_every_step_is_sound(
        layout in layouts(3, 30, 16), costs in costs(),
        region in any::<prop::sample::Index>(), low in any::<prop::sample::Index>(),
        size in any::<prop::sample::Index>(),
    ) {
        let last = layout.spans.last().map_or(0, |span| usize::from(span.region.0));
        let region = RegionId(region.index(last + 1) as u16);
        let end = layout.spans.iter().filter(|span| span.region == region).map(Span::end).max().unwrap_or(0);
        let offset = share(end.into(), low) - 1;
        let window = Run { region, offset, size: share(u64::from(end - offset), size) };
        let high = window.offset + window.size;
        let inside = |span: &&Span| span.region == region && span.offset < high && span.end() > offset;
        let fixed = layout.spans.iter().filter(inside).any(|span| span.kind == Kind::Fixed);
        let live: u64 = layout.spans.iter().filter(inside).filter(|s| s.is_movable()).map(|s| u64::from(s.size)).sum();

        let plan = clear(&layout, window, &costs);
        if let Some(plan) = &plan {
            prop_assert_eq!(plan.hole, Some(window));
            carry_out(&layout, &costs, plan);
        }
        prop_assert!(!fixed || plan.is_none());
        // Pushing blocks aside always works where one side of the run has enough free.
        let mut above = 0u64;
        for span in layout.spans.iter().filter(|span| span.region == region && span.end() > high) {
            match span.kind {
                Kind::Hole => above += u64::from(span.end() - span.offset.max(high)),
                Kind::Movable => (),
                Kind::Fixed => break,
            }
        }
        prop_assert!(fixed || above < live || plan.is_some(), "{live} would go into {above}");
    }

    #[test]
    fn packing_leaves_a_hole_a_run_at_most(layout in layouts(4, 40, 24), costs in costs()) {
        let plan = pack(&layout, &costs);
        let map = carry_out(&layout, &costs, &plan);
        let mut largest = 0;
        for run in reference::runs(&layout) {
            let spans: Vec<&Span> = run.iter().map(|&index| &layout.spans[index]).collect();
            let cells: Vec<bool> = spans
                .iter()
                .flat_map(|span| &map[usize::from(span.region.0)][span.offset as usize..][..span.size as usize])
                .map(Option::is_none)
                .collect();
            prop_assert!(cells.is_sorted(), "the hole is at the run's end");
            largest = largest.max(cells.iter().filter(|&&free| free).count() as u64);
        }
        // Blocks go to other runs to empty a region, or else only where the largest hole gains by it.
        let slid = reference::runs(&layout).iter().map(|run| reference::free(&layout, run)).max();
        let emptied = (0..map.len()).any(|region| {
            let own = |span: &&Span| usize::from(span.region.0) == region;
            map[region].iter().all(Option::is_none) && layout.spans.iter().filter(own).any(Span::is_movable)
        });
        prop_assert!(emptied || slid.is_none_or(|slid| slid <= largest));
        if layout.spans.iter().all(|span| !span.is_movable()) {
            prop_assert_eq!(plan, Plan::default());
        }
    }

    #[test]
    fn hostile_sizes_neither_panic_nor_overflow(
        layout in prop_oneof![layouts(3, 12, u32::MAX), broken()],
        need in prop_oneof![0..50u32, any::<u32>()], shift in any::<u32>(),
        per_move in any::<u32>(), per_mib in any::<u32>(), page in any::<u64>(), least in any::<u64>(),
        window in (0..4u16, prop_oneof![0..50u32, any::<u32>()], prop_oneof![0..50u32, any::<u32>()]),
    ) {
        let remap = Remap { page: Bytes::new(page), least: Bytes::new(least), per_exchange: per_move, per_mib };
        let (region, offset, size) = window;
        for granule_shift in [SHIFT, 20, 40, shift] {
            let layout = Layout { granule_shift, ..layout.clone() };
            for remap in [None, Some(remap), Some(Remap { page: Bytes::kib(4), ..remap })] {
                let costs = Costs { per_move, per_mib, remap };
                let moved = |step: &Step| u64::from(layout.spans[step.span].size);
                for plan in [
                    open_hole(&layout, need, &costs),
                    clear(&layout, Run { region: RegionId(region), offset, size }, &costs),
                    Some(pack(&layout, &costs)),
                ].into_iter().flatten() {
                    prop_assert_eq!(plan.moved, plan.steps.iter().map(moved).sum::<u64>());
                }
            }
        }
    }
}

/// How much a search through all evacuations, with every way to place their blocks, and all slides would save. The
/// layouts are always the same ones, so that the bounds can be tight.
#[test]
fn plans_of_a_few_blocks_are_hardly_ever_dearer_than_any_other() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut found, mut cheapest, mut missed) = (0u32, 0u32, 0u32);
    let mut worst: f64 = 1.0;
    for _ in 0..4000 {
        let strategy = (layouts(2, 10, 12), any::<prop::sample::Index>());
        let tree = proptest::strategy::Strategy::new_tree(&strategy, &mut runner).expect("nothing is filtered");
        let (layout, index) = proptest::strategy::ValueTree::current(&tree);
        if layout.spans.iter().filter(|span| span.is_movable()).count() > 6 {
            continue;
        }
        let free: u64 = reference::runs(&layout).iter().map(|run| reference::free(&layout, run)).sum();
        let need = share(free + 1, index);
        let others = [
            reference::slide(&layout, &UNIT, need),
            reference::evacuation(&layout, &UNIT, need, reference::anywhere, reference::every_way),
        ];
        let Some(best) = others.into_iter().flatten().min() else { continue };
        let Some(plan) = open_hole(&layout, need, &UNIT) else {
            missed += 1;
            continue;
        };
        found += 1;
        cheapest += u32::from(u128::from(plan.cost) <= best);
        let ratio = plan.cost.max(1) as f64 / best.max(1) as f64;
        worst = worst.max(ratio);
    }
    assert!(
        found > 2000 && missed == 0 && worst <= 1.5,
        "{found} plans, {missed} missed, the worst {worst:.3} times the cheapest"
    );
    assert!(cheapest * 100 >= found * 99, "{cheapest} of {found} plans are the cheapest");
}
