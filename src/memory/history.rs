//! What happened in an arena: a bounded ring of events of one size.
//!
//! ```text
//!   sequence    ..., n-3, n-2, n-1 | n            the next event takes the oldest one's place
//!   ring        | n-2 | n-1 | n-4 | n-3 |         48 bytes each; `cursor` is where n goes
//!                            ^ cursor
//! ```
//!
//! Events are noted under the arena's lock, which is held anyway. The ring takes its memory at the first event and touches
//! it as it fills. With a capacity of zero nothing is noted and no clock is read.
//!
//! Each event says enough to be undone: [`Past`] begins with the present blocks and undoes event after event. A result that
//! reuses a kept destination that is live (`api/execute/spares.rs`) does not ask the arena, so it makes no event.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    memory::{
        AddressRange, BlockId, BlockInfo, BlockState, OutOfMemory,
        provenance::{Execution, OriginId, PinReason, Provenance, Timestamp},
    },
    units::{Address, Bytes},
};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// A block came: `bytes` of the pool, `other` asked for.
    Allocate = 0,
    /// A block went; `other` is when it was made, 0 for unknown.
    Free = 1,
    /// A block's owner let go, while a program still uses the bytes.
    Retire = 2,
    /// An outsider has the address; `other` is the [`PinReason`].
    Pin = 3,
    /// No outsider has it any more; `other` as for [`Self::Pin`].
    Unpin = 4,
    /// A block lies at `address` now; `other` is where it lay.
    Move = 5,
    /// A region came from the device.
    Region = 6,
    /// A region is on its way back to the device.
    RegionGone = 7,
    /// A request of `bytes` for `origin` found no room; `other` is the failure's number.
    OutOfMemory = 8,
    /// A compaction ended: `bytes` moved in `block` buffers, `step` nanoseconds long, `other` the largest hole after.
    Compaction = 9,
    /// `bytes` at the low end are kept for programs' scratch from here on; `other` before.
    Scratch = 10,
}

impl EventKind {
    const ALL: [Self; 11] = [
        Self::Allocate,
        Self::Free,
        Self::Retire,
        Self::Pin,
        Self::Unpin,
        Self::Move,
        Self::Region,
        Self::RegionGone,
        Self::OutOfMemory,
        Self::Compaction,
        Self::Scratch,
    ];
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time, state and kind: `time << 8 | state << 4 | kind`. 2^56 nanoseconds are two years.
    stamp: u64,
    /// The block's number ([`block_number`]), or a count.
    pub block: u64,
    /// Where.
    pub address: Address,
    /// Taken from the pool.
    pub bytes: Bytes,
    /// What [`EventKind`] says.
    pub other: u64,
    /// Of the block.
    pub origin: OriginId,
    /// The run that made the block, or what [`EventKind`] says.
    pub step: u32,
}

const _: () = assert!(size_of::<Event>() == 48, "the size is a promise of the settings' documentation");

impl Event {
    /// What happened.
    pub fn kind(&self) -> EventKind {
        EventKind::ALL[(self.stamp & 0xf) as usize]
    }

    /// The state of the block before.
    pub fn before(&self) -> BlockState {
        match self.stamp >> 4 & 0xf {
            0 => BlockState::Live,
            1 => BlockState::Pinned,
            _ => BlockState::Retired,
        }
    }

    /// When.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_nanos(self.stamp >> 8)
    }
}

/// A number for a block below 2^53, which JSON's readers keep exact. No two blocks of one history share it: that would
/// take 2^21 blocks, one after the other, with one index.
pub fn block_number(id: BlockId) -> u64 {
    (id.index() as u64) | u64::from(id.generation() & 0x1f_ffff) << 32
}

/// A request that found no room, as it was reported to the caller.
#[derive(Clone, Debug)]
pub struct FailedRequest {
    /// The numbers.
    pub numbers: OutOfMemory,
    /// What the room was for.
    pub provenance: Provenance,
    /// The whole text.
    pub text: String,
}

/// Failures that are remembered.
const MOST_FAILURES: usize = 32;

/// The ring, and what is remembered beside it.
#[derive(Debug, Default)]
pub(super) struct History {
    ring: Vec<Event>,
    capacity: usize,
    /// Where the next event goes.
    cursor: usize,
    /// Events ever noted.
    sequence: u64,
    /// The last time: an event is never earlier than the one before.
    last: u64,
    /// The regions as of the last look.
    regions: Vec<AddressRange>,
    failures: VecDeque<FailedRequest>,
    failures_forgotten: u64,
}

/// An event before it has a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) kind: EventKind,
    pub(super) before: BlockState,
    pub(super) block: u64,
    pub(super) address: Address,
    pub(super) bytes: Bytes,
    pub(super) other: u64,
    pub(super) origin: OriginId,
    pub(super) step: u32,
}

impl Note {
    /// Of nothing in particular.
    pub(super) fn new(kind: EventKind, bytes: Bytes) -> Self {
        Self {
            kind,
            before: BlockState::Live,
            block: 0,
            address: Address::new(0),
            bytes,
            other: 0,
            origin: OriginId::UNKNOWN,
            step: 0,
        }
    }
}

/// The events of a history, copied.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Oldest first.
    pub list: Vec<Event>,
    /// Older ones that the ring no longer has.
    pub lost: u64,
    /// The last failures, oldest first.
    pub failures: Vec<FailedRequest>,
    /// Older ones, forgotten: the number of the first of `failures`.
    pub failures_forgotten: u64,
}

impl History {
    /// Remembers so many events from here on.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Takes the regions that are there for known.
    pub(super) fn begin_with(&mut self, regions: Vec<AddressRange>) {
        self.regions = regions;
    }

    /// Whether events are noted.
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.capacity != 0
    }

    /// The number of the next event.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Notes an event that happened at `at`.
    pub(super) fn note(&mut self, at: Timestamp, note: Note) {
        if self.capacity == 0 {
            return;
        }
        self.last = self.last.max(at.raw());
        let stamp = self.last << 8 | (note.before as u64) << 4 | note.kind as u64;
        let Note { block, address, bytes, other, origin, step, .. } = note;
        let event = Event { stamp, block, address, bytes, other, origin, step };
        match self.ring.get_mut(self.cursor) {
            Some(oldest) => *oldest = event,
            None => {
                if self.ring.is_empty() {
                    self.ring.reserve_exact(self.capacity);
                }
                self.ring.push(event);
            }
        }
        self.cursor = if self.cursor + 1 == self.capacity { 0 } else { self.cursor + 1 };
        self.sequence += 1;
    }

    /// Notes how the regions differ from those of the last look.
    #[cold]
    pub(super) fn see_regions(&mut self, at: Timestamp, mut now: Vec<AddressRange>) {
        now.sort_unstable_by_key(|region| region.address);
        let before = std::mem::replace(&mut self.regions, now);
        let gone = before.iter().filter(|region| !self.regions.contains(region)).map(|&r| (EventKind::RegionGone, r));
        let came = self.regions.iter().filter(|region| !before.contains(region)).map(|&r| (EventKind::Region, r));
        for (kind, region) in gone.chain(came).collect::<Vec<_>>() {
            self.note(at, Note { address: region.address, ..Note::new(kind, region.bytes) });
        }
    }

    /// Remembers a failure, and notes it.
    #[cold]
    pub(super) fn fail(&mut self, at: Timestamp, failure: FailedRequest) {
        let (requested, Provenance { origin, run }) = (failure.numbers.requested, failure.provenance);
        if self.failures.len() == MOST_FAILURES {
            self.failures.pop_front();
            self.failures_forgotten += 1;
        }
        let other = self.failures_forgotten + self.failures.len() as u64;
        self.failures.push_back(failure);
        self.note(at, Note { other, origin, step: run.step, ..Note::new(EventKind::OutOfMemory, requested) });
    }

    /// The events from number `from` on, oldest first; `None` if some of them are gone, or were never noted.
    pub(super) fn since(&self, from: u64) -> Option<Vec<Event>> {
        let count = usize::try_from(self.sequence.checked_sub(from)?).ok()?;
        let skipped = self.ring.len().checked_sub(count)?;
        self.is_on().then(|| self.in_order().skip(skipped).collect())
    }

    /// A copy of everything.
    pub(super) fn events(&self) -> Events {
        Events {
            list: self.in_order().collect(),
            lost: self.sequence - self.ring.len() as u64,
            failures: self.failures.iter().cloned().collect(),
            failures_forgotten: self.failures_forgotten,
        }
    }

    fn in_order(&self) -> impl Iterator<Item = Event> {
        // Before the ring is full, the cursor is at its end.
        let at = self.cursor.min(self.ring.len());
        self.ring[at..].iter().chain(&self.ring[..at]).copied()
    }
}

/// A block as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastBlock {
    /// Where it lay.
    pub address: Address,
    /// What it took from the pool.
    pub bytes: Bytes,
    /// Live, pinned or retired.
    pub state: BlockState,
    /// What made it.
    pub provenance: Provenance,
}

/// What an arena looked like at an earlier instant.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// By their numbers.
    pub blocks: BTreeMap<u64, PastBlock>,
    /// In no order.
    pub regions: Vec<AddressRange>,
    /// Kept for programs' scratch.
    pub scratch: Bytes,
}

impl Past {
    /// Now.
    pub fn now(blocks: &[BlockInfo], regions: &[AddressRange], scratch: Bytes) -> Self {
        let entry = |info: &BlockInfo| {
            let (address, bytes, state) = (info.block.address, info.held, info.state);
            (block_number(info.block.id), PastBlock { address, bytes, state, provenance: info.provenance })
        };
        Self { blocks: blocks.iter().map(entry).collect(), regions: regions.to_vec(), scratch }
    }

    /// Undoes `event`, which must be the last one before this instant. O(log blocks).
    pub fn undo(&mut self, event: &Event) {
        match event.kind() {
            EventKind::Allocate => {
                self.blocks.remove(&event.block);
            }
            EventKind::Free => {
                let run = Execution { step: event.step, at: Timestamp::from_nanos(event.other) };
                let provenance = Provenance { origin: event.origin, run };
                let (address, bytes, state) = (event.address, event.bytes, event.before());
                self.blocks.insert(event.block, PastBlock { address, bytes, state, provenance });
            }
            EventKind::Retire | EventKind::Pin | EventKind::Unpin => {
                if let Some(block) = self.blocks.get_mut(&event.block) {
                    block.state = event.before();
                }
            }
            EventKind::Move => {
                if let Some(block) = self.blocks.get_mut(&event.block) {
                    block.address = Address::new(event.other);
                }
            }
            EventKind::Region => {
                let came = AddressRange { address: event.address, bytes: event.bytes };
                self.regions.retain(|&region| region != came);
            }
            EventKind::RegionGone => self.regions.push(AddressRange { address: event.address, bytes: event.bytes }),
            EventKind::Scratch => self.scratch = Bytes::new(event.other),
            EventKind::OutOfMemory | EventKind::Compaction => {}
        }
    }

    /// Bytes taken by blocks in use, pinned ones included.
    pub fn in_use(&self) -> Bytes {
        self.blocks.values().filter(|block| block.state != BlockState::Retired).map(|block| block.bytes).sum()
    }

    /// Bytes taken by blocks that wait for a program.
    pub fn pending(&self) -> Bytes {
        self.blocks.values().filter(|block| block.state == BlockState::Retired).map(|block| block.bytes).sum()
    }

    /// Bytes of all regions.
    pub fn pool(&self) -> Bytes {
        self.regions.iter().map(|region| region.bytes).sum()
    }
}

/// Blocks of one origin, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Where they came from.
    pub origin: OriginId,
    /// What they take from the pool.
    pub bytes: Bytes,
    /// How many.
    pub blocks: u64,
    /// When the oldest was made, as far as that is known.
    pub oldest: Timestamp,
}

/// What blocks, each with its provenance and what it takes, come to by origin; the largest first, then by origin.
pub fn holdings(blocks: impl Iterator<Item = (Provenance, Bytes)>) -> Vec<Holding> {
    let mut sums: BTreeMap<OriginId, Holding> = BTreeMap::new();
    for (provenance, bytes) in blocks {
        let (origin, oldest) = (provenance.origin, provenance.run.at);
        let sum = sums.entry(origin).or_insert(Holding { origin, bytes: Bytes::ZERO, blocks: 0, oldest });
        sum.bytes += bytes;
        sum.blocks += 1;
        sum.oldest = match (sum.oldest.nanos(), oldest.nanos()) {
            (Some(_), Some(_)) => sum.oldest.min(oldest),
            // An unknown time is before all known ones.
            _ => Timestamp::UNKNOWN,
        };
    }
    let mut holdings: Vec<Holding> = sums.into_values().collect();
    holdings.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.origin.cmp(&other.origin)));
    holdings
}

/// The reason of a pin as an event carries it.
pub(super) fn pin_reason_code(why: PinReason) -> u64 {
    u64::from(why.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(history: &mut History, bytes: u64) {
        history.note(Timestamp::from_nanos(bytes), Note::new(EventKind::Scratch, Bytes::new(bytes)));
    }

    fn sizes(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.bytes.get()).collect()
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
        let expected: Vec<_> =
            EventKind::ALL.into_iter().flat_map(|kind| states.map(|before| (kind, before))).collect();
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
            limit: Bytes::ZERO,
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
            assert_eq!(
                (event.kind(), event.other, event.bytes),
                (EventKind::OutOfMemory, number, Bytes::new(number + 1))
            );
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
}
