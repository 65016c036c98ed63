//! Several threads on one arena.

use std::{
    collections::BTreeMap,
    sync::{Mutex, mpsc},
    thread,
};

use crate::memory::tests::*;

#[test]
fn a_waiter_gets_the_room_that_another_thread_frees() {
    for strategy in ALL {
        let (arena, _device) = arena(strategy, Bytes::mib(4));
        let start = Instant::now();
        let blocks = [(); 4].map(|()| take(&arena, Bytes::mib(1)));
        blocks.iter().for_each(|block| assert_eq!(arena.retire(block.id), Ok(())));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| arena.allocate_waiting(Bytes::mib(4), Bytes::ZERO, LONG));
            while arena.waiters() == 0 {
                thread::yield_now();
            }
            for block in blocks {
                assert!(!waiter.is_finished(), "{strategy}: it needs all four");
                assert_eq!(arena.free(block.id), Ok(()));
            }
            let block = waiter.join().expect("no panic").unwrap_or_else(|oom| panic!("{oom}"));
            assert_eq!(block.size, Bytes::mib(4));
            assert_eq!(arena.waiters(), 0);
        });
        assert!(start.elapsed() < LONG / 2, "{strategy}: it was woken, its timeout did not end");
        assert_sums(&arena);
    }
}

#[test]
fn a_waiter_whose_hope_another_thread_takes_gives_up() {
    let (arena, _device) = arena(Strategy::Preallocate, Bytes::mib(2));
    let [kept, retired] = [(); 2].map(|()| take(&arena, Bytes::mib(1)));
    assert_eq!(arena.retire(retired.id), Ok(()));
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| arena.allocate_waiting(Bytes::mib(1), Bytes::ZERO, LONG)));
        while arena.waiters() < 2 {
            thread::yield_now();
        }
        assert_eq!(arena.free(retired.id), Ok(()));
        let results = waiters.map(|waiter| waiter.join().expect("no panic"));
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    });
    assert_eq!(arena.free(kept.id), Ok(()));
}

#[test]
fn a_waiter_whose_hope_returns_gives_up() {
    for strategy in ALL {
        let (arena, _device) = arena(strategy, Bytes::mib(1));
        let block = take(&arena, Bytes::mib(1));
        assert_eq!(arena.retire(block.id), Ok(()));
        let start = Instant::now();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| arena.allocate_waiting(Bytes::mib(1), Bytes::ZERO, LONG));
            while arena.waiters() == 0 {
                thread::yield_now();
            }
            assert!(arena.reuse_in_place(block.id, Provenance::default()).is_ok());
            assert!(waiter.join().expect("no panic").is_err());
        });
        assert!(start.elapsed() < LONG / 2, "{strategy}: it was woken, its timeout did not end");
    }
}

/// Four threads take, retire and free while a fifth frees what they retired, as an engine's worker would. Every range
/// that a thread holds is entered in a common map, which sees any overlap; sums are read all the time.
#[test]
fn hammering_threads_never_share_a_byte() {
    const ROUNDS: u64 = 3000;
    for strategy in ALL {
        let (arena, device) = arena(strategy, Bytes::mib(72));
        let held: Mutex<BTreeMap<Address, Address>> = Mutex::default();
        let enter = |block: &Block| {
            let end = block.address + block.size.max(Bytes::new(1));
            let mut held = held.lock().expect("no panic under it");
            let below = held.range(..end).next_back().map(|(_, &end)| end);
            assert!(below.is_none_or(|below| below <= block.address), "{strategy}: {block:?} overlaps");
            held.insert(block.address, end);
        };
        let leave = |block: &Block| held.lock().expect("no panic under it").remove(&block.address).expect("entered");
        thread::scope(|scope| {
            let (retired, worker) = mpsc::channel::<Block>();
            for seed in 1..5u64 {
                let (retired, arena, enter, leave) = (retired.clone(), &arena, &enter, &leave);
                scope.spawn(move || {
                    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut mine: Vec<Block> = Vec::new();
                    for round in 0..ROUNDS {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let size = Bytes::new((random >> 20 & 0x3f_ffff) >> (random % 20));
                        match random >> 50 & 3 {
                            0 | 1 => match arena.allocate_waiting(size, Bytes::ZERO, Duration::from_micros(200)) {
                                Ok(block) => {
                                    enter(&block);
                                    mine.push(block);
                                }
                                Err(oom) => assert!(oom.requested == size && oom.pool() <= oom.limit),
                            },
                            _ if mine.is_empty() => {}
                            action => {
                                let block = mine.swap_remove((random >> 8) as usize % mine.len());
                                leave(&block);
                                if action == 2 {
                                    assert_eq!(arena.free(block.id), Ok(()));
                                } else {
                                    assert_eq!(arena.retire(block.id), Ok(()));
                                    retired.send(block).expect("the worker listens");
                                }
                            }
                        }
                        if round % 64 == 0 {
                            assert_sums(arena);
                        }
                        if round % 512 == 0 {
                            arena.trim();
                        }
                    }
                    for block in mine {
                        leave(&block);
                        assert_eq!(arena.free(block.id), Ok(()));
                    }
                });
            }
            drop(retired);
            scope.spawn(|| worker.into_iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(()))));
        });
        let stats = assert_sums(&arena);
        assert_eq!((stats.bytes_in_use, stats.pending_bytes, stats.slack_bytes), Default::default());
        assert!(stats.num_allocs > ROUNDS, "{strategy}: {} allocations", stats.num_allocs);
        drop(arena);
        assert_eq!((device.regions().len(), device.violations()), (0, 0));
    }
}
