//! The history against what was seen at each step: undone from the end, it shows every earlier state that it reaches.

// Named, because the arena has a `Strategy` too.
use proptest::prelude::{Strategy, *};

use crate::memory::{
    Strategy as Kind,
    history::{Event, EventKind, Past, PastBlock, block_number},
    tests::*,
};

#[derive(Clone, Debug)]
enum Step {
    Allocate(Bytes),
    Retire(prop::sample::Index),
    Renew(prop::sample::Index),
    Free(prop::sample::Index),
    Pin(prop::sample::Index),
    Unpin(prop::sample::Index),
    Scratch(Bytes),
    Pack,
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        10 => (0..24u32, any::<u64>()).prop_map(|(shift, random)| Step::Allocate(Bytes::new(random >> 40 >> shift))),
        3 => index().prop_map(Step::Retire),
        2 => index().prop_map(Step::Renew),
        6 => index().prop_map(Step::Free),
        2 => index().prop_map(Step::Pin),
        1 => index().prop_map(Step::Unpin),
        1 => (0..Bytes::mib(1).get()).prop_map(|bytes| Step::Scratch(Bytes::new(bytes))),
        1 => Just(Step::Pack),
        1 => Just(Step::Trim),
    ]
}

/// What is compared: blocks by number, regions by address, scratch.
#[derive(Debug, PartialEq)]
struct Seen {
    blocks: Vec<(u64, PastBlock)>,
    regions: Vec<AddressRange>,
    scratch: Bytes,
}

impl Seen {
    fn of(past: &Past) -> Self {
        let mut regions = past.regions.clone();
        regions.sort_by_key(|region| region.address);
        Self {
            blocks: past.blocks.iter().map(|(&number, &block)| (number, block)).collect(),
            regions,
            scratch: past.scratch,
        }
    }

    fn now(arena: &Arena) -> Self {
        Self::of(&past(arena).0)
    }
}

fn past(arena: &Arena) -> (Past, Vec<Event>, u64) {
    let survey = arena.survey();
    let scratch = survey.scratch.map_or(Bytes::ZERO, |region| region.bytes);
    (Past::now(&survey.blocks, &survey.regions, scratch), survey.events.list, survey.events.lost)
}

fn provenance(number: u32) -> Provenance {
    Provenance { origin: OriginId::new(number), run: Execution { step: number + 1, at: Timestamp::UNKNOWN } }
}

fn run(kind: Kind, capacity: usize, steps: Vec<Step>) {
    let (mut arena, device) = arena(kind, Bytes::mib(80));
    arena.record_history(capacity);
    let (mut live, mut retired): (Vec<BlockId>, Vec<BlockId>) = Default::default();
    // The state after so many events.
    let mut seen: Vec<(u64, Seen)> = Vec::new();
    for (number, step) in (0..).zip(steps) {
        match step {
            Step::Allocate(size) => {
                let request = Request { size, provenance: provenance(number) };
                if let Ok(block) = arena.allocate(request) {
                    live.push(block.id);
                }
            }
            Step::Retire(index) if !live.is_empty() => {
                let id = live.swap_remove(index.index(live.len()));
                assert_eq!(arena.retire(id), Ok(()));
                retired.push(id);
            }
            Step::Renew(index) if !retired.is_empty() => {
                let id = retired.swap_remove(index.index(retired.len()));
                live.push(arena.reuse_in_place(id, provenance(number)).expect("it is retired"));
            }
            Step::Free(index) if !(live.is_empty() && retired.is_empty()) => {
                let at = index.index(live.len() + retired.len());
                let id = if at < live.len() { live.swap_remove(at) } else { retired.swap_remove(at - live.len()) };
                assert_eq!(arena.free(id), Ok(()));
            }
            Step::Pin(index) if !live.is_empty() => {
                assert_eq!(arena.pin_because(live[index.index(live.len())], PinReason(2)), Ok(()));
            }
            Step::Unpin(index) if !live.is_empty() => {
                assert_eq!(arena.unpin(live[index.index(live.len())]), Ok(()));
            }
            Step::Scratch(bytes) if arena.begin_scratch(bytes).is_ok() => arena.end_scratch(bytes),
            Step::Pack => {
                if let Ok(mut compaction) = arena.plan(Goal::Pack, &Costs::COPY, &|id| live.contains(&id)) {
                    for _ in 0..compaction.moves().len() {
                        assert_eq!(compaction.commit(), Ok(()));
                    }
                }
            }
            Step::Trim => drop(arena.trim()),
            _ => {}
        }
        let now = Seen::now(&arena);
        let (_, events, lost) = past(&arena);
        seen.push((lost + events.len() as u64, now));
    }
    let (mut past, events, lost) = past(&arena);
    let mut number = lost + events.len() as u64;
    assert_eq!(events.len() as u64 + lost, number);
    assert!(events.len() <= capacity);
    let mut compared = 0;
    while let Some((_, state)) = seen.pop_if(|(after, _)| *after >= lost) {
        let after = seen.last().map_or(lost, |(after, _)| *after).max(lost);
        assert_eq!(Seen::of(&past), state, "after {number} events");
        compared += 1;
        while number > after {
            number -= 1;
            past.undo(&events[(number - lost) as usize]);
        }
    }
    assert!(compared > 0 && device.violations() == 0);
    if lost == 0 {
        let start = Seen::of(&past);
        assert!(start.blocks.is_empty() && start.scratch.is_zero(), "{start:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn undone_events_show_every_earlier_state(
        kind in prop::sample::select(ALL.to_vec()),
        capacity in prop::sample::select(vec![1, 7, 10_000]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        run(kind, capacity, steps);
    }
}

#[test]
fn a_block_remembers_its_maker_and_takes_over_what_is_known_better() {
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    arena.record_history(100);
    let block = take(&arena, Request { size: Bytes::kib(8), provenance: provenance(3) });
    let info = arena.blocks()[0];
    assert_eq!((info.provenance.origin, info.provenance.run.step), (OriginId::new(3), 4));
    assert!(info.provenance.run.at.nanos().is_some(), "with a history it is known when");
    let later = Provenance { origin: OriginId::new(9), run: Execution { step: 70, at: Timestamp::from_nanos(5) } };
    assert_eq!(arena.free_as(block.id, Some(later)), Ok(()));
    let last = *arena.survey().events.list.last().expect("an event");
    assert_eq!((last.kind(), last.block), (EventKind::Free, block_number(block.id)));
    assert_eq!((last.origin, last.step, last.other), (OriginId::new(9), 70, 5));
}

#[test]
fn without_a_history_no_clock_is_read_and_makers_are_known_all_the_same() {
    let (arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    take(&arena, Request { size: Bytes::kib(8), provenance: provenance(3) });
    let survey = arena.survey();
    assert_eq!(survey.blocks[0].provenance, provenance(3));
    assert!(survey.events.list.is_empty() && survey.events.lost == 0);
}

#[test]
fn totals_grow_where_peaks_start_over() {
    let (arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    let first = take(&arena, Bytes::mib(3));
    assert_eq!((arena.pin(first.id), arena.unpin(first.id), arena.pin(first.id)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(arena.free(first.id), Ok(()));
    arena.clear_peaks();
    let second = take(&arena, Bytes::mib(2));
    assert_eq!(arena.retire(second.id), Ok(()));
    let stats = assert_sums(&arena);
    assert_eq!((stats.allocated_total, stats.freed_total), (Bytes::mib(5), Bytes::mib(3)));
    assert_eq!((stats.allocations_total, stats.frees_total, stats.num_allocs), (2, 1, 1));
    assert_eq!((stats.pinned_total, stats.peak_pinned_bytes), (Bytes::mib(6), Bytes::ZERO));
}

#[test]
fn scopes_overlap_and_each_knows_its_own_peak() {
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    arena.record_history(100);
    let base = take(&arena, Bytes::mib(1));
    let outer = arena.open_scope();
    let high = take(&arena, Request { size: Bytes::mib(9), provenance: provenance(1) });
    assert_eq!(arena.free(high.id), Ok(()));
    let inner = arena.open_scope();
    let low = take(&arena, Request { size: Bytes::mib(4), provenance: provenance(2) });
    assert_eq!(arena.free(low.id), Ok(()));
    assert_eq!(arena.free(base.id), Ok(()));
    let by_origin = |id| {
        let scoped = arena.end_scope(id).expect("it is open");
        let mut past = Past::now(&scoped.blocks, &[], Bytes::ZERO);
        scoped.after_peak.iter().flatten().rev().for_each(|event| past.undo(event));
        let mut held: Vec<_> = past.blocks.values().map(|b| (b.provenance.origin.row(), b.bytes.get() >> 20)).collect();
        held.sort();
        (scoped.start.get() >> 20, scoped.end.get() >> 20, scoped.peak.get() >> 20, scoped.peak_run, held)
    };
    assert_eq!(by_origin(outer), (1, 0, 10, 2, vec![(0, 1), (1, 9)]));
    assert_eq!(by_origin(inner), (1, 0, 5, 3, vec![(0, 1), (2, 4)]));
    assert!(arena.end_scope(inner).is_none());
}

#[test]
fn what_was_dropped_and_is_still_used_counts_in_a_peak_of_its_own() {
    let (arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    let seen = |id| {
        let scoped = arena.end_scope(id).expect("it is open");
        (scoped.peak.get() >> 20, scoped.peak_used.get() >> 20)
    };
    let outer = arena.open_scope();
    let dropped = take(&arena, Bytes::mib(8));
    assert_eq!(arena.retire(dropped.id), Ok(()));
    let inner = arena.open_scope();
    let next = take(&arena, Bytes::mib(4));
    // The rule of idle memory and the statistics look in between, and take nothing from the scopes.
    assert_eq!((arena.end_window(), arena.stats().peak_used_bytes), (Bytes::mib(12), Bytes::mib(12)));
    assert_eq!(arena.free(dropped.id), Ok(()));
    let after = arena.open_scope();
    assert_eq!([seen(inner), seen(after), seen(outer)], [(4, 12), (4, 4), (8, 12)]);
    assert_eq!((arena.end_window(), arena.stats().peak_bytes_in_use), (Bytes::mib(12), Bytes::mib(8)));
    arena.clear_peaks();
    assert_eq!((arena.end_window(), arena.stats().peak_used_bytes), (Bytes::mib(4), Bytes::mib(4)));
    assert_eq!(arena.free(next.id), Ok(()));
}

#[test]
fn a_scope_says_when_the_history_is_too_short_for_its_peak() {
    for capacity in [0, 3] {
        let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
        arena.record_history(capacity);
        let scope = arena.open_scope();
        for mib in [9, 1, 1] {
            let block = take(&arena, Bytes::mib(mib));
            assert_eq!(arena.free(block.id), Ok(()));
        }
        let scoped = arena.end_scope(scope).expect("it is open");
        assert_eq!((scoped.peak, scoped.after_peak.is_none()), (Bytes::mib(9), true), "{capacity}");
    }
}

#[test]
fn blocks_of_one_history_have_numbers_of_their_own() {
    let (arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    let mut numbers = std::collections::BTreeSet::new();
    let mut held: Vec<Block> = Vec::new();
    for round in 0..300usize {
        let block = take(&arena, Bytes::kib(8));
        let number = block_number(block.id);
        assert!(number < 1 << 53, "JSON's readers keep it exact");
        assert!(numbers.insert(number), "block {} has another one's number", block.id);
        held.push(block);
        // Entries of the table are used again, each a few times.
        if round.is_multiple_of(3) {
            let gone = held.swap_remove(round % held.len());
            assert_eq!(arena.free(gone.id), Ok(()));
        }
    }
}

#[test]
fn events_tell_of_pins_with_their_reasons_and_of_who_let_go() {
    let (mut arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    arena.record_history(100);
    assert!(arena.records_history() && !self::arena(Kind::Preallocate, Bytes::mib(80)).0.records_history());
    let block = take(&arena, Request { size: Bytes::kib(8), provenance: provenance(3) });
    assert_eq!((arena.pin_because(block.id, PinReason(7)), arena.unpin(block.id)), (Ok(()), Ok(())));
    let later = Provenance { origin: OriginId::new(9), run: Execution { step: 70, at: Timestamp::from_nanos(5) } };
    assert_eq!(arena.retire_as(block.id, Some(later)), Ok(()));
    assert_eq!(arena.blocks()[0].provenance, later, "a retired block is what the program made of it");
    assert_eq!((arena.pending(), arena.stats().pending_bytes), (Bytes::kib(8), Bytes::kib(8)));
    let events: Vec<Event> = arena.survey().events.list;
    let told: Vec<_> =
        events.iter().rev().take(3).rev().map(|event| (event.kind(), event.other, event.origin)).collect();
    let row = OriginId::new;
    assert_eq!(told, [(EventKind::Pin, 7, row(3)), (EventKind::Unpin, 7, row(3)), (EventKind::Retire, 0, row(9))]);
}

/// What the strategy `tpu` took up front was there before anything happened.
#[test]
fn regions_come_and_go_with_events_when_they_do() {
    let (mut arena, _device) = self::arena(Kind::Tpu, Bytes::mib(80));
    arena.record_history(100);
    take(&arena, Bytes::kib(8));
    let kinds = |events: &[Event]| events.iter().map(Event::kind).collect::<Vec<_>>();
    assert_eq!(kinds(&arena.survey().events.list), [EventKind::Allocate]);
    // A growing pool: the region goes with the block that was alone in it, and the spare one when it is trimmed. The
    // last event is no survey's, which looks at the regions itself.
    let (mut arena, device) = self::arena(Kind::Growing, Bytes::mib(80));
    arena.record_history(100);
    let scope = arena.open_scope();
    let [small, large] = [1, 40].map(|mib| take(&arena, Bytes::mib(mib)));
    assert_eq!(arena.free(large.id), Ok(()));
    assert_eq!(device.regions().len(), 1);
    let inner = arena.open_scope();
    assert_eq!((arena.free(small.id), arena.trim()), (Ok(()), Bytes::mib(2)));
    let after = |scope| kinds(&arena.end_scope(scope).expect("it is open").after_peak.expect("it goes back so far"));
    assert_eq!(after(inner), [EventKind::Free, EventKind::RegionGone]);
    // The peak was when the large one came.
    use EventKind::{Free, RegionGone};
    assert_eq!(after(scope), [Free, RegionGone, Free, RegionGone]);
    // A device that is full: what growth gave back to it, though no block came, is seen all the same.
    take(&arena, Bytes::mib(1));
    let spare = take(&arena, Bytes::mib(2));
    assert_eq!(arena.free(spare.id), Ok(()));
    let regions = device.regions().len();
    assert_eq!(regions, 2, "the empty one is small enough to stay");
    device.set_capacity(Bytes::mib(4));
    assert!(arena.allocate(Bytes::mib(30)).is_err());
    assert_eq!(device.regions().len(), 1);
    let (mut past, events, _) = past(&arena);
    assert_eq!(events.last().map(Event::kind), Some(RegionGone));
    past.undo(events.last().expect("an event"));
    assert_eq!(past.regions.len(), regions);
}

#[test]
fn scopes_end_in_any_order() {
    let (arena, _device) = arena(Kind::Preallocate, Bytes::mib(80));
    let [first, second, third] = [(); 3].map(|()| {
        let scope = arena.open_scope();
        take(&arena, Bytes::mib(1));
        scope
    });
    let seen = |scope| arena.end_scope(scope).map(|scoped| (scoped.start.get() >> 20, scoped.peak.get() >> 20));
    assert_eq!(seen(second), Some((1, 3)));
    take(&arena, Bytes::mib(1));
    assert_eq!((seen(third), seen(second), seen(first)), (Some((2, 4)), None, Some((0, 4))));
}

/// Scratch that nobody needs goes when an allocation does: the history has it when it did.
#[test]
fn scratch_goes_from_the_history_too() {
    let (mut arena, _device) = arena(Kind::Tpu, Bytes::mib(80));
    arena.record_history(100);
    assert_eq!(arena.begin_scratch(Bytes::mib(40)), Ok(()));
    arena.end_scratch(Bytes::mib(40));
    take(&arena, Bytes::mib(80));
    let told: Vec<_> =
        arena.survey().events.list.iter().map(|event| (event.kind(), event.bytes.get() >> 20, event.other)).collect();
    let of = |mib| Bytes::mib(mib).get();
    assert_eq!(told, [(EventKind::Scratch, 40, 0), (EventKind::Scratch, 0, of(40)), (EventKind::Allocate, 80, of(80))]);
}

#[test]
fn the_history_has_where_scratch_lies() {
    let (mut arena, _device) = arena(Kind::Tpu, Bytes::mib(80));
    arena.record_history(100);
    let bottom = arena.begin_scratch(Bytes::mib(4)).map(|()| arena.survey().scratch).expect("all is free");
    // A block above it that an outsider holds: more goes elsewhere.
    let mut low = take(&arena, Bytes::mib(70));
    arena.end_scratch(Bytes::mib(4));
    assert_eq!(arena.pin(low.id), Ok(()));
    low = take(&arena, Bytes::mib(1));
    assert_eq!(arena.begin_scratch_anywhere(Bytes::mib(5)), Ok(()));
    let elsewhere = arena.survey().scratch;
    assert_ne!(elsewhere, bottom, "above {}", low.address);
    let list = arena.survey().events.list;
    let told = list.iter().filter(|event| event.kind() == EventKind::Scratch);
    let told: Vec<_> = told.map(|event| Some(AddressRange { address: event.address, bytes: event.bytes })).collect();
    assert_eq!(told, [bottom, elsewhere]);
}

#[test]
fn a_history_that_is_turned_off_and_on_again_begins_there() {
    let (mut arena, _device) = self::arena(Kind::Growing, Bytes::mib(80));
    arena.record_history(100);
    let first = take(&arena, Bytes::mib(1));
    let scope = arena.open_scope();
    arena.keep_history(100);
    assert_eq!(arena.survey().events.lost, 0, "it goes on as it is");
    arena.keep_history(0);
    let unseen = take(&arena, Bytes::mib(2));
    assert!(arena.survey().events.list.is_empty() && !arena.records_history());
    arena.keep_history(100);
    assert_eq!(arena.free(unseen.id), Ok(()));
    take(&arena, Bytes::kib(512));
    let survey = arena.survey();
    let kinds: Vec<_> = survey.events.list.iter().map(Event::kind).collect();
    assert_eq!(kinds.iter().filter(|&&kind| kind == EventKind::Region).count(), 0, "its regions were there");
    assert!(survey.events.lost > 0 && kinds.starts_with(&[EventKind::Free]), "{kinds:?}");
    // Undone, it is the instant at which it was turned on.
    let mut past = Past::now(&survey.blocks, &survey.regions, Bytes::ZERO);
    survey.events.list.iter().rev().for_each(|event| past.undo(event));
    let ids: Vec<u64> = past.blocks.keys().copied().collect();
    let mut expected = vec![block_number(first.id), block_number(unseen.id)];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    let scoped = arena.end_scope(scope).expect("it is open");
    assert_eq!((scoped.peak, scoped.after_peak), (Bytes::mib(3), None), "the peak was while nothing was noted");
}
