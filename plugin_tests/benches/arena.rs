//! Nanoseconds per operation of the arena on the host's memory: `cargo bench -p plugin_tests --bench arena`.
//!
//! Numbers are for reading; nothing fails on time. Each line is the median of 15 rounds on one thread, with the lock
//! taken and released for every operation. Whole traces are timed by `arena-replay`.

use std::{hint::black_box, time::Instant};

use pjrt_arena::{
    device::host::HostBacking,
    memory::{Arena, Strategy},
    units::Bytes,
};

const ROUNDS: usize = 15;

/// The median of the rounds' nanoseconds per operation; `round` returns its operations.
fn median(mut round: impl FnMut() -> usize) -> f64 {
    round();
    let mut results: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let operations = round();
            start.elapsed().as_nanos() as f64 / operations as f64
        })
        .collect();
    results.sort_by(f64::total_cmp);
    results[ROUNDS / 2]
}

fn pairs(arena: &Arena, size: Bytes, count: usize) -> f64 {
    median(|| {
        for _ in 0..count {
            let block = arena.allocate(black_box(size)).expect("room");
            arena.free(black_box(block).id).expect("live");
        }
        2 * count
    })
}

fn main() {
    println!("{:<44} {:>10}", "", "ns per op");
    for (strategy, count) in
        [(Strategy::Preallocate, 100_000), (Strategy::Growing, 100_000), (Strategy::Platform, 1000)]
    {
        let arena = Arena::new("bench".into(), strategy, Bytes::gib(4), Box::new(HostBacking::new()));
        let arena = arena.expect("a good arena");
        // Memory that stays in use, so that the pairs do not run in an empty arena.
        for mib in 1..=32 {
            let block = arena.allocate(Bytes::mib(mib)).expect("room");
            if mib % 2 == 0 {
                arena.free(block.id).expect("live");
            }
        }
        for size in [Bytes::new(4), Bytes::kib(64), Bytes::mib(3), Bytes::mib(256)] {
            println!("{:<44} {:>10.1}", format!("{strategy}: pair of {size} on the host"), pairs(&arena, size, count));
        }
    }
    let mut arena = Arena::new("bench".into(), Strategy::Preallocate, Bytes::gib(4), Box::new(HostBacking::new()))
        .expect("a good arena");
    arena.record_history(1 << 16);
    for size in [Bytes::new(4), Bytes::kib(64)] {
        let name = format!("preallocate, with a history: pair of {size}");
        println!("{name:<44} {:>10.1}", pairs(&arena, size, 100_000));
    }
}
