//! What each strategy takes from the device, and when it releases it.

use crate::memory::tests::*;

#[test]
fn preallocate_takes_the_whole_limit_at_the_first_allocation() {
    let (arena, device) = arena(Strategy::Preallocate, Bytes::gib(1) + Bytes::new(100));
    assert_eq!(arena.stats(), Stats { limit: Bytes::gib(1), largest_request: Bytes::gib(1), ..Stats::default() });
    let block = take(&arena, Bytes::new(1000));
    let stats = assert_sums(&arena);
    assert_eq!((stats.bytes_in_use, stats.slack_bytes), (Bytes::new(1000), Bytes::new(24)));
    assert_eq!((stats.pool_bytes, device.regions().len()), (Bytes::gib(1), 1));
    assert_eq!(arena.free(block.id), Ok(()));
    assert_eq!(arena.trim(), Bytes::ZERO);
    let whole = take(&arena, Bytes::gib(1));
    assert_eq!(arena.stats().largest_request, Bytes::ZERO);
    assert_eq!(arena.free(whole.id), Ok(()));
    assert_eq!(device.reserves(), 1);
}

#[test]
fn large_arrays_do_not_lie_powers_of_two_apart_where_a_processor_reads_them() {
    let distance = |coloured: bool, limit: Bytes, size: Bytes| {
        let (mut arena, _) = arena(Strategy::Preallocate, limit);
        if coloured {
            arena.use_colours();
        }
        let blocks: Vec<Block> = (0..2).map(|_| take(&arena, size)).collect();
        assert_eq!(assert_sums(&arena).bytes_in_use, size + size);
        Bytes::new(blocks[1].address.get() - blocks[0].address.get())
    };
    let (limit, colour) = (Bytes::gib(1), Bytes::kib(32));
    for size in [Bytes::mib(4), Bytes::mib(5) + Bytes::new(256), Bytes::mib(16)] {
        assert_eq!(distance(true, limit, size), size + colour);
        assert_eq!(distance(false, limit, size), size, "not without being asked");
    }
    for size in [Bytes::mib(4) - Bytes::new(256), Bytes::mib(16) + Bytes::new(256)] {
        assert_eq!(distance(true, limit, size), size, "too small, or too large for this limit");
    }
}

#[test]
fn a_colour_is_no_reason_to_refuse_an_array() {
    let (mut arena, _) = arena(Strategy::Preallocate, Bytes::mib(256));
    arena.use_colours();
    let size = Bytes::mib(4);
    let most: Vec<Block> = (0..60).map(|_| take(&arena, size)).collect();
    let rest = arena.stats().largest_request;
    assert_eq!(rest, Bytes::mib(16) - Bytes::kib(60 * 32));
    let filler = take(&arena, rest - size);
    let last = take(&arena, size);
    let stats = assert_sums(&arena);
    assert_eq!((stats.free_bytes, stats.slack_bytes), (Bytes::ZERO, Bytes::kib(60 * 32)));
    most.iter().chain([&filler, &last]).for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    assert_eq!(arena.stats().largest_request, Bytes::mib(256));
}

#[test]
fn growing_doubles_within_the_limit_and_gives_back() {
    let (arena, device) = arena(Strategy::Growing, Bytes::mib(30));
    let size = Bytes::mib(1);
    let mut pools = Vec::new();
    let mut blocks = Vec::new();
    while let Ok(block) = arena.allocate(size) {
        blocks.push(block);
        pools.push(arena.stats().pool_bytes.get() >> 20);
    }
    pools.dedup();
    assert_eq!((pools, blocks.len()), (vec![2, 4, 8, 16, 30], 30));
    blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    let stats = assert_sums(&arena);
    assert_eq!(stats.pool_bytes, Bytes::mib(2), "one small region stays warm");
    assert_eq!(arena.trim(), Bytes::mib(2));
    assert!(device.regions().is_empty());
}

#[test]
fn growing_takes_no_more_in_advance_than_the_device_allows() {
    let device = FakeBacking::new(Bytes::gib(64), PAGE).with_most_in_advance(Bytes::mib(8));
    let arena =
        Arena::new("fake:0".into(), Strategy::Growing, Bytes::gib(1), Box::new(device.clone())).expect("an arena");
    let pools: Vec<_> = (0..50)
        .map(|_| {
            take(&arena, Bytes::mib(1));
            arena.stats().pool_bytes.get() >> 20
        })
        .fold(Vec::new(), |mut pools, pool| {
            pools.extend((pools.last() != Some(&pool)).then_some(pool));
            pools
        });
    assert_eq!(pools, [2, 4, 8, 16, 24, 32, 40, 48, 56]);
    // What is asked for is had all the same.
    take(&arena, Bytes::mib(500));
    assert_eq!(arena.stats().pool_bytes, Bytes::mib(56 + 500));
}

#[test]
fn growing_stays_warm_once_a_loop_shows_and_trim_starts_over() {
    let (arena, device) = arena(Strategy::Growing, Bytes::gib(1));
    let round = || {
        let blocks = [100, 300, 40].map(|mib| take(&arena, Bytes::mib(mib)));
        blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    };
    round();
    assert!(arena.stats().pool_bytes <= Bytes::mib(2), "a single use gives its memory back");
    round();
    let reserves = device.reserves();
    (0..100).for_each(|_| round());
    assert!(device.reserves() <= reserves + 3, "{} more reservations", device.reserves() - reserves);
    assert!(arena.trim() >= Bytes::mib(300));
    assert_eq!(assert_sums(&arena).pool_bytes, Bytes::ZERO);
    round();
    assert!(arena.stats().pool_bytes <= Bytes::mib(2));
}

#[test]
fn growing_asks_for_less_when_the_device_refuses() {
    let (arena, device) = arena(Strategy::Growing, Bytes::gib(1));
    take(&arena, Bytes::mib(40));
    // Doubling would take 40 MiB; the device has 25 left: 20 for the request and a quarter of the other 20.
    device.set_capacity(Bytes::mib(65));
    take(&arena, Bytes::mib(20));
    assert_eq!(assert_sums(&arena).pool_bytes, Bytes::mib(65));
    let oom = arena.allocate(Bytes::mib(26)).expect_err("the device is full");
    assert!(oom.refusal.is_some() && oom.to_string().contains("the device refused"), "{oom}");
    assert!(oom.to_string().starts_with("Out of memory while trying to allocate 26.00MiB (27262976 bytes)"), "{oom}");
}

/// A device that refuses for another reason than a lack of memory, and counts how often.
#[derive(Debug, Default)]
struct OutOfOrder(std::sync::atomic::AtomicUsize);

impl Backing for std::sync::Arc<OutOfOrder> {
    fn reserve(&self, _: Bytes) -> crate::error::Result<Region> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Err(Error::internal("the books are locked"))
    }

    fn reserve_up_front(&self, bytes: Bytes) -> crate::error::Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, _: Region) -> crate::error::Result<()> {
        Ok(())
    }

    fn granularity(&self) -> Bytes {
        PAGE
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        None
    }
}

#[test]
fn growing_asks_once_where_less_would_be_refused_as_well() {
    let device = std::sync::Arc::new(OutOfOrder::default());
    let arena = Arena::new("fake:0".into(), Strategy::Growing, Bytes::gib(1), Box::new(device.clone()));
    let oom = arena.expect("a good arena").allocate(Bytes::mib(20)).expect_err("the device refuses");
    assert!(oom.to_string().contains("the books are locked"), "{oom}");
    assert_eq!(device.0.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn growing_gives_empty_regions_up_when_the_device_refuses() {
    let (arena, device) = arena(Strategy::Growing, Bytes::gib(1));
    take(&arena, Bytes::mib(40));
    device.set_capacity(Bytes::mib(42));
    let small = take(&arena, Bytes::mib(1));
    assert_eq!(arena.free(small.id), Ok(()));
    device.set_capacity(Bytes::mib(43));
    let pool = arena.stats().pool_bytes;
    assert!(pool > Bytes::mib(40), "{pool}: a small empty region stays");
    take(&arena, Bytes::mib(3));
    assert_eq!(assert_sums(&arena).pool_bytes, Bytes::mib(43));
}

#[test]
fn growing_keeps_only_what_was_missed_soon_after_it_left() {
    let (arena, _device) = arena(Strategy::Growing, Bytes::gib(1));
    let round = |mib| {
        let block = take(&arena, Bytes::mib(mib));
        assert_eq!(arena.free(block.id), Ok(()));
        arena.stats().pool_bytes
    };
    assert!(round(300) <= Bytes::mib(2), "a single use gives its memory back");
    // A thousand steps later that is forgotten.
    let scalar = take(&arena, Bytes::new(4));
    for _ in 0..1100 {
        let other = take(&arena, Bytes::new(4));
        assert_eq!(arena.free(other.id), Ok(()));
    }
    let before = round(10);
    let warm = round(10);
    assert!(warm >= before + Bytes::mib(8), "what left a moment ago is missed: {before}, {warm}");
    assert!(round(100) <= warm + Bytes::mib(2), "100 MiB are more than was ever missed");
    assert_eq!(arena.free(scalar.id), Ok(()));
}

#[test]
fn trimming_a_preallocated_region_gives_its_spare_extent_to_large_blocks() {
    let limit = Bytes::gib(1);
    let (arena, device) = arena(Strategy::Preallocate, limit);
    let scalar = take(&arena, Bytes::new(4));
    assert_eq!(arena.free(scalar.id), Ok(()));
    assert!(arena.stats().largest_free_block < limit, "the extent stays for the next scalar");
    assert_eq!(arena.trim(), Bytes::ZERO, "the region is the promise of this strategy");
    assert_eq!((arena.stats().largest_free_block, device.regions().len()), (limit, 1));
}

/// Of memory that the device refused, only what goes back to it can come.
#[test]
fn waiting_for_a_device_that_refuses_counts_only_what_goes_back() {
    for strategy in [Strategy::Growing, Strategy::Platform] {
        let (arena, device) = arena(strategy, Bytes::gib(1));
        device.set_capacity(Bytes::mib(30));
        take(&arena, Bytes::mib(10));
        let pending = take(&arena, Bytes::mib(20));
        assert_eq!(arena.retire(pending.id), Ok(()));
        let timeout = Duration::from_millis(5);
        let start = Instant::now();
        assert!(arena.allocate_waiting(Bytes::mib(20), Bytes::ZERO, timeout).is_err(), "nobody frees");
        assert!(start.elapsed() >= timeout, "{strategy}: 20 MiB would come");
        let start = Instant::now();
        assert!(arena.allocate_waiting(Bytes::mib(21), Bytes::ZERO, LONG).is_err(), "the device has 20 MiB at most");
        assert!(start.elapsed() < LONG / 2, "{strategy}: nothing was waited for");
    }
}

#[test]
fn growing_gives_empty_regions_up_when_the_limit_is_in_the_way() {
    let (arena, _device) = arena(Strategy::Growing, Bytes::mib(64));
    let blocks = [2, 2, 4, 8].map(|mib| take(&arena, Bytes::mib(mib)));
    blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    let whole = take(&arena, Bytes::mib(64));
    assert_eq!(assert_sums(&arena).free_bytes, Bytes::ZERO);
    assert_eq!(arena.free(whole.id), Ok(()));
}

#[test]
fn growing_empties_regions_for_one_that_no_region_can_hold() {
    let (arena, device) = arena(Strategy::Growing, Bytes::mib(64));
    let blocks: Vec<Block> = (0..30).map(|_| take(&arena, Bytes::mib(1))).collect();
    let (kept, gone): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(number, _)| number % 5 == 0);
    gone.iter().for_each(|(_, block)| assert_eq!(arena.free(block.id), Ok(())));
    assert!(arena.regions().len() > 3, "{:?}", arena.regions());
    let size = Bytes::mib(54);
    let oom = arena.allocate(size).expect_err("each region holds something");
    assert!(oom.free < size && oom.limit - oom.in_use >= size, "{oom}");
    let movable = |id: BlockId| kept.iter().any(|(_, block)| block.id == id);
    // With a block that stays in the way it is not even tried.
    let stays = kept.last().expect("some are kept").1.id;
    let costs = Costs::COPY;
    assert!(arena.plan(Goal::Hole(size), &costs, &|id| movable(id) && id != stays).is_err());
    let mut compaction = arena.plan(Goal::Hole(size), &costs, &movable).expect("all of it can move");
    for _ in 0..compaction.moves().len() {
        assert_eq!(compaction.commit(), Ok(()));
    }
    let whole = compaction.allocate(size).unwrap_or_else(|oom| panic!("{oom}"));
    assert_eq!(assert_sums(&arena).live_blocks, 7);
    kept.iter().for_each(|(_, block)| assert_eq!(arena.free(block.id), Ok(())));
    assert_eq!(arena.free(whole.id), Ok(()));
    assert_eq!(device.violations(), 0);
}

#[test]
fn platform_maps_each_block_and_unmaps_it() {
    let (arena, device) = arena(Strategy::Platform, PAGE.checked_add(Bytes::mib(1)).expect("small"));
    let (nothing, block) = (take(&arena, Bytes::ZERO), take(&arena, Bytes::kib(512) + Bytes::new(1)));
    assert_eq!(assert_sums(&arena).slack_bytes, PAGE + PAGE - Bytes::new(1));
    assert_eq!(device.regions().len(), 2);
    let oom = arena.allocate(Bytes::kib(512)).expect_err("over the limit");
    assert_eq!((oom.largest_request, oom.largest_hole), (Bytes::kib(508), Bytes::ZERO));
    [nothing, block].iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    assert_eq!((device.regions().len(), arena.stats().pool_bytes), (0, Bytes::ZERO));
}
