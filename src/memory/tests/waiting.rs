//! What is waited for; and what a wait for retired blocks costs, counted in predictions: it does not grow with the
//! blocks that end meanwhile.

use std::{sync::atomic::Ordering, thread};

use crate::memory::tests::*;

const SIZE: Bytes = Bytes::kib(8);

#[test]
fn blocks_that_end_during_a_wait_cause_no_new_prediction() {
    for strategy in ALL {
        // Each block of `platform` is a region, which costs two calls of the kernel.
        let counts: &[u64] = if strategy == Strategy::Platform { &[1_000] } else { &[1_000, 100_000] };
        for &count in counts {
            let limit = Bytes::new(count * SIZE.get()) + Bytes::mib(4);
            let (arena, _device) = arena(strategy, limit);
            let small: Vec<Block> = (0..count).map(|_| take(&arena, SIZE)).collect();
            let large = take(&arena, arena.stats().largest_request);
            let ending: Vec<Block> = small.iter().copied().step_by(10).collect();
            ending.iter().chain([&large]).for_each(|block| assert_eq!(arena.retire(block.id), Ok(())));
            thread::scope(|scope| {
                let waiter = scope.spawn(|| arena.allocate_waiting(large.size, Bytes::ZERO, LONG));
                while arena.waiters() == 0 {
                    thread::yield_now();
                }
                for block in ending {
                    assert_eq!(arena.free(block.id), Ok(()));
                    thread::yield_now();
                }
                assert_eq!(arena.free(large.id), Ok(()));
                assert!(waiter.join().expect("no panic").is_ok(), "{strategy}");
            });
            // Under `platform` each block that ends gives a region back, and a prediction looks at four numbers.
            if strategy != Strategy::Platform {
                assert_eq!(arena.predictions.load(Ordering::Relaxed), 1, "{strategy}, {count} blocks");
            }
        }
    }
}

#[test]
fn scratch_of_a_program_under_way_is_waited_for() {
    let (arena, _device) = arena(Strategy::Tpu, Bytes::mib(8));
    assert!(arena.begin_scratch(Bytes::mib(4)).is_ok());
    let own = Bytes::mib(2);
    assert!(arena.begin_scratch(own).is_ok());
    assert!(arena.allocate_waiting(Bytes::mib(7), own, LONG).is_err(), "one's own is not waited for");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| arena.allocate_waiting(Bytes::mib(6), Bytes::mib(2), LONG));
        while arena.waiters() == 0 && !waiter.is_finished() {
            thread::yield_now();
        }
        assert!(!waiter.is_finished(), "4 MiB are kept for another program");
        arena.end_scratch(Bytes::mib(4));
        assert!(waiter.join().expect("no panic").is_ok());
    });
}
