//! The arena as a whole, over the fake device: each strategy, refusals, waiting, threads, and random sequences
//! against a model ([`model`]).

mod compaction;
mod faults;
mod history;
mod model;
mod moves;
mod pins;
mod prospects;
mod strategies;
mod threads;
mod trimming;
mod waiting;

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
        assert!(arena.allocate_waiting(Bytes::mib(1), Bytes::ZERO, LONG).is_err(), "nothing pends");
        [a, c].iter().for_each(|block| assert_eq!(arena.retire(block.id), Ok(())));
        if strategy != Strategy::Platform {
            assert!(
                arena.allocate_waiting(Bytes::mib(2), Bytes::ZERO, LONG).is_err(),
                "{strategy}: two of 1 MiB, apart"
            );
        }
        assert!(arena.allocate_waiting(Bytes::mib(3), Bytes::ZERO, LONG).is_err(), "{strategy}: two pend");
        assert!(start.elapsed() < LONG / 2, "nothing was waited for");
        [b, d].iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
        // `b` and `d` are holes now, `a` and `c` pend: everything would be one piece.
        let fits = |size| arena.would_fit(&Needs::of(size), &|_| false, None);
        assert!(fits(Bytes::mib(4)) && !fits(Bytes::mib(4) + Bytes::new(1)), "{strategy}");
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
    let oom = arena.allocate_waiting(Bytes::mib(1), Bytes::ZERO, timeout).expect_err("nobody frees");
    assert!(start.elapsed() >= timeout, "it would have helped, so it was waited for");
    assert_eq!(oom.pending, Bytes::mib(1));
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
