//! Compactions, pins and scratch step by step: who is kept out meanwhile, who is woken, what is counted and remembered.

use std::{sync::mpsc, thread};

use crate::memory::{
    Strategy as Kind,
    compaction::Remap,
    history::{Event, EventKind, Past},
    tests::*,
};

fn all(_: BlockId) -> bool {
    true
}

/// Commits all moves.
fn carry_out(compaction: &mut Compaction<'_>) {
    (0..compaction.moves().len()).for_each(|_| assert_eq!(compaction.commit(), Ok(())));
}

/// Blocks of 1 MiB that fill an arena.
fn filled(kind: Kind, mib: u64) -> (Arena, FakeBacking, Vec<Block>) {
    let (arena, device) = arena(kind, Bytes::mib(mib));
    let blocks = (0..mib).map(|_| take(&arena, Bytes::mib(1))).collect();
    (arena, device, blocks)
}

fn free_all<'a>(arena: &Arena, blocks: impl IntoIterator<Item = &'a Block>) {
    blocks.into_iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
}

#[test]
fn one_compaction_at_a_time() {
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    free_all(&arena, [&blocks[1], &blocks[3]]);
    let costs = Costs::COPY;
    let refused = |arena: &Arena| {
        let planned = arena.plan(Goal::Pack, &costs, &all).err();
        let pin = arena.plan_pin(blocks[0].id).err();
        let making_way = arena.plan_pin_making_way(blocks[0].id, &costs, u64::MAX, &all).err();
        [planned, pin, making_way].map(|why| why == Some(Obstacle::UnderWay))
    };
    let compaction = arena.plan(Goal::Hole(Bytes::mib(2)), &costs, &all).expect("two are free");
    assert_eq!(refused(&arena), [true; 3]);
    drop(compaction);
    let pin = arena.plan_pin(blocks[0].id).expect("there is a hole above");
    assert_eq!(refused(&arena), [true; 3]);
    drop(pin);
    let pin = arena.plan_pin_making_way(blocks[0].id, &costs, u64::MAX, &all).expect("others make way");
    assert_eq!(refused(&arena), [true; 3]);
    drop(pin);
    // Whoever finds no plan is not under way either.
    let nothing = arena.plan(Goal::Hole(Bytes::mib(3)), &costs, &all).err();
    assert_eq!(nothing, Some(Obstacle::TooLittle { free: Bytes::mib(2) }));
    let none = |_: BlockId| false;
    let nothing = arena.plan(Goal::Hole(Bytes::mib(2)), &costs, &none).err();
    assert_eq!(nothing, Some(Obstacle::Barriers { free: Bytes::mib(2) }));
    assert!(arena.plan(Goal::Hole(Bytes::mib(2)), &costs, &all).is_ok());
}

/// A wait that nobody ends would go on to the deadline.
#[test]
fn the_end_of_a_compaction_wakes_who_waits_for_it() {
    for finishes in [false, true] {
        let (arena, _, blocks) = filled(Kind::Preallocate, 4);
        free_all(&arena, [&blocks[0], &blocks[2]]);
        let start = Instant::now();
        arena.wait_for_compaction(start + LONG);
        let compaction = arena.plan(Goal::Hole(Bytes::mib(2)), &Costs::COPY, &all).expect("two are free");
        let early = Instant::now() + Duration::from_millis(5);
        arena.wait_for_compaction(early);
        assert!(Instant::now() >= early, "it is still under way");
        let (send, receive) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                arena.wait_for_compaction(start + LONG);
                send.send(()).expect("the receiver waits");
            });
            while arena.waiters() == 0 {
                thread::yield_now();
            }
            assert!(receive.try_recv().is_err());
            if finishes {
                let mut compaction = compaction;
                carry_out(&mut compaction);
                assert!(compaction.allocate(Bytes::mib(2)).is_ok());
            } else {
                drop(compaction);
            }
            assert!(receive.recv_timeout(LONG / 2).is_ok(), "woken, and not at the deadline");
        });
        assert_eq!(arena.waiters(), 0);
        assert!(start.elapsed() < LONG / 2);
    }
}

#[test]
fn moves_are_counted_by_why_they_were_made() {
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    free_all(&arena, [&blocks[1], &blocks[3], &blocks[5]]);
    let counted = || {
        let stats = assert_sums(&arena);
        (stats.compactions, stats.moves, stats.moved_bytes, stats.migrations)
    };
    let mut compaction = arena.plan(Goal::Pack, &Costs::COPY, &all).expect("it can be packed");
    assert_eq!(compaction.moves().len(), 4);
    assert_eq!(compaction.commit(), Ok(()));
    assert_eq!(counted(), (1, 1, Bytes::mib(1), 0));
    carry_out_rest(&mut compaction, 1);
    assert!(compaction.commit().is_err(), "there is none left");
    drop(compaction);
    assert_eq!(counted(), (1, 4, Bytes::mib(4), 0));
    assert!(arena.stats().longest_plan > Duration::ZERO);
    // One that moves nothing is none.
    drop(arena.plan(Goal::Pack, &Costs::COPY, &all).expect("it is packed"));
    assert_eq!(counted(), (1, 4, Bytes::mib(4), 0));
    // A block that is about to be pinned moves aside; that is no compaction.
    let mut aside = arena.plan_pin(blocks[0].id).expect("the upper end is free");
    carry_out(&mut aside);
    drop(aside);
    assert_eq!(counted(), (1, 5, Bytes::mib(5), 1));
}

fn carry_out_rest(compaction: &mut Compaction<'_>, done: usize) {
    (done..compaction.moves().len()).for_each(|_| assert_eq!(compaction.commit(), Ok(())));
}

#[test]
fn holes_that_a_plan_does_not_need_are_for_everybody() {
    // | 0 | . | 2 | . | . | 5 | 6 | . |: for a hole of two, `2` or nothing has to move; for one of three, `2` moves down.
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    free_all(&arena, [1, 3, 4, 7].map(|number: usize| &blocks[number]));
    let mut compaction = arena.plan(Goal::Hole(Bytes::mib(3)), &Costs::COPY, &all).expect("four are free");
    assert_eq!(compaction.moves().len(), 1, "{:?}", compaction.moves());
    assert_eq!((compaction.moves()[0].block, compaction.moves()[0].to), (blocks[2].id, blocks[1].address));
    // The last one is out of the plan's way.
    let other = take(&arena, Bytes::mib(1));
    assert_eq!(other.address, blocks[7].address);
    assert!(arena.allocate(Bytes::new(256)).is_err(), "all else is kept for the plan");
    carry_out(&mut compaction);
    let hole = compaction.allocate(Bytes::mib(3)).unwrap_or_else(|oom| panic!("{oom}"));
    assert_eq!(hole.address, blocks[2].address);
    // Nor is a hole needed that ends where a block is to go.
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    free_all(&arena, [0, 2, 7].map(|number: usize| &blocks[number]));
    assert_eq!(arena.pin(blocks[1].id), Ok(()));
    let movable = |id: BlockId| id == blocks[6].id;
    let compaction = arena.plan(Goal::Hole(Bytes::mib(2)), &Costs::COPY, &movable).expect("`6` goes below");
    assert_eq!(compaction.moves()[0].to, blocks[0].address, "{:?}", compaction.moves());
    assert_eq!(take(&arena, Bytes::mib(1)).address, blocks[2].address);
    drop(compaction);
    assert_eq!(arena.stats().largest_free_block, Bytes::mib(1));
}

#[test]
fn a_region_that_a_compaction_emptied_goes_back_at_its_end() {
    for finishes in [false, true] {
        let (arena, device) = arena(Kind::Growing, Bytes::mib(64));
        let blocks: Vec<Block> = (0..16).map(|_| take(&arena, Bytes::mib(1))).collect();
        // The regions have 2, 2, 4 and 8 MiB. One block of the largest stays, and finds room in the others.
        assert_eq!(arena.regions().len(), 4);
        free_all(&arena, blocks[9..].iter().chain([&blocks[1], &blocks[3]]));
        let before = assert_sums(&arena).pool_bytes;
        let mut compaction = arena.plan(Goal::Pack, &Costs::COPY, &all).expect("it can be packed");
        carry_out(&mut compaction);
        assert_eq!(device.regions().len(), 4, "what was opened is not taken yet");
        if finishes {
            assert!(compaction.allocate(Bytes::kib(64)).is_ok());
        } else {
            drop(compaction);
        }
        assert_eq!(before - assert_sums(&arena).pool_bytes, Bytes::mib(8));
        assert_eq!((device.regions().len(), device.violations()), (3, 0));
    }
}

#[test]
fn a_block_about_to_be_pinned_goes_where_it_divides_nothing() {
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    let amid = |number: usize| arena.stands_amid(blocks[number].id);
    assert!(amid(0) && amid(3) && !amid(7), "only the last one lies at the end");
    free_all(&arena, [4, 6].map(|number: usize| &blocks[number]));
    let mut aside = arena.plan_pin(blocks[2].id).expect("there are holes above");
    let moved = Move { block: blocks[2].id, from: blocks[2].address, to: blocks[6].address, size: Bytes::mib(1) };
    assert_eq!(aside.moves(), [moved]);
    carry_out(&mut aside);
    drop(aside);
    assert!(arena.blocks().iter().any(|info| info.block == Block { address: blocks[6].address, ..blocks[2] }));
    assert_eq!(arena.pin(blocks[7].id), Ok(()));
    assert!(!amid(2), "its neighbour is pinned");
    assert_eq!(arena.plan_pin(blocks[2].id).err(), Some(Obstacle::Nothing));
    assert_eq!(arena.plan_pin(blocks[7].id).err(), Some(Obstacle::Nothing), "it is pinned already");
    assert!(!amid(7));
    // In a pool of many regions the best place may be in another one, which could then never go back.
    let growing = self::arena(Kind::Growing, Bytes::mib(64)).0;
    let block = take(&growing, Bytes::mib(1));
    assert!(!growing.stands_amid(block.id));
    assert_eq!(growing.plan_pin_making_way(block.id, &Costs::COPY, u64::MAX, &all).err(), Some(Obstacle::Nothing));
}

#[test]
fn others_make_way_for_a_pin_if_they_may_and_it_is_worth_it() {
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    free_all(&arena, [&blocks[0]]);
    let costs = Costs { per_move: 10, per_mib: 5, remap: None::<Remap> };
    let plan = |most, movable: &dyn Fn(BlockId) -> bool| {
        let planned = arena.plan_pin_making_way(blocks[3].id, &costs, most, movable);
        planned.map(|compaction| compaction.moves().iter().map(|step| (step.block, step.to)).collect::<Vec<_>>())
    };
    // The last one goes to the hole, and `3` to its place: two moves of 1 MiB.
    let expected = vec![(blocks[7].id, blocks[0].address), (blocks[3].id, blocks[7].address)];
    assert_eq!(plan(30, &all).as_ref(), Ok(&expected));
    assert_eq!(plan(29, &all), Err(Obstacle::Nothing), "it costs 30");
    // The block itself is asked for by nobody else: who may move is said of the others.
    let others = |id: BlockId| id != blocks[3].id;
    assert_eq!(plan(30, &others).as_ref(), Ok(&expected));
    let mut compaction = arena.plan_pin_making_way(blocks[3].id, &costs, 30, &others).expect("as before");
    carry_out(&mut compaction);
    drop(compaction);
    assert!(!arena.stands_amid(blocks[3].id));
    let none = |_: BlockId| false;
    assert!(arena.plan_pin_making_way(blocks[4].id, &costs, u64::MAX, &none).is_err());
}

#[test]
fn pinned_blocks_are_counted_one_by_one() {
    let (arena, _, blocks) = filled(Kind::Preallocate, 4);
    let pinned = || {
        let stats = assert_sums(&arena);
        (stats.pinned_blocks, stats.pinned_bytes, stats.peak_pinned_bytes)
    };
    blocks[..3].iter().for_each(|block| assert_eq!(arena.pin(block.id), Ok(())));
    assert_eq!(arena.pin(blocks[0].id), Ok(()));
    assert_eq!(pinned(), (3, Bytes::mib(3), Bytes::mib(3)), "twice is once");
    assert_eq!(arena.unpin(blocks[0].id), Ok(()));
    assert_eq!(pinned(), (2, Bytes::mib(2), Bytes::mib(3)));
    assert_eq!(arena.unpin(blocks[0].id), Ok(()));
    assert_eq!(arena.retire(blocks[1].id), Ok(()));
    assert_eq!(pinned(), (1, Bytes::mib(1), Bytes::mib(3)), "who lets go of a block holds no address");
    assert_eq!(arena.free(blocks[2].id), Ok(()));
    assert_eq!(pinned(), (0, Bytes::ZERO, Bytes::mib(3)));
    arena.clear_peaks();
    assert_eq!(pinned(), (0, Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn scratch_takes_the_low_end_and_gives_up_what_no_program_needs() {
    let (arena, _device) = arena(Kind::Tpu, Bytes::mib(64));
    let reserved = || {
        let stats = arena.stats();
        (stats.reserved_bytes.get() >> 20, stats.peak_reserved_bytes.get() >> 20, stats.reserved_total.get() >> 20)
    };
    assert_eq!(arena.scratch(), None);
    assert_eq!(arena.begin_scratch(Bytes::mib(8)), Ok(()));
    let bottom = arena.scratch().expect("it is kept");
    assert_eq!((bottom.address, bottom.bytes), (arena.regions()[0].address, Bytes::mib(8)));
    assert_eq!(arena.begin_scratch(Bytes::mib(3)), Ok(()));
    assert_eq!(arena.begin_scratch(Bytes::mib(20)), Ok(()));
    assert_eq!(reserved(), (20, 20, 20), "they share it");
    let (first, rest) = (take(&arena, Bytes::mib(40)), Bytes::mib(4));
    assert_eq!(first.address, bottom.address + Bytes::mib(20));
    // Nobody gives way while the largest is under way; then all but what the others need is to be had.
    assert!(arena.allocate(rest + Bytes::new(256)).is_err());
    arena.end_scratch(Bytes::mib(20));
    assert_eq!(reserved().0, 20, "the next step wants it again");
    let low = take(&arena, rest + Bytes::new(256));
    assert_eq!((low.address, reserved()), (bottom.address + Bytes::mib(8), (8, 20, 20)));
    // Up again, as far as the block allows: what it rises by is what is added.
    assert!(arena.begin_scratch(Bytes::mib(9)).is_err());
    assert_eq!(arena.free(low.id), Ok(()));
    assert_eq!(arena.begin_scratch(Bytes::mib(10)), Ok(()));
    assert_eq!(reserved(), (10, 20, 22));
    arena.clear_peaks();
    assert_eq!(reserved(), (10, 10, 22));
    [8, 3, 10].iter().for_each(|&mib| arena.end_scratch(Bytes::mib(mib)));
    assert_eq!(arena.free(first.id), Ok(()));
    let whole = take(&arena, Bytes::mib(64));
    assert_eq!((whole.address, arena.scratch()), (bottom.address, None));
}

#[test]
fn the_bottom_is_cleared_above_what_scratch_has_already() {
    let (arena, _device) = arena(Kind::Tpu, Bytes::mib(16));
    assert_eq!(arena.begin_scratch(Bytes::mib(4)), Ok(()));
    let blocks: Vec<Block> = (0..10).map(|_| take(&arena, Bytes::mib(1))).collect();
    free_all(&arena, [&blocks[5]]);
    // Three are free, and scratch of seven needs three more than it has.
    let size = Bytes::mib(7);
    assert!(arena.begin_scratch(size).is_err(), "blocks are in the way");
    let mut compaction = arena.plan(Goal::Bottom(size), &Costs::COPY, &all).expect("there is room for three");
    assert!(compaction.moves().iter().all(|step| step.to >= arena.regions()[0].address + size));
    carry_out(&mut compaction);
    assert_eq!(compaction.begin_scratch(size), Ok(()));
    assert_eq!(arena.stats().reserved_bytes, size);
    let more = arena.plan(Goal::Bottom(size + Bytes::new(256)), &Costs::COPY, &all).err();
    assert_eq!(more, Some(Obstacle::TooLittle { free: Bytes::ZERO }));
}

#[test]
fn scratch_lies_elsewhere_while_a_block_at_the_low_end_is_pinned() {
    let (arena, _device) = arena(Kind::Tpu, Bytes::mib(16));
    let mib = Bytes::mib;
    let (low, above) = (take(&arena, mib(2)), take(&arena, mib(3)));
    assert!(!arena.is_bottom_pinned(mib(16)));
    assert_eq!(arena.pin(low.id), Ok(()));
    assert!(arena.is_bottom_pinned(mib(1)) && arena.begin_scratch(mib(4)).is_err());
    let blocked = arena.plan(Goal::Bottom(mib(4)), &Costs::COPY, &all).err();
    assert_eq!(blocked, Some(Obstacle::Barriers { free: mib(11) }));
    assert_eq!(arena.begin_scratch_anywhere(mib(12)).map_err(|numbers| numbers.free), Err(mib(11)));
    assert_eq!(arena.begin_scratch_anywhere(mib(4)), Ok(()));
    let kept = arena.scratch().expect("it is kept");
    assert_eq!((kept.address, kept.bytes), (above.address + mib(3), mib(4)));
    assert_eq!(arena.begin_scratch(mib(3)), Ok(()), "they share it");
    // Its own upper end is cleared for more.
    let next = take(&arena, mib(1));
    assert!(arena.begin_scratch(mib(6)).is_err(), "a block is in the way");
    let mut compaction = arena.plan(Goal::Bottom(mib(6)), &Costs::COPY, &all).expect("it may move");
    assert_eq!(compaction.moves().iter().map(|step| step.block).collect::<Vec<_>>(), [next.id]);
    carry_out(&mut compaction);
    assert_eq!(compaction.begin_scratch(mib(6)), Ok(()));
    assert_eq!(arena.scratch().map(|kept| (kept.address, kept.bytes)), Some((above.address + mib(3), mib(6))));
    // Another hole takes its place where there is none above it; the old one is free.
    free_all(&arena, [&next, &above]);
    let top = take(&arena, mib(5));
    assert_eq!(arena.free(low.id), Ok(()));
    assert!(arena.begin_scratch_anywhere(mib(7)).is_err());
    assert_eq!(arena.stats().reserved_bytes, mib(6), "a failure leaves it as it was");
    // With the last program it goes to whoever needs the room, and the next is at the low end.
    [4, 3, 6].iter().for_each(|&mib| arena.end_scratch(Bytes::mib(mib)));
    assert_eq!(arena.free(top.id), Ok(()));
    let whole = take(&arena, mib(16));
    assert_eq!(arena.scratch(), None);
    assert_eq!(arena.free(whole.id), Ok(()));
    assert_eq!(arena.begin_scratch(mib(5)), Ok(()));
    assert_eq!(arena.scratch().map(|kept| kept.address), Some(whole.address));
}

#[test]
fn nothing_is_moved_for_little_scratch() {
    let (arena, _device) = arena(Kind::Tpu, Bytes::mib(16));
    let kib = Bytes::kib;
    let pool = arena.regions()[0];
    let kept = || arena.scratch().map(|kept| (kept.address, kept.bytes));
    let low = take(&arena, Bytes::mib(2));
    assert!(arena.begin_scratch(kib(17)).is_err(), "more than a thousandth of the pool");
    assert_eq!(arena.begin_scratch(kib(16)), Ok(()));
    assert_eq!(kept(), Some((pool.address + kib(16368), kib(16))), "at the high end");
    // For more the low end is cleared, and the high one is free again.
    assert!(arena.begin_scratch(Bytes::mib(1)).is_err());
    let mut compaction = arena.plan(Goal::Bottom(Bytes::mib(1)), &Costs::COPY, &all).expect("it may move");
    carry_out(&mut compaction);
    assert_eq!(compaction.begin_scratch(Bytes::mib(1)), Ok(()));
    assert_eq!(kept(), Some((pool.address, Bytes::mib(1))));
    free_all(&arena, [&low]);
    [kib(16), Bytes::mib(1)].iter().for_each(|&bytes| arena.end_scratch(bytes));
    // Where the low end is free, little scratch lies there, too.
    free_all(&arena, [&take(&arena, Bytes::mib(16))]);
    assert_eq!((arena.begin_scratch(Bytes::new(256)), kept()), (Ok(()), Some((pool.address, Bytes::new(256)))));
}

/// Blocks in slots become ordinary ones where nothing else makes room, and take less then.
#[test]
fn small_blocks_leave_their_slots_for_a_hole_and_the_history_knows() {
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    arena.record_history(1000);
    // A slot of 4 KiB for 2,100 bytes, which take nine granules.
    let small: Vec<Block> = (0..5).map(|_| take(&arena, Bytes::new(2100))).collect();
    let free = assert_sums(&arena).free_bytes;
    let past = |arena: &Arena| {
        let survey = arena.survey();
        (Past::now(&survey.blocks, &survey.regions, Bytes::ZERO), survey.events.list)
    };
    let (before, events) = past(&arena);
    assert!(arena.allocate(free).is_err(), "slots are in the way");
    // More than is free counts what slots take beyond it.
    let slack = Bytes::new(5 * (4096 - 9 * 256));
    let most = free + slack;
    let too_much = arena.plan(Goal::Hole(most + Bytes::new(256)), &Costs::COPY, &all).err();
    assert_eq!(too_much, Some(Obstacle::TooLittle { free }));
    assert_eq!(arena.stats().free_bytes, free, "nothing was given up for it");
    let mut compaction = arena.plan(Goal::Hole(most), &Costs::COPY, &all).expect("there is room for it");
    carry_out(&mut compaction);
    let whole = compaction.allocate(most).unwrap_or_else(|oom| panic!("{oom}"));
    let stats = assert_sums(&arena);
    assert_eq!((stats.free_bytes, stats.slack_bytes), (Bytes::ZERO, Bytes::new(5 * (9 * 256 - 2100))));
    // Undone, the history shows them in their slots.
    let (mut now, all_events) = past(&arena);
    all_events[events.len()..].iter().rev().for_each(|event| now.undo(event));
    assert_eq!((now.in_use(), now.blocks), (before.in_use(), before.blocks));
    free_all(&arena, small.iter().chain([&whole]));
    assert_eq!(assert_sums(&arena).free_bytes, Bytes::mib(80));
}

#[test]
fn a_compaction_is_one_event_with_its_numbers() {
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(8));
    arena.record_history(1000);
    let blocks: Vec<Block> = (0..8).map(|_| take(&arena, Bytes::mib(1))).collect();
    free_all(&arena, [1, 3, 5].map(|number: usize| &blocks[number]));
    let ended = || -> Vec<Event> {
        let events = arena.survey().events.list;
        events.into_iter().filter(|event| event.kind() == EventKind::Compaction).collect()
    };
    drop(arena.plan(Goal::Pack, &Costs::COPY, &all).expect("it can be packed"));
    assert_eq!(ended(), [], "nothing was moved");
    let mut aside = arena.plan_pin(blocks[0].id).expect("there are holes above");
    carry_out(&mut aside);
    drop(aside);
    assert_eq!(ended(), [], "a pin is no compaction");
    // Two moves on their own, and then the rest with an allocation at the end.
    let mut compaction = arena.plan(Goal::Pack, &Costs::COPY, &all).expect("it can be packed");
    let moves = compaction.moves().len();
    assert!(moves > 2);
    (0..2).for_each(|_| assert_eq!(compaction.commit(), Ok(())));
    drop(compaction);
    assert_eq!(ended().iter().map(|event| (event.block, event.bytes)).collect::<Vec<_>>(), [(2, Bytes::mib(2))]);
    let mut compaction = arena.plan(Goal::Pack, &Costs::COPY, &all).expect("it can be packed");
    assert_eq!(compaction.moves().len(), moves - 2);
    carry_out(&mut compaction);
    assert!(compaction.allocate(Bytes::mib(2)).is_ok());
    let events = ended();
    assert_eq!(events.len(), 2, "one for each");
    assert_eq!((events[1].block, events[1].bytes), (moves as u64 - 2, Bytes::mib(moves as u64 - 2)));
    assert_eq!(events[1].other, Bytes::mib(3).get(), "the hole as it was before anybody took of it");
}

#[test]
fn who_makes_way_for_a_pin_is_no_migration() {
    let (arena, _, blocks) = filled(Kind::Preallocate, 8);
    free_all(&arena, [&blocks[0]]);
    let planned = arena.plan_pin_making_way(blocks[3].id, &Costs::COPY, u64::MAX, &all);
    let mut compaction = planned.expect("the last one makes way");
    assert_eq!(compaction.moves().len(), 2);
    carry_out(&mut compaction);
    drop(compaction);
    let stats = arena.stats();
    assert_eq!((stats.moves, stats.migrations), (2, 1), "one of the two is to be pinned");
}

#[test]
fn peaks_count_the_scratch_of_a_launch_and_go_down_again() {
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    arena.record_history(100);
    let held = take(&arena, Bytes::mib(2));
    let (outer, inner) = (arena.open_scope(), arena.open_scope());
    assert_eq!(arena.begin_scratch_anywhere(Bytes::mib(30)), Ok(()));
    let result = take(&arena, Bytes::mib(4));
    assert_eq!(arena.stats().peak_bytes_in_use, Bytes::mib(6), "no program has been launched yet");
    arena.note_launch(Bytes::mib(30), Execution { step: 7, ..Execution::default() });
    assert_eq!((arena.stats().peak_bytes_in_use, arena.stats().bytes_in_use), (Bytes::mib(36), Bytes::mib(6)));
    let inner = arena.end_scope(inner).expect("it is open");
    assert_eq!((inner.start, inner.peak, inner.scratch), (Bytes::mib(2), Bytes::mib(36), Bytes::mib(30)));
    assert_eq!((inner.end, inner.after_peak, inner.peak_run), (Bytes::mib(6), Some(vec![]), 7));

    // A smaller program is no peak; a block that is alone more than both is one without scratch.
    arena.end_scratch(Bytes::mib(30));
    arena.note_launch(Bytes::mib(8), Execution::default());
    assert_eq!(arena.free(result.id), Ok(()));
    assert_eq!(arena.stats().peak_bytes_in_use, Bytes::mib(36));
    let large = take(&arena, Bytes::mib(45));
    let outer = arena.end_scope(outer).expect("it is open");
    assert_eq!((outer.peak, outer.scratch, outer.peak_run), (Bytes::mib(47), Bytes::ZERO, 0), "no program made it");
    assert_eq!(arena.free(large.id), Ok(()));

    // What a program under way needs stays; the rest goes with the peaks.
    assert_eq!(arena.begin_scratch_anywhere(Bytes::mib(40)), Ok(()));
    assert_eq!(arena.begin_scratch_anywhere(Bytes::mib(10)), Ok(()));
    arena.end_scratch(Bytes::mib(40));
    assert_eq!(arena.stats().reserved_bytes, Bytes::mib(40));
    arena.clear_peaks();
    let stats = arena.stats();
    assert_eq!((stats.reserved_bytes, stats.peak_reserved_bytes), (Bytes::mib(10), Bytes::mib(10)));
    assert_eq!((stats.peak_bytes_in_use, stats.bytes_in_use), (Bytes::mib(2), Bytes::mib(2)));
    arena.end_scratch(Bytes::mib(10));
    arena.clear_peaks();
    assert_eq!((arena.stats().reserved_bytes, arena.scratch()), (Bytes::ZERO, None));
    assert_eq!(arena.free(held.id), Ok(()));
}
