//! Microseconds to plan a compaction: `cargo bench -p plugin_tests --bench planning`.
//!
//! Numbers are for reading; nothing fails on time. Each line is one arena of the host's memory, filled with blocks of
//! random sizes of which a fourth was freed again, so that about a fifth of what is left are holes; then holes of
//! random sizes are planned for, and the plans dropped. All with the lock, as a request that failed does it.

use std::{hint::black_box, time::Instant};

use pjrt_arena::{
    device::host::HostBacking,
    memory::{Arena, BlockInfo, Goal, Strategy, compaction::Costs},
    units::Bytes,
};

const PLANS: usize = 301;

/// An arena with `count` live blocks of up to `largest`, and holes between them.
fn fragmented(count: usize, largest: Bytes, random: &mut fastrand::Rng) -> Arena {
    let arena = Arena::new("bench".into(), Strategy::Tpu, Bytes::gib(64), Box::new(HostBacking::new()));
    let arena = arena.expect("a good arena");
    let mut blocks: Vec<_> = (0..count * 4 / 3)
        .map(|_| arena.allocate(Bytes::new(random.u64(Bytes::kib(8).get()..largest.get()))).expect("room"))
        .collect();
    random.shuffle(&mut blocks);
    for block in blocks.drain(count..) {
        arena.free(block.id).expect("live");
    }
    // What is left above the blocks, so that only moving them makes room.
    let top = arena.stats().largest_free_block;
    arena.allocate(top).expect("the hole at the end");
    arena
}

/// Gaps between the blocks.
fn holes_of(arena: &Arena) -> usize {
    let mut blocks = arena.blocks();
    blocks.sort_unstable_by_key(|info| info.block.address);
    let touch = |pair: &[BlockInfo]| pair[0].block.address + pair[0].held >= pair[1].block.address;
    blocks.windows(2).filter(|pair| !touch(pair)).count()
}

fn main() {
    let mut random = fastrand::Rng::with_seed(7);
    println!(
        "{:>8} {:>8} {:>14} {:>12} {:>12} {:>8}",
        "blocks", "holes", "largest", "quartile us", "median us", "moves"
    );
    for (count, largest) in [
        (1_000, Bytes::mib(1)),
        (10_000, Bytes::kib(64)),
        (10_000, Bytes::mib(1)),
        (10_000, Bytes::mib(6)),
        (30_000, Bytes::mib(1)),
    ] {
        let arena = fragmented(count, largest, &mut random);
        let (free, hole) = (arena.stats().free_bytes, arena.stats().largest_free_block);
        let mut plans: Vec<(f64, usize)> = (0..PLANS)
            .map(|_| {
                let size = Bytes::new(random.u64(hole.get() + 1..hole.get() * 8).min(free.get() / 2));
                let start = Instant::now();
                let plan = arena.plan(black_box(Goal::Hole(size)), &Costs::COPY, &|_| true).expect("a plan");
                let took = start.elapsed().as_secs_f64() * 1e6;
                (took, plan.moves().len())
            })
            .collect();
        plans.sort_by(|one, other| one.0.total_cmp(&other.0));
        let moves = plans.iter().map(|plan| plan.1).sum::<usize>() / PLANS;
        let holes = holes_of(&arena);
        let (quartile, median) = (plans[PLANS / 4].0, plans[PLANS / 2].0);
        println!("{count:>8} {holes:>8} {largest:>14} {quartile:>12.0} {median:>12.0} {moves:>8}");
    }
}
