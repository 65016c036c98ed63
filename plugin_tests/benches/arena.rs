//! Nanoseconds per operation of the arena on the host's memory: `cargo bench -p plugin_tests --bench arena`; with
//! `-- scale` how they grow with the number of live blocks, on a device of addresses without memory; with `-- group`
//! what they are in a group of processes that share a limit.
//!
//! Numbers are for reading; nothing fails on time. Each line is the median of 15 rounds on one thread, with the lock
//! taken and released for every operation. Whole traces are timed by `arena-replay`.

use std::{hint::black_box, sync::Arc, time::Instant};

use fastrand::Rng;
use pjrt_arena::{
    device::{
        fake::FakeBacking,
        host::{CountedBacking, HostBacking},
    },
    group::{Group, Terms},
    memory::{Arena, Backing, Block, Provenance, Strategy, budget::Budget, compaction::Costs},
    runtime::device_memory::GroupPart,
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
    if std::env::args().any(|argument| argument == "scale") {
        return scale();
    }
    if std::env::args().any(|argument| argument == "group") {
        return in_a_group();
    }
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

/// The same pairs in a growing arena by itself, and in one whose regions count in the budget of a group of one; and,
/// with the strategy that has a region for each block, what such a region costs.
fn in_a_group() {
    const LIMIT: Bytes = Bytes::gib(4);
    let terms = Terms { limits: vec![LIMIT], platform: "cpu", explicit_limit: true, min: Bytes::ZERO, weight: 100 };
    let group = Group::join(&format!("bench-{}", std::process::id()), &terms).expect("a group of its own").group;
    let part = Arc::new(GroupPart::new(&group, 0).expect("the device is there"));
    let budget = Arc::new(Budget::new(LIMIT).part_of(Arc::<GroupPart>::clone(&part)));
    let alone = || Box::new(HostBacking::new()) as Box<dyn Backing>;
    let counted = || Box::new(CountedBacking::new(HostBacking::new(), Arc::clone(&budget))) as Box<dyn Backing>;
    println!("{:<44} {:>10} {:>10}", "ns per op", "alone", "in a group");
    for size in [Bytes::new(4), Bytes::kib(64), Bytes::mib(3)] {
        let [alone, counted] = [alone(), counted()].map(|backing| {
            let arena = Arena::new("bench".into(), Strategy::Growing, LIMIT, backing).expect("a good arena");
            pairs(&arena, size, 100_000)
        });
        println!("{:<44} {alone:>10.1} {counted:>10.1}", format!("pair of {size}"));
    }
    let [alone, counted] = [alone(), counted()].map(|backing| {
        let arena = Arena::new("bench".into(), Strategy::Platform, LIMIT, backing).expect("a good arena");
        pairs(&arena, Bytes::mib(256), 1000)
    });
    println!("{:<44} {alone:>10.1} {counted:>10.1}", "a region of 256 MiB, mapped and unmapped");
}

/// An arena with many live blocks, which is full but for the holes between them.
struct Crowd {
    arena: Arena,
    live: Vec<Block>,
    rng: Rng,
}

impl Crowd {
    /// `count` live blocks with a hole behind each. No hole is much larger than the others: those of 248 to 251
    /// granules share a bin.
    fn new(strategy: Strategy, count: usize) -> Self {
        let mut rng = Rng::with_seed(1);
        let sizes: Vec<(Bytes, Bytes)> =
            (0..count).map(|_| (size(&mut rng), Bytes::new(256 * rng.u64(248..252)))).collect();
        let granule = Bytes::new(256);
        let limit: Bytes = sizes.iter().map(|&(block, hole)| block.round_down(granule) + granule + hole).sum();
        let device = FakeBacking::new(Bytes::new(u64::MAX / 2), Bytes::kib(4));
        let mut arena = Arena::new("bench".into(), strategy, limit, Box::new(device)).expect("a good arena");
        arena.record_history(1 << 16);
        let pairs =
            sizes.iter().map_while(|&(block, hole)| Some((arena.allocate(block).ok()?, arena.allocate(hole).ok()?)));
        let (live, holes): (Vec<Block>, Vec<Block>) = pairs.unzip();
        let mut rest = Vec::new();
        while let Ok(block) = arena.allocate(arena.stats().largest_free_block.max(granule)) {
            rest.push(block);
        }
        for block in holes {
            arena.free(block.id).expect("live");
        }
        Self { arena, live, rng }
    }

    /// The median nanoseconds of one step for each of `some` blocks, taken at random.
    fn each(&mut self, some: usize, mut step: impl FnMut(&Arena, &mut Block)) -> f64 {
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let places: Vec<usize> = (0..some).map(|_| self.rng.usize(0..self.live.len())).collect();
                let start = Instant::now();
                places.iter().for_each(|&place| step(&self.arena, &mut self.live[place]));
                start.elapsed().as_nanos() as f64 / some as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    }
}

/// From 256 bytes to 64 KiB, as often in each power of two.
fn size(rng: &mut Rng) -> Bytes {
    Bytes::new((256.0 * 256f64.powf(rng.f64())) as u64)
}

/// A table: what each operation costs with so many live blocks.
fn scale() {
    const COUNTS: [usize; 4] = [1000, 10_000, 100_000, 1_000_000];
    println!("{:<44} {:>10} {:>10} {:>10} {:>10}", "ns, live blocks:", "10^3", "10^4", "10^5", "10^6");
    for strategy in [Strategy::Preallocate, Strategy::Tpu] {
        let columns: Vec<Vec<(&str, f64)>> = COUNTS.iter().map(|&count| measured(strategy, count)).collect();
        for row in 0..columns[0].len() {
            let cells: Vec<String> = columns.iter().map(|column| format!("{:>10.0}", column[row].1)).collect();
            println!("{:<44} {}", format!("{strategy}: {}", columns[0][row].0), cells.join(" "));
        }
    }
}

fn measured(strategy: Strategy, count: usize) -> Vec<(&'static str, f64)> {
    let mut crowd = Crowd::new(strategy, count);
    let some = 500;
    let mut made = Vec::with_capacity(some * ROUNDS);
    let mut sizes = Rng::with_seed(2);
    let allocate = crowd
        .each(some, |arena, _| made.extend(arena.allocate(black_box(Bytes::new(size(&mut sizes).get() / 4))).ok()));
    let per_round = (made.len() / ROUNDS).max(1);
    let mut times: Vec<f64> = made
        .chunks(per_round)
        .map(|round| {
            let start = Instant::now();
            round.iter().for_each(|block| crowd.arena.free(black_box(block.id)).expect("live"));
            start.elapsed().as_nanos() as f64 / round.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let free = times[times.len() / 2];
    let replace = crowd.each(some, |arena, block| {
        arena.free(block.id).expect("live");
        *block = arena.allocate(block.size).expect("its own room");
    });
    let pin = crowd.each(some, |arena, block| {
        arena.pin(block.id).expect("live");
        arena.unpin(block.id).expect("live");
    });
    // As before a NumPy view: where would it lie better, and what would have to make way? Nothing moves.
    let place = crowd.each(some, |arena, block| {
        if arena.plan_pin(block.id).is_err() {
            drop(arena.plan_pin_making_way(block.id, &Costs::COPY, 400_000, &|_| true));
        }
    });
    let reuse = crowd.each(some, |arena, block| {
        arena.retire(block.id).expect("live");
        block.id = arena.reuse_in_place(block.id, Provenance::default()).expect("retired");
    });
    // The largest hole goes and comes between two looks.
    let statistics = crowd.each(some, |arena, _| {
        let hole = arena.allocate(arena.stats().largest_free_block).expect("the largest hole");
        arena.free(hole.id).expect("live");
    });
    let snapshot = crowd.each(1, |arena, _| _ = black_box(arena.survey()));
    vec![
        ("allocate", allocate),
        ("free", free),
        ("free, and allocate the same size", replace),
        ("pin and unpin", pin),
        ("look for a place for a pin", place),
        ("retire and reuse", reuse),
        ("statistics, and a pair of the largest hole", statistics),
        ("snapshot of the arena", snapshot),
    ]
}
