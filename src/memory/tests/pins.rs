//! What a pin costs does not grow with the number of blocks, counted in what is looked at.

use std::cell::Cell;

use crate::memory::{arena::Compaction, space::around, tests::*};

const SIZE: Bytes = Bytes::kib(8);
/// Blocks of which a million are in the arena at most.
const COUNTS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const PINS: usize = 400;

/// An arena with `count` blocks, and room for `more`.
fn with_blocks(count: u64, more: u64) -> (Arena, Vec<Block>) {
    let device = FakeBacking::new(Bytes::gib(64), PAGE);
    let limit = Bytes::new((count + more) * SIZE.get());
    let arena = Arena::new("fake:0".into(), Strategy::Tpu, limit, Box::new(device)).expect("a good arena");
    let blocks = (0..count).map(|_| take(&arena, SIZE)).collect();
    (arena, blocks)
}

fn commit_all(mut compaction: Compaction<'_>) -> usize {
    let moves = compaction.moves().len();
    (0..moves).for_each(|_| compaction.commit().expect("nobody else uses the arena"));
    moves
}

/// Blocks spread over the arena.
fn some_of(blocks: &[Block]) -> impl Iterator<Item = Block> {
    blocks.iter().copied().step_by(blocks.len() / PINS).take(PINS)
}

#[test]
fn with_room_above_every_pin_goes_there_at_once() {
    for count in COUNTS {
        let (arena, blocks) = with_blocks(count, 1000);
        for block in some_of(&blocks) {
            let aside = arena.plan_pin(block.id).expect("there is room at the upper end");
            assert_eq!(commit_all(aside), 1);
            assert_eq!(arena.pin(block.id), Ok(()));
        }
        let stats = arena.stats();
        assert_eq!(stats.migrations, PINS as u64);
        assert_eq!(stats.largest_free_block, Bytes::new((1000 - PINS as u64) * SIZE.get()), "they lie side by side");
    }
}

#[test]
fn without_room_above_few_blocks_are_looked_at_however_many_there_are() {
    for count in COUNTS {
        let (arena, blocks) = with_blocks(count, 0);
        let (freed, kept): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(number, _)| number % 10 == 3);
        freed.iter().for_each(|(_, block)| assert_eq!(arena.free(block.id), Ok(())));
        let kept: Vec<Block> = kept.into_iter().map(|(_, &block)| block).collect();
        let (mut most, mut aside) = (0, 0);
        for block in some_of(&kept[..kept.len() / 2]) {
            if arena.plan_pin(block.id).map(commit_all).is_err() && arena.stands_amid(block.id) {
                let asked = Cell::new(0);
                let movable = |_| {
                    asked.set(asked.get() + 1);
                    true
                };
                let planned = arena.plan_pin_making_way(block.id, &Costs::COPY, u64::MAX, &movable);
                commit_all(planned.expect("a tenth is free"));
                most = most.max(asked.get());
            }
            aside += usize::from(!arena.stands_amid(block.id));
            assert_eq!(arena.pin(block.id), Ok(()));
        }
        assert!(most > 0 && most <= around::MOST_SPANS, "{count}: {most}");
        assert!(aside * 20 >= PINS * 19, "{count}: {aside}");
    }
}
