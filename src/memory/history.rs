//! What happened in an arena: a bounded ring of events of one size.
//!
//! ```text
//!   sequence    ..., n-3, n-2, n-1 | n            the next event takes the oldest one's place
//!   ring        | n-2 | n-1 | n-4 | n-3 |         48 bytes each; `cursor` is where n goes
//!                            ^ cursor
//! ```
//!
//! Events are noted under the arena's lock, which is held anyway. The ring takes its memory at the first event and
//! touches it as it fills. With a capacity of zero nothing is noted and no clock is read.
//!
//! Each event says enough to be undone: [`Past`] begins with the present blocks and undoes event after event. A result
//! that reuses a kept destination that is live (`runtime/allocator/output_cache.rs`) does not ask the arena, so it
//! makes no event.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    memory::{
        arena::block::{BlockInfo, BlockState},
        block_table::BlockId,
        oom::OutOfMemory,
        provenance::{Execution, OriginId, PinReason, Provenance, Timestamp},
    },
    region::AddressRange,
    sync::prefetch_write,
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
    /// `bytes` are kept for programs' scratch from here on; `other` before.
    Scratch = 10,
    /// An array of `bytes` was spilled: `other` bytes were copied, in `step` nanoseconds. Its block's end follows.
    Spill = 11,
    /// A spilled array of `bytes` is back, copied in `step` nanoseconds. Its block's beginning went before.
    Return = 12,
    /// Other processes of the group were asked for `bytes`, and for `step` nanoseconds that was waited for.
    Asked = 13,
    /// `bytes` were given back for other processes of the group, in `step` nanoseconds.
    Given = 14,
}

impl EventKind {
    const ALL: [Self; 15] = [
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
        Self::Spill,
        Self::Return,
        Self::Asked,
        Self::Given,
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

/// How many events ahead of the cursor the ring's memory is asked for.
const AHEAD: usize = 4;

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

    /// Forgets all events and remembers so many from here on, with 0 none. What happened meanwhile counts as lost, so
    /// that nothing is undone across the gap.
    #[cold]
    pub(super) fn restart(&mut self, capacity: usize, regions: Vec<AddressRange>) {
        (self.ring, self.cursor, self.capacity) = (Vec::new(), 0, capacity);
        self.sequence += 1;
        self.begin_with(regions);
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

    /// Notes an event that happened at `at`. In line, so that no note is written to memory to be passed.
    #[inline(always)]
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
            None => self.lengthen(event),
        }
        self.cursor = if self.cursor + 1 == self.capacity { 0 } else { self.cursor + 1 };
        self.sequence += 1;
        // The ring is larger than caches are. A store to a line that is not there is waited for by the next locked
        // instruction, which is this lock's end: with the prefetch a note takes a third of the time. The first events
        // of each round go without.
        prefetch_write(self.ring.get(self.cursor + AHEAD));
    }

    /// An event of the first round.
    #[cold]
    #[inline(never)]
    fn lengthen(&mut self, event: Event) {
        if self.ring.is_empty() {
            self.ring.reserve_exact(self.capacity);
        }
        self.ring.push(event);
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
            EventKind::OutOfMemory
            | EventKind::Compaction
            | EventKind::Spill
            | EventKind::Return
            | EventKind::Asked
            | EventKind::Given => {}
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

/// The provenance and the size asked for of each block that is in use: they sum to [`super::Stats::bytes_in_use`].
pub fn in_use(blocks: &[BlockInfo]) -> impl Iterator<Item = (Provenance, Bytes)> {
    let owned = blocks.iter().filter(|info| info.state != BlockState::Retired);
    owned.map(|info| (info.provenance, info.block.size))
}

/// The reason of a pin as an event carries it.
pub(super) fn pin_reason_code(why: PinReason) -> u64 {
    u64::from(why.0)
}

#[cfg(test)]
mod tests;
