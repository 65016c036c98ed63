use proptest::prelude::*;

use crate::{
    memory::{
        compaction::layout::Run,
        space::{bins::Bin, index::Space, moves::Holds, node::*},
    },
    region::AddressRange,
    units::{Address, Bytes},
};

const BASE: Address = Address::new(0x10_0000);

fn space(granules: u64) -> Space {
    let mut space = Space::new(Bytes::gib(1));
    space.add_region(AddressRange { address: BASE, bytes: Bytes::new(granules * 256) }).expect("a good region");
    space
}

fn at(granules: u64) -> Address {
    BASE + Bytes::new(granules * 256)
}

/// Every promise of the module that can be read off its tables.
fn check(space: &mut Space) {
    check_spans(space);
    space.order_pins();
    check_barriers(space);
}

/// Those of spans and bins.
fn check_spans(space: &Space) {
    let mut free = Bytes::ZERO;
    let mut holes = 0;
    for (id, region) in space.regions() {
        let mut end = region.address;
        let mut before = None;
        for span in space.spans(id) {
            assert_eq!(span.address, end, "spans tile their region");
            assert!(!span.size.is_zero());
            end = end + span.size;
            if span.state == SpanState::Hole {
                assert_ne!(before, Some(SpanState::Hole), "holes coalesce at {}", span.address);
                free += span.size;
                holes += 1;
            }
            before = Some(span.state);
        }
        assert_eq!(end, region.address + region.bytes);
    }
    assert_eq!(free, space.free_bytes());
    let mut filed = 0;
    let mut bin = Some(Bin::of(0));
    while let Some(at) = bin {
        for (_, node) in space.holes_from(space.bins.head(at)) {
            assert_eq!(Bin::of(node.size), at);
            assert_eq!(node.state, SpanState::Hole);
            filed += 1;
        }
        bin = space.bins.next_above(at);
    }
    assert_eq!(filed, holes, "every hole is in a bin, once");
}

/// The gaps between pinned spans are as a look at all spans has them.
fn check_barriers(space: &Space) {
    let mut expected = Vec::new();
    for (region, range) in space.regions() {
        let granules = |address: Address| ((address - range.address).get() >> space.granule_shift) as u32;
        let mut low = 0;
        let mut cluster = None;
        let pinned = space.spans(region).filter(|span| span.state == SpanState::Pinned);
        let pinned = pinned.map(|span| (granules(span.address), granules(span.address + span.size)));
        let size = granules(range.address + range.bytes);
        for (from, to) in pinned.chain([(size, size)]) {
            if low < from {
                expected.push((from - low, region, from));
                cluster = None;
            }
            if from < to {
                let first = *cluster.get_or_insert(from);
                let found = space.barriers.first_of(region, from).map(|id| space.run(id).offset);
                assert_eq!(found, Some(first), "the first of those that touch");
            }
            low = to;
        }
    }
    expected.sort_unstable();
    let mut found: Vec<_> = space.barriers.gaps(1).map(|gap| (gap.size, gap.region, gap.high)).collect();
    found.reverse();
    assert_eq!(found, expected);
}

#[test]
fn the_tightest_hole_wins_and_the_lowest_of_equals() {
    let mut space = space(100);
    let ids: Vec<_> =
        [10, 1, 6, 1, 8, 1, 6, 1].map(|n| space.allocate(Bytes::new(n * 256), End::Low).expect("room")).to_vec();
    for hole in [6, 4, 2, 0] {
        space.free(ids[hole]);
    }
    check(&mut space);
    let place = |space: &mut Space, n: u64| {
        let id = space.allocate(Bytes::new(n * 256), End::Low).expect("room");
        space.address(id)
    };
    assert_eq!(place(&mut space, 6), at(11), "the lower of two holes of 6");
    assert_eq!(place(&mut space, 7), at(18), "8 is tighter than 10");
    assert_eq!(place(&mut space, 6), at(27));
    assert_eq!(place(&mut space, 9), at(0));
    assert_eq!(place(&mut space, 2), at(34), "what is left is split off the end");
    check(&mut space);
}

#[test]
fn a_full_own_bin_is_searched_to_its_end() {
    // 64 and 65 granules share a bin; the one hole of 65 is filed first, so it is the last that a search meets.
    let mut space = space(40 * 65 + 65);
    let mut holes = vec![space.allocate(Bytes::new(65 * 256), End::Low).expect("room")];
    let mut walls = Vec::new();
    for _ in 0..40 {
        walls.push(space.allocate(Bytes::new(256), End::Low).expect("room"));
        holes.push(space.allocate(Bytes::new(64 * 256), End::Low).expect("room"));
    }
    assert_eq!(space.free_bytes(), Bytes::ZERO);
    holes.iter().for_each(|&id| assert_eq!(space.free(id), None));
    let id = space.allocate(Bytes::new(65 * 256), End::Low).expect("the hole of 65 granules");
    assert_eq!(space.address(id), at(0));
    check(&mut space);
}

#[test]
fn the_high_end_grows_downwards() {
    let mut space = space(100);
    let low = space.allocate(Bytes::new(1), End::Low).expect("room");
    let high = space.allocate(Bytes::new(512), End::High).expect("room");
    let higher = space.allocate(Bytes::new(512), End::High).expect("room");
    assert_eq!((space.address(low), space.address(high), space.address(higher)), (at(0), at(98), at(96)));
    assert_eq!(space.hole_after_free(higher), Bytes::new(97 * 256));
    assert_eq!(space.free(higher), None);
    assert_eq!(space.free(low), None);
    assert!(space.free(high).is_some(), "the region is empty");
    check(&mut space);
    assert_eq!(space.largest_hole(), Bytes::new(100 * 256));
}

#[test]
fn regions_do_not_coalesce_and_leave_only_empty() {
    let mut space = space(4);
    let second = space.add_region(AddressRange { address: at(4), bytes: Bytes::new(1024) }).expect("a good region");
    assert_eq!(space.allocate(Bytes::new(1280), End::Low), None, "blocks do not cross regions");
    let first_block = space.allocate(Bytes::new(1024), End::Low).expect("room");
    let block = space.allocate(Bytes::new(1), End::Low).expect("room");
    assert_eq!(space.address(first_block), at(0), "the older region first");
    assert!(space.remove_region(second).is_err());
    assert_eq!(space.free(block), Some(second));
    assert_eq!(space.remove_region(second).map(|region| region.address), Ok(at(4)));
    assert!(space.remove_region(second).is_err(), "it is gone");
    check(&mut space);
    assert_eq!(space.free_bytes(), Bytes::ZERO);
}

#[test]
fn odd_regions_are_refused() {
    let mut space = Space::new(Bytes::gib(1));
    for (address, bytes) in [(256, 0), (256, 100), (128, 256), (256, 1 << 50)] {
        let region = AddressRange { address: Address::new(address), bytes: Bytes::new(bytes) };
        assert!(space.add_region(region).is_err(), "{region:?}");
    }
}

#[test]
fn the_granule_grows_with_regions_past_one_tebibyte() {
    assert_eq!(Space::new(Bytes::gib(1023)).granule(), Bytes::new(256));
    let mut space = Space::new(Bytes::gib(3 * 1024));
    assert_eq!(space.granule(), Bytes::new(1024));
    space.add_region(AddressRange { address: BASE, bytes: Bytes::gib(3 * 1024) }).expect("a good region");
    let id = space.allocate(Bytes::gib(2 * 1024), End::Low).expect("room");
    assert_eq!(space.size(id), Bytes::gib(2 * 1024));
    check(&mut space);
}

#[test]
fn the_high_end_is_that_of_the_largest_hole_and_of_the_higher_of_equals() {
    let mut space = space(100);
    let sizes = [30, 1, 20, 1, 30, 1, 10, 7];
    let ids = sizes.map(|n| space.allocate(Bytes::new(n * 256), End::Low).expect("room"));
    // Holes of 30, 20, 30 and 10 granules. The largest are no later in their bin than others, nor earlier.
    [4, 2, 0, 6].iter().for_each(|&hole: &usize| assert_eq!(space.free(ids[hole]), None));
    let high = |space: &mut Space, n: u64| {
        let id = space.allocate(Bytes::new(n * 256), End::High).expect("room");
        space.address(id)
    };
    assert_eq!(high(&mut space, 1), at(30 + 1 + 20 + 1 + 29), "the higher of two of 30");
    assert_eq!(high(&mut space, 1), at(29), "now the other one is the largest");
    assert_eq!(high(&mut space, 29), at(52), "a whole one");
    check(&mut space);
}

#[test]
fn the_granule_is_the_smallest_that_32_bits_of_offset_allow() {
    let most = Bytes::new(u64::from(u32::MAX) * 256);
    assert_eq!(Space::new(most).granule(), MIN_GRANULE);
    assert_eq!(Space::new(most + Bytes::new(256)).granule(), Bytes::new(512));
    assert_eq!(Space::new(Bytes::gib(1500)).granule(), Bytes::new(512));
}

/// A table that only grows would be a leak of the host's memory, slow and without an end.
#[test]
fn nodes_are_used_again() {
    let mut space = space(100);
    for round in 0..1000 {
        let ids = [3, 5, 7].map(|n| space.allocate(Bytes::new(n * 256), End::Low).expect("room"));
        // In another order each time, so that holes join with the one below, the one above, and both.
        for number in 0..3 {
            space.free(ids[(number + round) % 3]);
        }
        let second =
            space.add_region(AddressRange { address: at(200), bytes: Bytes::new(1024) }).expect("a good region");
        assert!(space.remove_region(second).is_ok());
    }
    check(&mut space);
    assert!(space.node_count() <= 8, "{} nodes for one hole", space.node_count());
}

/// Where a live block goes, and which holes stand aside for it.
fn run(offset: u32, size: u32) -> Run {
    Run { region: RegionId(0), offset, size }
}

fn take(space: &mut Space, granules: u64) -> NodeId {
    space.allocate(Bytes::new(granules * 256), End::Low).expect("room")
}

#[test]
fn what_a_compaction_holds_counts_as_free_and_is_nobodys() {
    let mut space = space(20);
    let [_wall, gap, moving, rest] = [2, 4, 6, 8].map(|granules| take(&mut space, granules));
    assert_eq!((space.free(gap), space.free(rest)), (None, None));
    let mut holds = Holds::default();
    [gap, rest].iter().for_each(|&hole| space.hold(hole, &mut holds));
    assert_eq!(space.free_bytes(), Bytes::new(12 * 256));
    assert_eq!(space.allocate(Bytes::new(256), End::Low), None, "all holes are held");
    let moved = space.relocate(moving, run(2, 6), &mut holds).expect("four granules held, and two of its own");
    assert_eq!((space.address(moved), space.size(moved)), (at(2), Bytes::new(6 * 256)));
    assert_eq!(space.free_bytes(), Bytes::new(12 * 256));
    assert_eq!(space.allocate(Bytes::new(256), End::Low), None, "what it left is held too");
    assert_eq!(space.let_go(&mut holds), []);
    check(&mut space);
    assert_eq!(space.largest_hole(), Bytes::new(12 * 256));
}

/// However the spans that were held touched and joined meanwhile, the region knows when nothing in it is taken: or else
/// a region that a compaction emptied would never go back to the device.
#[test]
fn a_region_that_was_emptied_by_moves_is_named() {
    // The block moves down next to what is held, up next to it, and between two that are.
    for (from, to) in [(2u64, 0u32), (0, 2), (3, 1), (4, 4)] {
        let mut space = space(10);
        let second =
            space.add_region(AddressRange { address: at(100), bytes: Bytes::new(10 * 256) }).expect("a good region");
        // Four granules in the second region, `from` granules from its lower end, with holes on both sides.
        let full = take(&mut space, 10);
        let below = (from > 0).then(|| take(&mut space, from));
        let block = take(&mut space, 4);
        below.iter().for_each(|&id| assert_eq!(space.free(id), None));
        assert_eq!(space.run(block), Run { region: second, offset: from as u32, size: 4 });
        let holes: Vec<NodeId> = space.holes().map(|(id, _)| id).collect();
        let mut holds = Holds::default();
        holes.into_iter().for_each(|hole| space.hold(hole, &mut holds));
        let mut block = block;
        if u64::from(to) != from {
            block =
                space.relocate(block, Run { region: second, offset: to, size: 4 }, &mut holds).expect("all is held");
        }
        // Out of its region at last, into a place that is free there now.
        assert!(space.free(full).is_some(), "the first region is empty");
        let place = space.holes().next().expect("the first region").0;
        space.hold(place, &mut holds);
        let block = space.relocate(block, run(0, 4), &mut holds).expect("the first region is held");
        assert_eq!(space.let_go(&mut holds), [second], "from {from} to {to}");
        check(&mut space);
        assert_eq!(space.remove_region(second).map(|region| region.address), Ok(at(100)));
        assert_eq!(space.sole_block_of(block), Some(Bytes::new(10 * 256)), "and the block is alone in its own");
        assert_eq!(space.free(block), Some(RegionId(0)));
    }
}

#[test]
fn only_a_live_block_moves_and_only_to_where_nothing_is() {
    let mut space = space(20);
    let [hole, block, wall] = [4, 3, 1].map(|granules| take(&mut space, granules));
    assert_eq!(space.free(hole), None);
    let mut holds = Holds::default();
    space.hold(hole, &mut holds);
    for (to, why) in [
        (run(0, 2), "another size"),
        (run(5, 3), "a block is in the way"),
        (run(9, 3), "a hole that is not held"),
        (Run { region: RegionId(1), ..run(0, 3) }, "another region"),
        (run(u32::MAX - 1, 3), "no place at all"),
    ] {
        assert_eq!(space.relocate(block, to, &mut holds), None, "{why}");
    }
    space.retire(block);
    assert_eq!(space.relocate(block, run(0, 3), &mut holds), None, "its owner let go");
    space.reuse(block);
    space.pin(block);
    assert_eq!(space.relocate(block, run(0, 3), &mut holds), None, "an outsider has its address");
    space.unpin(block);
    assert_eq!(space.run(block), run(4, 3), "nothing has changed");
    // A block itself is no hole to hold.
    space.hold(wall, &mut holds);
    let moved = space.relocate(block, run(0, 3), &mut holds).expect("it may go there now");
    assert_eq!(space.run(moved), run(0, 3));
    assert_eq!(space.let_go(&mut holds), []);
    check(&mut space);
    assert_eq!([moved, wall].map(|id| space.free(id).is_some()), [false, true]);
}

#[test]
fn the_floor_rises_into_the_hole_above_it_and_no_further() {
    let bytes = |granules: u64| Bytes::new(granules * 256);
    let bottom = RegionId(0);
    let mut space = space(20);
    let blocks = [8, 2].map(|granules| take(&mut space, granules));
    assert_eq!(space.raise_floor(bottom, None, bytes(1)), None, "a block is in the way");
    assert_eq!(space.free(blocks[0]), None);
    assert_eq!(space.raise_floor(bottom, None, bytes(9)), None, "only eight granules are free there");
    assert_eq!(space.raise_floor(RegionId(7), None, bytes(1)), None, "no such region");
    let floor = space.raise_floor(bottom, None, bytes(5)).expect("eight are free");
    assert_eq!((space.address(floor), space.size(floor), space.free_bytes()), (at(0), bytes(5), bytes(13)));
    check(&mut space);
    assert_eq!(space.raise_floor(bottom, Some(floor), bytes(9)), None);
    let floor = space.raise_floor(bottom, Some(floor), bytes(7)).expect("eight are free");
    assert_eq!((space.size(floor), space.free_bytes()), (bytes(7), bytes(11)));
    let floor = space.raise_floor(bottom, Some(floor), bytes(8)).expect("to the block");
    assert_eq!((space.size(floor), space.free_bytes()), (bytes(8), bytes(10)));
    check(&mut space);
    space.trim_span(floor, bytes(8));
    space.trim_span(floor, bytes(9));
    assert_eq!(space.size(floor), bytes(8), "nothing is above that");
    space.trim_span(floor, bytes(3));
    assert_eq!((space.size(floor), space.free_bytes()), (bytes(3), bytes(15)));
    check(&mut space);
    assert_eq!((space.free(blocks[1]), space.free(floor)), (None, Some(bottom)));
    // All that there is, at once.
    let whole = space.raise_floor(bottom, None, bytes(20)).expect("the region is empty");
    assert_eq!((space.size(whole), space.free_bytes()), (bytes(20), Bytes::ZERO));
    check(&mut space);
    assert_eq!(space.free(whole), Some(bottom));
}

#[test]
fn a_pinned_block_lies_at_the_upper_end_of_the_highest_hole_that_holds_it() {
    let mut space = space(40);
    let ids = [4, 2, 6, 1, 3, 1, 4, 1, 2, 16].map(|granules| take(&mut space, granules));
    // Holes of 6, 4 and 2 granules, each below a wall; the last 16 granules are taken.
    let (block, small) = (ids[1], ids[3]);
    [2, 6, 8].iter().for_each(|&hole: &usize| assert_eq!(space.free(ids[hole]), None));
    let end = |space: &mut Space, id| space.pinned_end(id).map(|(hole, place)| (space.run(hole), place));
    assert_eq!(end(&mut space, block), Some((run(22, 2), run(22, 2))), "it fits the highest hole exactly");
    assert_eq!(end(&mut space, small), Some((run(22, 2), run(23, 1))), "the upper end of it");
    assert_eq!(end(&mut space, ids[0]), Some((run(17, 4), run(17, 4))), "the highest that is large enough");
    assert_eq!(end(&mut space, ids[4]), Some((run(17, 4), run(18, 3))));
    assert_eq!(end(&mut space, ids[9]), None, "at the region's upper end it divides nothing");
    // Where a neighbour on either side stays, so may the block.
    assert!(!space.lies_beside_pinned(block) && !space.lies_beside_pinned(ids[4]));
    space.pin(ids[3]);
    assert!(space.lies_beside_pinned(ids[4]), "above a pinned one");
    assert_eq!(end(&mut space, ids[4]), None);
    assert!(!space.lies_beside_pinned(ids[7]), "its neighbours are holes");
    space.pin(ids[5]);
    space.unpin(ids[3]);
    assert!(space.lies_beside_pinned(ids[4]), "below a pinned one");
    space.unpin(ids[5]);
    assert_eq!(end(&mut space, ids[4]), Some((run(17, 4), run(18, 3))));
}

#[test]
fn parts_of_a_span_become_blocks_and_what_is_between_them_holes() {
    use SpanState::{Hole, Live, Pinned, Retired};
    type Parts = [(u32, u32, SpanState)];
    let cases: [(&Parts, &[(u64, SpanState)]); 4] = [
        (
            &[(0, 2, Live), (2, 1, Pinned), (5, 3, Retired)],
            &[(2, Live), (1, Pinned), (2, Hole), (3, Retired), (2, Hole)],
        ),
        (&[(4, 6, Live)], &[(4, Hole), (6, Live)]),
        (&[(0, 10, Live)], &[(10, Live)]),
        (&[(3, 1, Live), (4, 6, Live)], &[(3, Hole), (1, Live), (6, Live)]),
    ];
    for (parts, expected) in cases {
        let mut space = space(11);
        let (whole, wall) = (take(&mut space, 10), take(&mut space, 1));
        let nodes = space.shatter(whole, parts);
        let found: Vec<Run> = nodes.iter().map(|&id| space.run(id)).collect();
        assert_eq!(found, parts.iter().map(|&(offset, size, _)| run(offset, size)).collect::<Vec<_>>());
        let spans: Vec<_> = space.spans(RegionId(0)).map(|span| (span.size.get() / 256, span.state)).collect();
        assert_eq!(spans, [expected, &[(1, Live)]].concat());
        check(&mut space);
        nodes.iter().for_each(|&id| assert_eq!(space.free(id), None));
        assert_eq!(space.free(wall), Some(RegionId(0)), "the region counts its blocks right");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64, bool),
    Free(prop::sample::Index),
    Retire(prop::sample::Index),
    Pin(prop::sample::Index),
    Unpin(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u32..16, 0u64..1 << 16, any::<bool>()).prop_map(|(shift, size, high)| Step::Allocate(size >> shift, high)),
        2 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<prop::sample::Index>().prop_map(Step::Retire),
        2 => any::<prop::sample::Index>().prop_map(Step::Pin),
        1 => any::<prop::sample::Index>().prop_map(Step::Unpin),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Against the plainest model: a list of taken ranges. A request is refused only if no gap between them fits.
    #[test]
    fn any_sequence_tiles_coalesces_and_misses_no_fit(steps in prop::collection::vec(step(), 1..150)) {
        let mut space = space(512);
        let end = at(512);
        let mut taken: Vec<(Address, Bytes, NodeId)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate(size, high) => {
                    let size = Bytes::new(size);
                    let held = size.checked_round_up(space.granule()).expect("small").max(space.granule());
                    let ends = taken.iter().map(|&(address, held, _)| address + held);
                    let gaps = std::iter::once(BASE).chain(ends).map(|from| {
                        let to = taken.iter().map(|&(address, ..)| address).filter(|&address| address >= from).min();
                        to.unwrap_or(end) - from
                    });
                    let fits = gaps.clone().max().is_some_and(|gap| gap >= held);
                    prop_assert_eq!(space.largest_hole(), gaps.max().unwrap_or_default());
                    let found = space.allocate(size, if high { End::High } else { End::Low });
                    prop_assert_eq!(found.is_some(), fits, "{} in {:?}", size, taken);
                    if let Some(id) = found {
                        let (address, size) = (space.address(id), space.size(id));
                        prop_assert_eq!(size, held);
                        prop_assert!(address >= BASE && address + held <= end && address.is_aligned_to(MIN_GRANULE));
                        prop_assert!(taken.iter().all(|&(a, s, _)| a + s <= address || address + held <= a));
                        taken.push((address, held, id));
                    }
                }
                Step::Free(index) if !taken.is_empty() => {
                    let (_, _, id) = taken.swap_remove(index.index(taken.len()));
                    prop_assert_eq!(space.free(id).is_some(), taken.is_empty());
                }
                Step::Retire(index) if !taken.is_empty() => space.retire(taken[index.index(taken.len())].2),
                Step::Pin(index) if !taken.is_empty() => space.pin(taken[index.index(taken.len())].2),
                Step::Unpin(index) if !taken.is_empty() => space.unpin(taken[index.index(taken.len())].2),
                _ => {}
            }
            // Between two of these, pins and unpins come to spans that are in order and to such that are not.
            if number % 12 == 11 { check(&mut space) } else { check_spans(&space) }
        }
        check(&mut space);
    }
}
