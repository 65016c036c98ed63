//! The arena as a whole, over the fake device: each strategy, refusals, waiting, threads, and random sequences
//! against a model ([`model`]).

mod compaction;
mod history;
mod model;
mod moves;
mod threads;

use std::time::{Duration, Instant};

use crate::{
    device::fake::FakeBacking,
    error::{Code, Error},
    memory::{compaction::Costs, *},
    units::{Address, Bytes},
};

const PAGE: Bytes = Bytes::kib(4);
const ALL: [Strategy; 4] = [Strategy::Preallocate, Strategy::Growing, Strategy::Platform, Strategy::Tpu];
/// More than any test takes: to wait this long is to fail.
const LONG: Duration = Duration::from_secs(60);

fn arena(strategy: Strategy, limit: Bytes) -> (Arena, FakeBacking) {
    let device = FakeBacking::new(Bytes::gib(64), PAGE);
    let arena = Arena::new("fake:0".into(), strategy, limit, Box::new(device.clone())).expect("a good arena");
    (arena, device)
}

fn take(arena: &Arena, size: impl Into<Request>) -> Block {
    arena.allocate(size).unwrap_or_else(|oom| panic!("{oom}"))
}

fn assert_sums(arena: &Arena) -> Stats {
    let stats = arena.stats();
    let parts = [stats.bytes_in_use, stats.pending_bytes, stats.slack_bytes, stats.free_bytes];
    assert_eq!(parts.into_iter().sum::<Bytes>(), stats.pool_bytes, "{stats:?}");
    assert!(stats.pool_bytes <= stats.limit && stats.pool_bytes <= stats.peak_pool_bytes, "{stats:?}");
    stats
}

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
    assert_eq!(pools, [2, 4, 8, 16, 25, 34, 43, 52]);
    // What is asked for is had all the same.
    take(&arena, Bytes::mib(500));
    assert_eq!(arena.stats().pool_bytes, Bytes::mib(52 + 500));
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
        assert!(arena.allocate_waiting(Bytes::mib(20), timeout).is_err(), "nobody frees");
        assert!(start.elapsed() >= timeout, "{strategy}: 20 MiB would come");
        let start = Instant::now();
        assert!(arena.allocate_waiting(Bytes::mib(21), LONG).is_err(), "the device has 20 MiB at most");
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

#[test]
fn scalars_share_an_extent_and_leave_the_space_whole() {
    let limit = Bytes::gib(1);
    let (arena, _device) = arena(Strategy::Preallocate, limit);
    let mut large = Vec::new();
    let mut scalars = Vec::new();
    for _ in 0..100 {
        large.push(take(&arena, Bytes::mib(10)));
        scalars.push(take(&arena, Bytes::new(4)));
    }
    large.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    assert_eq!(arena.stats().largest_free_block, limit - Bytes::mib(1), "one hole beside one extent of 1 MiB");
    assert_sums(&arena);
    let first = scalars[0].address.get() >> 20;
    assert!(scalars.iter().all(|scalar| scalar.address.get() >> 20 == first));
}

#[test]
fn a_freed_block_comes_back_at_its_address() {
    for strategy in [Strategy::Preallocate, Strategy::Growing] {
        let (arena, device) = arena(strategy, Bytes::gib(1));
        for size in [Bytes::new(4), Bytes::kib(3), Bytes::kib(100), Bytes::mib(256)] {
            let first = take(&arena, size);
            assert_eq!(arena.free(first.id), Ok(()));
            let second = take(&arena, size);
            assert_eq!(arena.free(second.id), Ok(()));
            let reserves = device.reserves();
            let third = take(&arena, size);
            assert_eq!(arena.free(third.id), Ok(()));
            assert_eq!((third.address, device.reserves()), (second.address, reserves), "{strategy} {size}");
        }
    }
}

#[test]
fn a_stale_id_is_an_error_in_every_state() {
    for strategy in ALL {
        let (arena, device) = arena(strategy, Bytes::mib(1));
        let block = take(&arena, Bytes::kib(8));
        assert_eq!(arena.retire(block.id), Ok(()));
        assert_eq!(arena.retire(block.id).map_err(|error| error.code), Err(Code::FailedPrecondition));
        assert_eq!(arena.free(block.id), Ok(()));
        let again = take(&arena, Bytes::kib(8));
        for result in [arena.free(block.id), arena.retire(block.id)] {
            let error = result.expect_err("stale");
            assert_eq!(error.code, Code::NotFound);
            assert!(error.message.contains("fake:0") && error.message.contains(&block.id.to_string()), "{error}");
        }
        assert_eq!(assert_sums(&arena).live_blocks, 1);
        drop(arena);
        assert!(device.regions().is_empty(), "{strategy}: a dropped arena gives all back, {again:?} too");
        assert_eq!(device.violations(), 0);
    }
}

#[test]
fn a_device_that_refuses_is_an_error_with_its_words_and_not_the_end() {
    // The strategy tpu takes its memory at once, so that it has no arena to fail later.
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Platform] {
        let (arena, device) = arena(strategy, Bytes::mib(4));
        device.set_capacity(Bytes::ZERO);
        let oom = arena.allocate(Bytes::mib(1)).expect_err("no memory at all");
        assert!(oom.refusal.as_ref().is_some_and(|refusal| refusal.message.contains("fake device")), "{oom:?}");
        assert_eq!(Error::from(oom).code, Code::ResourceExhausted);
        assert_eq!(arena.stats(), Stats { limit: Bytes::mib(4), largest_request: Bytes::mib(4), ..Stats::default() });
        device.set_capacity(Bytes::mib(4));
        take(&arena, Bytes::mib(1));
        assert_sums(&arena);
    }
}

#[test]
fn clearing_peaks_is_xlas_clear_stats() {
    let (arena, _device) = arena(Strategy::Platform, Bytes::mib(8));
    let (large, small) = (take(&arena, Bytes::mib(4)), take(&arena, Bytes::mib(1)));
    assert_eq!(arena.free(large.id), Ok(()));
    let stats = arena.stats();
    assert_eq!((stats.peak_bytes_in_use, stats.peak_pool_bytes), (Bytes::mib(5), Bytes::mib(5)));
    assert_eq!((stats.largest_alloc_size, stats.num_allocs), (Bytes::mib(4), 2));
    arena.clear_peaks();
    let stats = arena.stats();
    assert_eq!((stats.peak_bytes_in_use, stats.peak_pool_bytes), (Bytes::mib(1), Bytes::mib(1)));
    assert_eq!((stats.largest_alloc_size, stats.num_allocs, stats.live_blocks), (Bytes::ZERO, 0, 1));
    assert_eq!(arena.blocks()[0].block, small);
}

#[test]
fn limits_and_granularities_that_cannot_work_are_refused() {
    for strategy in ALL {
        for (limit, granularity) in [(PAGE - Bytes::new(1), PAGE), (Bytes::ZERO, PAGE), (PAGE, Bytes::new(768))] {
            let device = FakeBacking::new(Bytes::gib(1), granularity);
            let error = Arena::new("fake:0".into(), strategy, limit, Box::new(device)).expect_err("no such arena");
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains("allowed"), "{error}");
        }
        let (arena, _device) = arena(strategy, PAGE);
        take(&arena, Bytes::ZERO);
        let oom = arena.allocate(Bytes::MAX).expect_err("more than any limit");
        assert!(oom.to_string().contains("larger than the limit"), "{oom}");
    }
}

#[test]
fn waiting_is_refused_at_once_when_no_pending_block_would_help() {
    for strategy in ALL {
        let (arena, _device) = arena(strategy, Bytes::mib(4));
        let [a, b, c, d] = [(); 4].map(|()| take(&arena, Bytes::mib(1)));
        let start = Instant::now();
        assert!(arena.allocate_waiting(Bytes::mib(1), LONG).is_err(), "nothing pends");
        [a, c].iter().for_each(|block| assert_eq!(arena.retire(block.id), Ok(())));
        if strategy != Strategy::Platform {
            assert!(arena.allocate_waiting(Bytes::mib(2), LONG).is_err(), "{strategy}: two of 1 MiB, apart");
        }
        assert!(arena.allocate_waiting(Bytes::mib(3), LONG).is_err(), "{strategy}: two pend");
        assert!(start.elapsed() < LONG / 2, "nothing was waited for");
        [b, d].iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
        // `b` and `d` are holes now, `a` and `c` pend: everything would be one piece.
        assert!(arena.fits_after_pending(Bytes::mib(4)), "{strategy}");
        assert!(!arena.fits_after_pending(Bytes::mib(4) + Bytes::new(1)), "{strategy}");
    }
}

#[test]
fn a_reused_block_is_another_one_in_the_same_place() {
    for strategy in ALL {
        for size in [Bytes::new(1), Bytes::kib(20), Bytes::mib(2)] {
            let (arena, device) = arena(strategy, Bytes::mib(80));
            let block = take(&arena, size);
            let before = assert_sums(&arena);
            let refused = arena.reuse_in_place(block.id, Provenance::default()).expect_err("it is live");
            assert_eq!(refused.code, Code::FailedPrecondition);
            assert!(refused.message.contains("fake:0") && refused.message.contains(&block.id.to_string()), "{refused}");
            assert_eq!(arena.retire(block.id), Ok(()));
            assert_eq!(arena.stats().peak_bytes_in_use, size);
            let id = arena.reuse_in_place(block.id, Provenance::default()).expect("it is retired");
            assert_eq!(arena.free(block.id).map_err(|error| error.code), Err(Code::NotFound), "the old one is gone");
            assert_eq!(arena.blocks().iter().map(|info| info.block).collect::<Vec<_>>(), [Block { id, ..block }]);
            let after = assert_sums(&arena);
            assert_eq!((after.bytes_in_use, after.pending_bytes, after.live_blocks), (size, Bytes::ZERO, 1));
            assert_eq!((after.num_allocs, after.frees_total, after.freed_total), (2, 1, size), "{strategy}");
            assert_eq!((after.peak_bytes_in_use, after.slack_bytes), (size, before.slack_bytes));
            assert_eq!(arena.free(id), Ok(()));
            assert!(arena.reuse_in_place(id, Provenance::default()).is_err());
            assert_eq!(assert_sums(&arena).bytes_in_use, Bytes::ZERO);
            drop(arena);
            assert!(device.regions().is_empty() && device.violations() == 0, "{strategy}");
        }
    }
}

#[test]
fn a_timeout_ends_the_wait() {
    let (arena, _device) = arena(Strategy::Preallocate, Bytes::mib(1));
    let block = take(&arena, Bytes::mib(1));
    assert_eq!(arena.retire(block.id), Ok(()));
    let timeout = Duration::from_millis(5);
    let start = Instant::now();
    let oom = arena.allocate_waiting(Bytes::mib(1), timeout).expect_err("nobody frees");
    assert!(start.elapsed() >= timeout, "it would have helped, so it was waited for");
    assert_eq!(oom.pending, Bytes::mib(1));
}

#[test]
fn growing_gives_what_it_retained_back_largest_first() {
    let (arena, device) = arena(Strategy::Growing, Bytes::gib(1));
    let round = || {
        let blocks = [100, 300, 40].map(|mib| take(&arena, Bytes::mib(mib)));
        blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    };
    (0..10).for_each(|_| round());
    let retained = assert_sums(&arena).pool_bytes;
    assert!(retained >= Bytes::mib(440), "{retained}");
    let sizes = |device: &FakeBacking| device.regions().iter().map(|region| region.bytes).collect::<Vec<_>>();
    let largest = sizes(&device).into_iter().max().unwrap();
    assert_eq!(arena.trim_to(Bytes::ZERO), Bytes::ZERO, "all of it was used in this window");
    assert_eq!((arena.end_window() >= Bytes::mib(440), arena.end_window()), (true, Bytes::ZERO));
    // One byte less than there is: the largest region is what has to go.
    assert_eq!(arena.trim_to(retained - Bytes::new(1)), largest);
    assert!(assert_sums(&arena).pool_bytes == retained - largest && !sizes(&device).contains(&largest));
    assert_eq!(arena.trim_to(Bytes::ZERO), retained - largest - assert_sums(&arena).pool_bytes);
    assert!(assert_sums(&arena).pool_bytes <= Bytes::mib(2), "as at the start");
    // That was a mistake, as the next rounds show: they run warm from the second on.
    (0..2).for_each(|_| round());
    let reserves = device.reserves();
    (0..10).for_each(|_| round());
    assert!(device.reserves() <= reserves + 3, "{} more", device.reserves() - reserves);
}

#[test]
fn a_surplus_is_the_largest_holes_and_the_high_end_of_one() {
    let (arena, _) = arena(Strategy::Preallocate, Bytes::mib(100));
    let blocks: Vec<Block> = (0..10).map(|_| take(&arena, Bytes::mib(10))).collect();
    // Holes of 10, 20 and 30 MiB.
    [1, 3, 4, 6, 7, 8].iter().for_each(|&number: &usize| assert_eq!(arena.free(blocks[number].id), Ok(())));
    assert_eq!((arena.end_window(), arena.end_window()), (Bytes::mib(100), Bytes::mib(40)));
    let of =
        |number: usize, mib| AddressRange { address: blocks[number].address + Bytes::mib(mib), bytes: Bytes::ZERO };
    let given = |keep| {
        let (mut surplus, mut given) = (arena.surplus(keep), Vec::<AddressRange>::new());
        let mut note = |piece: AddressRange| {
            assert!(piece.bytes <= Bytes::mib(16));
            match given.last_mut().filter(|last| last.address + last.bytes == piece.address) {
                Some(last) => last.bytes += piece.bytes,
                None => given.push(piece),
            }
            piece.bytes
        };
        while arena.discard_next(&mut surplus, &mut note).is_some() {}
        given
    };
    // 25 MiB above what is in use: the hole of 10 stays, and 15 of that of 20.
    let expected = [(of(6, 0), 30), (of(3, 15), 5)].map(|(at, mib)| AddressRange { bytes: Bytes::mib(mib), ..at });
    assert_eq!(given(Bytes::mib(65)), expected);
    assert_eq!(given(Bytes::mib(100)), []);
    // What is pending counts as used.
    assert_eq!(arena.retire(blocks[0].id), Ok(()));
    assert_eq!((arena.used(), given(Bytes::mib(65))), (Bytes::mib(40), expected.to_vec()));
    // Nothing at all is to stay beyond what is in use, and more is used: no piece goes.
    assert_eq!(given(Bytes::mib(39)), []);
}

#[test]
fn every_hole_is_discarded_once_in_pieces_of_64_mib_that_end_where_pages_do() {
    const PIECE: Bytes = Bytes::mib(64);
    let (arena, _) = arena(Strategy::Preallocate, Bytes::mib(500));
    let blocks: Vec<Block> = [150, 10, 40, 100].map(|mib| take(&arena, Bytes::mib(mib))).into();
    // Holes of 150 and 40 MiB, and one of 200 behind the last block.
    [0, 2].iter().for_each(|&number: &usize| assert_eq!(arena.free(blocks[number].id), Ok(())));
    let mut seen: Vec<AddressRange> = Vec::new();
    // The device gives back less than it is offered: what it says is what is summed.
    let discarded = arena.discard_holes(|piece| {
        seen.push(piece);
        Bytes::new(piece.bytes.get() / 2)
    });
    assert_eq!(discarded, Bytes::mib((150 + 40 + 200) / 2));
    let mut holes: Vec<AddressRange> = Vec::new();
    for piece in &seen {
        assert!(!piece.bytes.is_zero() && piece.bytes <= PIECE, "{piece:?}");
        match holes.last_mut().filter(|hole| hole.address + hole.bytes == piece.address) {
            Some(hole) => {
                assert!(piece.address.is_aligned_to(PIECE), "a hole is cut where pages end: {piece:?}");
                hole.bytes += piece.bytes;
            }
            None => holes.push(*piece),
        }
    }
    let behind = |block: &Block| block.address + block.size;
    let expected = [
        AddressRange { address: blocks[0].address, bytes: Bytes::mib(150) },
        AddressRange { address: blocks[2].address, bytes: Bytes::mib(40) },
        AddressRange { address: behind(&blocks[3]), bytes: Bytes::mib(200) },
    ];
    assert_eq!(holes, expected);
    let without = self::arena(Strategy::Platform, Bytes::mib(8)).0;
    take(&without, Bytes::mib(1));
    assert_eq!(without.discard_holes(|piece| piece.bytes), Bytes::ZERO, "its blocks' regions have no holes");
}

#[test]
fn a_surplus_takes_the_largest_holes_wherever_they_lie() {
    let (arena, _) = arena(Strategy::Preallocate, Bytes::mib(100));
    let blocks: Vec<Block> = [30, 10, 10, 10, 20, 20].map(|mib| take(&arena, Bytes::mib(mib))).into();
    // Holes of 30, 10 and 20 MiB, the largest at the lowest address.
    [0, 2, 4].iter().for_each(|&number: &usize| assert_eq!(arena.free(blocks[number].id), Ok(())));
    assert_eq!(arena.retire(blocks[1].id), Ok(()));
    assert!(arena.end_window() >= arena.end_window());
    let given = |keep| {
        let (mut surplus, mut given) = (arena.surplus(keep), Bytes::ZERO);
        let mut lowest = None;
        let mut note = |piece: AddressRange| {
            lowest = Some(lowest.map_or(piece.address, |lowest: Address| lowest.min(piece.address)));
            given += piece.bytes;
            piece.bytes
        };
        while arena.discard_next(&mut surplus, &mut note).is_some() {}
        (given, lowest)
    };
    // 30 MiB live and 10 are retired. Of 60 MiB free, 30 stay: the holes of 10 and 20.
    assert_eq!(arena.used(), Bytes::mib(40));
    assert_eq!(given(Bytes::mib(70)), (Bytes::mib(30), Some(blocks[0].address)));
    assert_eq!(given(Bytes::mib(80)), (Bytes::mib(20), Some(blocks[0].address + Bytes::mib(10))));
    // What is left of a hole is given from 64 KiB on: less is not worth a call.
    let all_but = |bytes: Bytes| given(Bytes::mib(100) - bytes).0;
    assert_eq!((all_but(Bytes::kib(64)), all_but(Bytes::kib(64) - Bytes::new(256))), (Bytes::kib(64), Bytes::ZERO));
}

#[test]
fn what_is_pending_is_in_use_where_memory_is_to_be_given_back() {
    let (arena, _device) = arena(Strategy::Growing, Bytes::gib(1));
    let round = || {
        let blocks = [100, 300].map(|mib| take(&arena, Bytes::mib(mib)));
        blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    };
    (0..3).for_each(|_| round());
    let retained = arena.stats().free_bytes;
    assert!(retained >= Bytes::mib(300), "{retained}");
    let live = take(&arena, Bytes::new(4));
    let pending = take(&arena, Bytes::mib(20));
    assert_eq!(arena.retire(pending.id), Ok(()));
    assert!(arena.end_window() >= Bytes::mib(20));
    assert_eq!(arena.end_window(), Bytes::mib(20) + Bytes::new(4));
    // As much as is empty may stay beside what is used: the retired block is part of that.
    let empty = arena.stats().free_bytes;
    assert_eq!(arena.trim_to(empty + Bytes::mib(20) + Bytes::new(4)), Bytes::ZERO);
    assert!(arena.trim_to(Bytes::mib(20) + Bytes::new(4)) >= Bytes::mib(90));
    [live, pending].iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
}

#[test]
fn an_arena_says_what_it_is() {
    for strategy in ALL {
        let (arena, _device) = arena(strategy, Bytes::mib(8) + Bytes::new(5));
        assert_eq!((arena.name(), arena.strategy(), arena.limit()), ("fake:0", strategy, Bytes::mib(8)));
    }
}

#[test]
fn without_slots_small_blocks_lie_among_the_others() {
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Tpu] {
        let (mut arena, _device) = arena(strategy, Bytes::mib(80));
        arena.use_no_slots();
        let blocks = [4, 3000, 100_000].map(|bytes| take(&arena, Bytes::new(bytes)));
        let ends: Vec<Address> = arena.blocks().iter().map(|info| info.block.address + info.held).collect();
        assert_eq!((ends[0], ends[1]), (blocks[1].address, blocks[2].address), "{strategy}: side by side");
        // Granules and no slots: 252, 72 and 96 bytes.
        assert_eq!(assert_sums(&arena).slack_bytes, Bytes::new(252 + 72 + 96));
    }
}
