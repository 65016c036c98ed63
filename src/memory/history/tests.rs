//! The ring, and how an earlier instant is reconstructed.

use super::*;

fn noted(history: &mut History, bytes: u64) {
    history.note(Timestamp::from_nanos(bytes), Note::new(EventKind::Scratch, Bytes::new(bytes)));
}

fn sizes(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.bytes.get()).collect()
}

#[test]
fn nothing_is_undone_across_a_time_without_history() {
    let mut history = History::with_capacity(4);
    noted(&mut history, 1);
    let before = history.sequence();
    noted(&mut history, 2);
    history.restart(0, Vec::new());
    noted(&mut history, 3);
    assert_eq!((history.is_on(), history.since(before)), (false, None));
    let meanwhile = history.sequence();
    history.restart(4, Vec::new());
    noted(&mut history, 4);
    assert_eq!((sizes(&history.events().list), history.events().lost), (vec![4], 4));
    assert_eq!((history.since(before), history.since(meanwhile)), (None, None));
    assert_eq!(history.since(history.sequence() - 1).map(|events| sizes(&events)), Some(vec![4]));
}

#[test]
fn the_ring_keeps_the_last_events_in_order_and_counts_the_others() {
    let mut history = History::with_capacity(4);
    for bytes in 1..=3 {
        noted(&mut history, bytes);
    }
    assert_eq!((sizes(&history.events().list), history.events().lost), (vec![1, 2, 3], 0));
    for bytes in 4..=10 {
        noted(&mut history, bytes);
    }
    assert_eq!((sizes(&history.events().list), history.events().lost), (vec![7, 8, 9, 10], 6));
    assert_eq!(history.ring.capacity(), 4);
    assert_eq!(history.since(8).map(|events| sizes(&events)), Some(vec![9, 10]));
    assert_eq!(history.since(10).map(|events| sizes(&events)), Some(vec![]));
    assert_eq!(history.since(6).map(|events| events.len()), Some(4));
    assert_eq!((history.since(5), history.since(11)), (None, None));
}

#[test]
fn without_capacity_nothing_is_kept_and_nothing_is_known() {
    let mut history = History::with_capacity(0);
    noted(&mut history, 1);
    assert!(history.events().list.is_empty() && !history.is_on());
    assert_eq!((history.events().lost, history.since(0)), (0, None));
}

#[test]
fn times_never_go_back() {
    let mut history = History::with_capacity(4);
    noted(&mut history, 20);
    noted(&mut history, 10);
    let times: Vec<_> = history.events().list.iter().map(|event| event.time().nanos()).collect();
    assert_eq!(times, [Some(20), Some(20)]);
}

#[test]
fn an_event_keeps_its_parts_apart() {
    let mut history = History::with_capacity(64);
    let states = [BlockState::Live, BlockState::Pinned, BlockState::Retired];
    for kind in EventKind::ALL {
        for before in states {
            history.note(Timestamp::from_nanos(77), Note { before, ..Note::new(kind, Bytes::new(1)) });
        }
    }
    let parts: Vec<_> = history.events().list.iter().map(|event| (event.kind(), event.before())).collect();
    let expected: Vec<_> = EventKind::ALL.into_iter().flat_map(|kind| states.map(|before| (kind, before))).collect();
    assert_eq!(parts, expected);
}

#[test]
fn the_last_failures_are_kept_with_their_numbers() {
    let mut history = History::with_capacity(100);
    let numbers = |requested| OutOfMemory {
        arena: "fake:0".into(),
        strategy: crate::memory::Strategy::Preallocate,
        requested: Bytes::new(requested),
        in_use: Bytes::ZERO,
        pending: Bytes::ZERO,
        slack: Bytes::ZERO,
        free: Bytes::ZERO,
        largest_hole: Bytes::ZERO,
        largest_request: Bytes::ZERO,
        reserved: Bytes::ZERO,
        growth: Bytes::ZERO,
        limit: Bytes::ZERO,
        is_scratch: false,
        story: None,
        refusal: None,
    };
    let provenance = Provenance { origin: OriginId::new(5), run: Execution { step: 6, at: Timestamp::UNKNOWN } };
    let all = MOST_FAILURES as u64 + 3;
    for number in 0..all {
        let failure = FailedRequest { numbers: numbers(number + 1), provenance, text: format!("failure {number}") };
        history.fail(Timestamp::from_nanos(number + 1), failure);
    }
    let events = history.events();
    assert_eq!((events.failures.len(), events.failures_forgotten), (MOST_FAILURES, 3));
    // Each event leads to its failure by the number, whatever was forgotten before and since.
    assert_eq!(events.list.len() as u64, all);
    for (number, event) in (0..).zip(&events.list) {
        assert_eq!((event.kind(), event.other, event.bytes), (EventKind::OutOfMemory, number, Bytes::new(number + 1)));
        assert_eq!((event.origin, event.step), (OriginId::new(5), 6));
        let at = number.checked_sub(events.failures_forgotten).map(|at| &events.failures[at as usize]);
        assert!(at.is_none_or(|failure| failure.text == format!("failure {number}")), "{number}: {at:?}");
    }
}

#[test]
fn what_was_there_before_the_history_did_not_come_with_an_event() {
    let region = |at: u64| AddressRange { address: Address::new(at << 20), bytes: Bytes::mib(1) };
    let mut history = History::with_capacity(10);
    history.begin_with(vec![region(1), region(2)]);
    // In another order they are still the same ones.
    history.see_regions(Timestamp::from_nanos(1), vec![region(2), region(1)]);
    assert!(history.events().list.is_empty());
    history.see_regions(Timestamp::from_nanos(2), vec![region(3), region(1)]);
    let seen: Vec<_> = history.events().list.iter().map(|event| (event.kind(), event.address)).collect();
    assert_eq!(seen, [(EventKind::RegionGone, region(2).address), (EventKind::Region, region(3).address)]);
}

#[test]
fn the_past_is_summed_by_who_holds_it() {
    let block = |at: u64, mib, state| {
        (
            at,
            PastBlock {
                address: Address::new(at << 30),
                bytes: Bytes::mib(mib),
                state,
                provenance: Provenance::default(),
            },
        )
    };
    let blocks = [(1, 1, BlockState::Live), (2, 2, BlockState::Pinned), (3, 4, BlockState::Retired)];
    let region = |at: u64, mib| AddressRange { address: Address::new(at << 30), bytes: Bytes::mib(mib) };
    let past = Past {
        blocks: blocks.into_iter().map(|(at, mib, state)| block(at, mib, state)).collect(),
        regions: vec![region(1, 64), region(2, 16)],
        scratch: Bytes::mib(32),
    };
    assert_eq!((past.in_use(), past.pending(), past.pool()), (Bytes::mib(3), Bytes::mib(4), Bytes::mib(80)));
}

#[test]
fn holdings_are_summed_by_origin_the_largest_first() {
    let of = |origin, nanos, bytes| {
        let run = Execution { step: 0, at: Timestamp::from_nanos(nanos) };
        (Provenance { origin: OriginId::new(origin), run }, Bytes::new(bytes))
    };
    let blocks = [of(1, 5, 10), of(2, 7, 100), of(1, 3, 20), of(3, 0, 1), of(3, 9, 1)];
    let sums = holdings(blocks.into_iter());
    let shown: Vec<_> =
        sums.iter().map(|sum| (sum.origin.row(), sum.bytes.get(), sum.blocks, sum.oldest.nanos())).collect();
    assert_eq!(shown, [(2, 100, 1, Some(7)), (1, 30, 2, Some(3)), (3, 2, 2, None)]);
}
