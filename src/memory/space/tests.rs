use proptest::prelude::*;

use super::*;

const BASE: Address = Address::new(0x10_0000);

fn space(granules: u64) -> Space {
    let mut space = Space::new(Bytes::gib(1));
    space.add_region(Region { address: BASE, bytes: Bytes::new(granules * 256) }).expect("a good region");
    space
}

fn at(granules: u64) -> Address {
    BASE + Bytes::new(granules * 256)
}

/// Every promise of the module that can be read off its tables.
fn check(space: &Space) {
    let mut free = Bytes::ZERO;
    let mut holes = 0;
    for (id, region) in space.regions() {
        let mut end = region.address;
        let mut before = None;
        for span in space.spans(id) {
            assert_eq!(span.address, end, "spans tile their region");
            assert!(!span.size.is_zero());
            end = end + span.size;
            if span.tenure == Tenure::Hole {
                assert_ne!(before, Some(Tenure::Hole), "holes coalesce at {}", span.address);
                free += span.size;
                holes += 1;
            }
            before = Some(span.tenure);
        }
        assert_eq!(end, region.address + region.bytes);
    }
    assert_eq!(free, space.free_bytes());
    let mut filed = 0;
    let mut bin = Some(Bin::of(0));
    while let Some(at) = bin {
        for (_, node) in space.holes_from(space.bins.head(at)) {
            assert_eq!(Bin::of(node.size), at);
            assert_eq!(node.tenure, Tenure::Hole);
            filed += 1;
        }
        bin = space.bins.next_above(at);
    }
    assert_eq!(filed, holes, "every hole is in a bin, once");
}

#[test]
fn the_tightest_hole_wins_and_the_lowest_of_equals() {
    let mut space = space(100);
    let ids: Vec<_> =
        [10, 1, 6, 1, 8, 1, 6, 1].map(|n| space.allocate(Bytes::new(n * 256), End::Low).expect("room")).to_vec();
    for hole in [6, 4, 2, 0] {
        space.free(ids[hole]);
    }
    check(&space);
    let place = |space: &mut Space, n: u64| {
        let id = space.allocate(Bytes::new(n * 256), End::Low).expect("room");
        space.address(id)
    };
    assert_eq!(place(&mut space, 6), at(11), "the lower of two holes of 6");
    assert_eq!(place(&mut space, 7), at(18), "8 is tighter than 10");
    assert_eq!(place(&mut space, 6), at(27));
    assert_eq!(place(&mut space, 9), at(0));
    assert_eq!(place(&mut space, 2), at(34), "what is left is split off the end");
    check(&space);
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
    check(&space);
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
    check(&space);
    assert_eq!(space.largest_hole(), Bytes::new(100 * 256));
}

#[test]
fn regions_do_not_coalesce_and_leave_only_empty() {
    let mut space = space(4);
    let second = space.add_region(Region { address: at(4), bytes: Bytes::new(1024) }).expect("a good region");
    assert_eq!(space.allocate(Bytes::new(1280), End::Low), None, "blocks do not cross regions");
    let first_block = space.allocate(Bytes::new(1024), End::Low).expect("room");
    let block = space.allocate(Bytes::new(1), End::Low).expect("room");
    assert_eq!(space.address(first_block), at(0), "the older region first");
    assert!(space.remove_region(second).is_err());
    assert_eq!(space.free(block), Some(second));
    assert_eq!(space.remove_region(second).map(|region| region.address), Ok(at(4)));
    assert!(space.remove_region(second).is_err(), "it is gone");
    check(&space);
    assert_eq!(space.free_bytes(), Bytes::ZERO);
}

#[test]
fn odd_regions_are_refused() {
    let mut space = Space::new(Bytes::gib(1));
    for (address, bytes) in [(256, 0), (256, 100), (128, 256), (256, 1 << 50)] {
        let region = Region { address: Address::new(address), bytes: Bytes::new(bytes) };
        assert!(space.add_region(region).is_err(), "{region:?}");
    }
}

#[test]
fn the_granule_grows_with_regions_past_one_tebibyte() {
    assert_eq!(Space::new(Bytes::gib(1023)).granule(), Bytes::new(256));
    let mut space = Space::new(Bytes::gib(3 * 1024));
    assert_eq!(space.granule(), Bytes::new(1024));
    space.add_region(Region { address: BASE, bytes: Bytes::gib(3 * 1024) }).expect("a good region");
    let id = space.allocate(Bytes::gib(2 * 1024), End::Low).expect("room");
    assert_eq!(space.size(id), Bytes::gib(2 * 1024));
    check(&space);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64, bool),
    Free(prop::sample::Index),
    Retire(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u32..16, 0u64..1 << 16, any::<bool>()).prop_map(|(shift, size, high)| Step::Allocate(size >> shift, high)),
        2 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<prop::sample::Index>().prop_map(Step::Retire),
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
        for step in steps {
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
                _ => {}
            }
            check(&space);
        }
    }
}
