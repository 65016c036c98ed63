//! What is computed about the future, done in earnest: sizes that were said to fit, limits that were said to be enough.

use proptest::{
    prelude::{Strategy as Generator, any, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest},
    sample::Index,
    test_runner::Config as ProptestConfig,
};

use crate::memory::{Strategy as Kind, tests::*};

#[derive(Clone, Debug)]
enum Step {
    Take(Bytes),
    Free(Index),
    Retire(Index),
}

/// Small blocks, arrays that get a colour, and large ones.
fn size() -> impl Generator<Value = Bytes> {
    prop_oneof![
        2 => (0..5000u64).prop_map(Bytes::new),
        3 => (0..8u64 << 20).prop_map(Bytes::new),
        3 => (1..24u64).prop_map(Bytes::mib),
    ]
}

fn step(retires: bool) -> impl Generator<Value = Step> {
    prop_oneof![
        6 => size().prop_map(Step::Take),
        3 => any::<Index>().prop_map(Step::Free),
        if retires { 2 } else { 0 } => any::<Index>().prop_map(Step::Retire),
    ]
}

fn sizes() -> impl Generator<Value = Vec<Bytes>> {
    proptest::collection::vec(size(), 1..6)
}

/// An arena after `steps`; whether each found room.
fn replay(kind: Kind, limit: Bytes, steps: &[Step]) -> (Arena, bool) {
    let (mut arena, _device) = arena(kind, limit);
    arena.use_colours();
    arena.record_history(10_000);
    let (mut blocks, mut all_found) = (Vec::new(), true);
    for step in steps {
        match step {
            Step::Take(size) => match arena.allocate(*size) {
                Ok(block) => blocks.push(block.id),
                Err(_) => all_found = false,
            },
            Step::Free(at) | Step::Retire(at) if !blocks.is_empty() => {
                let id = blocks.swap_remove(at.index(blocks.len()));
                let done = if let Step::Free(_) = step { arena.free(id) } else { arena.retire(id) };
                assert_eq!(done, Ok(()));
            }
            Step::Free(_) | Step::Retire(_) => {}
        }
    }
    (arena, all_found)
}

/// As a launch: what it has it gives back once, and tries again.
fn allocate_all(arena: &Arena, sizes: &[Bytes]) -> bool {
    let mut taken = Vec::new();
    let mut attempt = || {
        taken.clear();
        taken.extend(sizes.iter().map_while(|&size| arena.allocate(size).ok()));
        taken.len() == sizes.len() || {
            taken.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
            false
        }
    };
    attempt() || attempt()
}

fn kind() -> impl Generator<Value = Kind> {
    proptest::sample::select(&ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_global_rejects: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_to_fit_once_retired_blocks_are_freed_does(
        kind in kind(),
        limit in 16..300u64,
        steps in proptest::collection::vec(step(true), 0..60),
        arrays in sizes(),
    ) {
        let (arena, _) = replay(kind, Bytes::mib(limit), &steps);
        let needs = Needs { arrays: arrays.clone(), ..Needs::default() };
        let (said, before) = (arena.would_fit(&needs, &|_| false, None), arena.stats());
        prop_assert_eq!(arena.stats(), before, "nothing changes");
        let retired = arena.blocks().into_iter().filter(|info| info.state == BlockState::Retired);
        retired.for_each(|info| assert_eq!(arena.free(info.block.id), Ok(())));
        prop_assert_eq!(allocate_all(&arena, &arrays), said, "{:?}", arrays);
    }

    #[test]
    fn a_least_limit_is_enough_and_a_mib_less_is_not(
        kind in kind(),
        more in 1..12u64,
        steps in proptest::collection::vec(step(false), 0..60),
        arrays in proptest::collection::vec((8..32u64).prop_map(Bytes::mib), 1..4),
    ) {
        // A limit that the steps find room under, mostly, and not much more.
        let peak = replay(kind, Bytes::gib(1), &steps).0.stats().peak_bytes_in_use;
        let limit = (peak + Bytes::mib(more)).round_down(Bytes::mib(1));
        let (arena, all_found) = replay(kind, limit, &steps);
        let needs = Needs { arrays: arrays.clone(), ..Needs::default() };
        // Where a step failed, more of them go well under a higher limit.
        prop_assume!(all_found && !arena.would_fit(&needs, &|_| false, None));
        let least = arena.least_limit((&needs, Execution::default()), Bytes::gib(1), (&Costs::COPY, None));
        let enough = least.expect("a GiB is enough");
        prop_assert!(enough > limit);
        let works = |limit| {
            let (arena, all_found) = replay(kind, limit, &steps);
            all_found && allocate_all(&arena, &arrays)
        };
        prop_assert!(works(enough), "{} for {:?}", enough, arrays);
        // Best fit is not monotone: a limit that is lower still may do.
        let less = enough - Bytes::mib(1);
        prop_assert!(less <= limit || !works(less), "{} of {} for {:?}", less, enough, arrays);
    }
}

#[test]
fn a_limit_is_not_advised_where_the_region_is_smaller_than_the_limit() {
    let small = FakeBacking::new(Bytes::mib(100), PAGE);
    let arena = Arena::new("fake:0".into(), Kind::Preallocate, Bytes::mib(160), Box::new(small)).expect("an arena");
    take(&arena, Bytes::mib(60));
    let stats = arena.stats();
    assert!(stats.limit == stats.pool_bytes && stats.limit < Bytes::mib(100), "{stats:?}");
    let oom = arena.allocate(Bytes::mib(60)).expect_err("less is free");
    assert!(!oom.to_string().contains("in one piece"), "{oom}");
    assert_eq!(
        arena.least_limit((&Needs::of(Bytes::mib(60)), Execution::default()), Bytes::gib(1), (&Costs::COPY, None)),
        None
    );
}

#[test]
fn a_limit_counts_what_moves_and_what_is_kept_for_scratch() {
    let (arena, _device) = arena(Kind::Tpu, Bytes::mib(16));
    assert_eq!(arena.begin_scratch(Bytes::mib(2)), Ok(()));
    let blocks = [(); 14].map(|()| take(&arena, Bytes::mib(1)));
    blocks.iter().step_by(2).for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    arena.end_scratch(Bytes::mib(2));
    let needs = |scratch, arrays: &[u64]| Needs {
        scratch: Bytes::mib(scratch),
        arrays: arrays.iter().map(|&mib| Bytes::mib(mib)).collect(),
        ..Needs::default()
    };
    let open = |needs: &Needs| arena.would_come((needs, None), &Costs::COPY, &|_| true);
    // Nine are free: two that were scratch at the bottom and seven holes of one.
    assert!(open(&needs(0, &[9])).is_some_and(|moved| moved >= Bytes::mib(1)) && open(&needs(0, &[10])).is_none());
    assert!(open(&needs(3, &[4, 2])).is_some() && open(&needs(3, &[4, 3])).is_none());
    let all: &dyn Fn(BlockId) -> bool = &|_| true;
    let least = |needs: &Needs, movable| {
        arena.least_limit((needs, Execution::default()), Bytes::mib(64), (&Costs::COPY, movable))
    };
    assert_eq!(least(&needs(3, &[4, 3]), Some(all)), Some(Bytes::mib(17)));
    // Nothing moves, and the history does not know how blocks came to lie where they do.
    assert_eq!(least(&needs(0, &[10]), None), Some(Bytes::mib(27)));
    assert_eq!(least(&needs(0, &[80]), Some(all)), None, "more than there is");
}

#[test]
fn scratch_goes_where_nothing_has_to_move_for_it_if_what_moves_leaves_no_room() {
    // b b b b . . . . p . . .   a hole of 4 MiB is there as long as b, at the low end, does not move into it
    let (arena, _device) = arena(Kind::Tpu, Bytes::mib(12));
    let blocks = [4, 4, 1, 3].map(|mib| take(&arena, Bytes::mib(mib)));
    assert_eq!(arena.pin(blocks[2].id), Ok(()));
    [1, 3].into_iter().for_each(|at| assert_eq!(arena.free(blocks[at].id), Ok(())));
    let moved = |arrays: &[u64], scratch| {
        let arrays = arrays.iter().map(|&mib| Bytes::mib(mib)).collect();
        let needs = Needs { scratch: Bytes::mib(scratch), arrays, ..Needs::default() };
        arena.would_come((&needs, None), &Costs::COPY, &|id| id == blocks[0].id)
    };
    assert_eq!(moved(&[4], 2), Some(Bytes::ZERO));
    assert_eq!(moved(&[2], 2), Some(Bytes::mib(4)), "the low end is the place for scratch");
    assert_eq!(moved(&[4, 2], 2), None);
}

#[test]
fn moves_are_advised_only_if_they_make_room_from_the_beginning_on() {
    // a a p s . . . . . . . . . . . .   a and x go, s moves to where a was: 52 MiB are in one piece. Where blocks move,
    // a a s . . . . p x x x x x x x x   p lies at the upper end of the hole when its address was given away, and stays
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(64));
    arena.record_history(100);
    let [a, p, hole, x] = [8, 4, 20, 32].map(|mib| take(&arena, Bytes::mib(mib)).id);
    let [needs, less] = [52, 32].map(|mib| Needs::of(Bytes::mib(mib)));
    assert_eq!(arena.free(hole), Ok(()));
    assert_eq!(arena.pin(p), Ok(()));
    let s = take(&arena, Bytes::mib(4)).id;
    [x, a].into_iter().for_each(|id| assert_eq!(arena.free(id), Ok(())));
    let movable = |id| id == s;
    assert_eq!(arena.would_come((&needs, None), &Costs::COPY, &movable), Some(Bytes::mib(4)));
    let would_have = |needs| arena.would_have_come((needs, Execution::default()), &Costs::COPY, &movable);
    assert!(would_have(&less));
    assert!(!would_have(&needs));
}

#[test]
fn a_limit_counts_the_scratch_of_a_program_under_way_where_it_lies() {
    // p . S . . . . .   scratch lies above p, which stays at the low end, and divides what is free
    let (mut arena, _device) = arena(Kind::Tpu, Bytes::mib(8));
    arena.record_history(100);
    let [p, gone] = [1, 1].map(|mib| take(&arena, Bytes::mib(mib)).id);
    assert_eq!(arena.pin(p), Ok(()));
    let scratch = Bytes::mib(1);
    assert_eq!(arena.begin_scratch(scratch).map_err(drop), Err(()));
    assert!(arena.begin_scratch_anywhere(scratch).is_ok());
    // The launch's result.
    let result = take(&arena, Bytes::mib(1)).id;
    [gone, result].into_iter().for_each(|id| assert_eq!(arena.free(id), Ok(())));
    let needs = Needs::of(Bytes::mib(7));
    let least = || arena.least_limit((&needs, Execution::default()), Bytes::mib(64), (&Costs::COPY, None));
    let beside = least();
    arena.end_scratch(scratch);
    assert_eq!([beside, least()], [10, 9].map(|mib| Some(Bytes::mib(mib))));
}

#[test]
fn a_limit_does_not_count_where_the_scratch_of_the_failed_call_lay() {
    // r . . . . . . . p p p p p .   with one more, scratch and r lie above p, and the array below it
    let (mut arena, _device) = arena(Kind::Tpu, Bytes::mib(14));
    arena.record_history(100);
    let [r, gone, p] = [1, 7, 5].map(|mib| take(&arena, Bytes::mib(mib)).id);
    assert_eq!(arena.pin(p), Ok(()));
    assert_eq!(arena.free(gone), Ok(()));
    let scratch = Bytes::mib(1);
    let needs = Needs { scratch, arrays: vec![Bytes::mib(8)], ..Needs::default() };
    let movable: &dyn Fn(BlockId) -> bool = &|id| id == r;
    let least = || arena.least_limit((&needs, Execution::default()), Bytes::mib(64), (&Costs::COPY, Some(movable)));
    let before = least();
    for _ in 0..2 {
        assert!(arena.begin_scratch_at_last(scratch).is_ok());
        assert!(arena.allocate(Request::from(Bytes::mib(8))).is_err());
        arena.end_scratch(scratch);
    }
    assert_eq!([before, least()], [Some(Bytes::mib(15)); 2]);
}

#[test]
fn a_limit_counts_the_scratch_of_a_program_under_way_from_when_it_began() {
    // s s s s . a . . .   a program that began after a call that failed needs less than what is kept, and a lies above
    let least = |failed: &[u32]| {
        let (mut arena, _device) = arena(Kind::Tpu, Bytes::mib(16));
        arena.record_history(100);
        for &step in failed {
            assert!(arena.begin_scratch(Bytes::mib(8)).is_ok());
            let run = Execution { step, ..Execution::default() };
            let provenance = Provenance { run, ..Provenance::default() };
            let result = arena.allocate(Request { size: Bytes::mib(1), provenance }).expect("there is room").id;
            assert_eq!(arena.free(result), Ok(()));
            arena.end_scratch(Bytes::mib(8));
        }
        assert!(arena.begin_scratch(Bytes::mib(1)).is_ok());
        let [a, gone] = [1, 4].map(|mib| take(&arena, Bytes::mib(mib)).id);
        assert_eq!(arena.pin(a), Ok(()));
        assert_eq!(arena.free(gone), Ok(()));
        let run = Execution { step: 7, ..Execution::default() };
        arena.least_limit((&Needs::of(Bytes::mib(15)), run), Bytes::mib(64), (&Costs::COPY, None))
    };
    assert_eq!([least(&[]), least(&[7]), least(&[7, 7])], [Some(Bytes::mib(17)); 3]);
}

#[test]
fn an_exhaustion_is_of_one_instant() {
    let (arena, _device) = arena(Kind::Preallocate, Bytes::mib(4));
    let (one, two) = (take(&arena, Bytes::mib(1)), take(&arena, Bytes::new(4)));
    let Exhaustion { numbers, blocks } =
        arena.allocate_at_last(Request::from(Bytes::mib(4))).expect_err("less is free");
    let held: Bytes = blocks.iter().map(|info| info.block.size).sum();
    assert_eq!((held, numbers.in_use, blocks.len()), (one.size + two.size, one.size + two.size, 2));
    assert!(arena.allocate_at_last(Request::from(Bytes::mib(1))).is_ok());
    let refused = arena.exhaustion(Bytes::mib(1), Some(Box::new(Error::internal("none")))).numbers;
    assert!(refused.to_string().contains("refused more memory: none"), "{refused}");
}
