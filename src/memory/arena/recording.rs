//! What the arena records beside its block table and counters: the history, and the peaks of open scopes.
//!
//! ```text
//!   open_scope ------------- peak -------- end_scope
//!        |                    |  number of the event that made it      |
//!        in use then          `-- undo from now back to it: the blocks of that instant
//! ```
//!
//! Any number of scopes may be open at once, nested or not, from any threads. While none is open an allocation pays for
//! one comparison.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    error::Result,
    memory::{
        AddressRange, Backing, Region, Stats,
        arena::{Arena, BlockInfo, BlockState, OutOfMemory, Request, State},
        block_table::{BlockId, Record},
        history::{Event, EventKind, Events, FailedRequest, History, Note, block_number, pin_reason_code},
        provenance::{PinReason, Provenance, Timestamp},
        space::SpanState,
        strategy::BlockPlace,
    },
    units::{Address, Bytes},
};

/// The device, and how often it was asked: whether regions came or went is seen without looking at them.
#[derive(Debug)]
pub(super) struct Watched {
    device: Box<dyn Backing>,
    calls: AtomicU64,
}

impl Watched {
    pub(super) fn new(device: Box<dyn Backing>) -> Self {
        Self { device, calls: AtomicU64::new(0) }
    }
}

impl Backing for Watched {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.device.reserve(bytes)
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.device.reserve_up_front(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.device.release(region)
    }

    fn granularity(&self) -> Bytes {
        self.device.granularity()
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.device.most_in_advance()
    }
}

/// Names an open scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeId(u64);

#[derive(Clone, Copy, Debug)]
struct Scope {
    id: ScopeId,
    start: Bytes,
    peak: Bytes,
    /// The number of the first event after the one that made the peak.
    after_peak: u64,
}

/// The open scopes.
#[derive(Debug)]
pub(super) struct Scopes {
    open: Vec<Scope>,
    next: u64,
    /// The lowest of their peaks: while less is in use no peak is new.
    mark: Bytes,
}

impl Default for Scopes {
    fn default() -> Self {
        Self { open: Vec::new(), next: 0, mark: Bytes::MAX }
    }
}

impl Scopes {
    /// Whether `in_use` is a new peak of one of them.
    #[inline(always)]
    pub(super) fn exceeded(&self, in_use: Bytes) -> bool {
        in_use > self.mark
    }

    #[cold]
    pub(super) fn raise(&mut self, in_use: Bytes, after: u64) {
        for scope in self.open.iter_mut().filter(|scope| scope.peak < in_use) {
            (scope.peak, scope.after_peak) = (in_use, after);
        }
        self.set_mark();
    }

    fn set_mark(&mut self) {
        self.mark = self.open.iter().map(|scope| scope.peak).min().unwrap_or(Bytes::MAX);
    }
}

/// What a scope saw.
#[derive(Clone, Debug)]
pub struct Scoped {
    /// In use when it was opened.
    pub start: Bytes,
    /// In use when it was ended.
    pub end: Bytes,
    /// The most in use between.
    pub peak: Bytes,
    /// All blocks at its end.
    pub blocks: Vec<BlockInfo>,
    /// The events after the peak, oldest first; `None` where the history does not go back so far, or is off.
    pub after_peak: Option<Vec<Event>>,
}

/// Everything about an arena at one instant.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The numbers.
    pub stats: Stats,
    /// As [`Arena::regions`].
    pub regions: Vec<AddressRange>,
    /// As [`Arena::blocks`].
    pub blocks: Vec<BlockInfo>,
    /// As [`Arena::scratch`].
    pub scratch: Option<AddressRange>,
    /// What happened before.
    pub events: Events,
    /// When it was taken.
    pub at: Timestamp,
}

impl Arena {
    /// Remembers the last `events` events from here on; with 0 none, and no clock is read. To be said before the first
    /// allocation. They take 48 bytes each, touched as they come.
    pub fn record_history(&mut self, events: usize) {
        let state = self.state.get_mut();
        state.history = History::with_capacity(events);
        // What is there already, no event brought.
        let regions = state.placement.regions();
        state.history.begin_with(regions);
    }

    /// Whether events are remembered. Takes the lock.
    pub fn records_history(&self) -> bool {
        self.state.lock().history.is_on()
    }

    /// Everything about this instant, under one lock. O(blocks and events), with the lock.
    pub fn survey(&self) -> Survey {
        let state = &mut *self.state.lock();
        let at = Timestamp::now();
        if state.history.is_on() {
            // Growth that failed released some, and no block came whose event would have shown it.
            state.history.see_regions(at, state.placement.regions());
        }
        Survey {
            stats: state.stats(self.limit),
            regions: state.regions(),
            blocks: state.blocks().collect(),
            scratch: state.scratch_region(),
            events: state.history.events(),
            at,
        }
    }

    /// Records that a request failed, with the error's text.
    pub fn note_failure(&self, numbers: OutOfMemory, provenance: Provenance, text: String) {
        self.state.lock().history.fail(Timestamp::now(), FailedRequest { numbers, provenance, text });
    }

    /// Begins to watch for the most in use. O(1).
    pub fn open_scope(&self) -> ScopeId {
        let state = &mut *self.state.lock();
        let (start, scopes) = (state.counters.in_use, &mut state.scopes);
        let id = ScopeId(scopes.next);
        scopes.next += 1;
        scopes.open.push(Scope { id, start, peak: start, after_peak: state.history.sequence() });
        scopes.set_mark();
        id
    }

    /// Ends a scope and says what it saw; `None` if it is not open. O(blocks and events since its peak), with the lock.
    pub fn end_scope(&self, id: ScopeId) -> Option<Scoped> {
        let state = &mut *self.state.lock();
        let at = state.scopes.open.iter().position(|scope| scope.id == id)?;
        let Scope { start, peak, after_peak, .. } = state.scopes.open.swap_remove(at);
        state.scopes.set_mark();
        Some(Scoped {
            start,
            end: state.counters.in_use,
            peak,
            blocks: state.blocks().collect(),
            after_peak: state.history.since(after_peak),
        })
    }
}

impl State {
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockInfo> {
        self.table.iter().map(|(id, record)| BlockInfo {
            block: super::Block { id, address: record.address, size: record.requested },
            held: self.placement.held(record.place),
            state: block_state(record.state),
            provenance: record.provenance,
            pin: record.pin,
        })
    }

    pub(super) fn regions(&self) -> Vec<AddressRange> {
        let own = self.table.iter().filter(|(_, record)| matches!(record.place, BlockPlace::Mapping { .. }));
        let own =
            own.map(|(_, record)| AddressRange { address: record.address, bytes: self.placement.held(record.place) });
        self.placement.regions().into_iter().chain(own).collect()
    }

    pub(super) fn scratch_region(&self) -> Option<AddressRange> {
        let (space, span) = (self.placement.space()?, self.scratch.span()?);
        Some(AddressRange { address: space.address(span), bytes: space.size(span) })
    }

    /// Notes that `id` came, at the time `at` or now.
    #[inline(never)]
    pub(super) fn note_allocation(&mut self, id: BlockId, held: Bytes, at: Option<Timestamp>, backing: &Watched) {
        let at = at.unwrap_or_else(Timestamp::now);
        let calls = backing.calls.load(Ordering::Relaxed);
        if calls != self.device_calls {
            self.device_calls = calls;
            self.history.see_regions(at, self.placement.regions());
        }
        let Some(record) = self.table.get_mut(id) else { return };
        record.provenance.run.at = at;
        let record = *record;
        if let BlockPlace::Mapping { .. } = record.place {
            self.history.note(at, Note { address: record.address, ..Note::new(EventKind::Region, held) });
        }
        let other = record.requested.get();
        self.history.note(at, Note { other, ..of_block(EventKind::Allocate, id, &record, held) });
    }

    /// Notes that `id` went, and perhaps its region with it; when, which is now.
    #[inline(never)]
    pub(super) fn note_free(&mut self, id: BlockId, record: &Record, held: Bytes, region_goes: bool) -> Timestamp {
        let at = Timestamp::now();
        let other = record.provenance.run.at.raw();
        self.history.note(at, Note { other, ..of_block(EventKind::Free, id, record, held) });
        if let BlockPlace::Mapping { .. } = record.place {
            self.history.note(at, Note { address: record.address, ..Note::new(EventKind::RegionGone, held) });
        } else if region_goes {
            self.history.see_regions(at, self.placement.regions());
        }
        at
    }

    /// Notes something else about a block, whose record is as it was before.
    #[inline(never)]
    pub(super) fn note_block(&mut self, kind: EventKind, id: BlockId, before: &Record, other: u64) {
        if self.history.is_on() {
            let held = self.placement.held(before.place);
            self.history.note(Timestamp::now(), Note { other, ..of_block(kind, id, before, held) });
        }
    }

    pub(super) fn note_pin(&mut self, kind: EventKind, id: BlockId, before: &Record, why: PinReason) {
        self.note_block(kind, id, before, pin_reason_code(why));
    }

    /// Notes what is kept for scratch, if that changed.
    pub(super) fn note_scratch(&mut self, before: Bytes) {
        let now = self.scratch.bytes();
        if self.history.is_on() && now != before {
            let note = Note { other: before.get(), ..Note::new(EventKind::Scratch, now) };
            self.history.note(Timestamp::now(), note);
        }
    }

    /// Notes which regions are about to go.
    pub(super) fn note_surplus(&mut self, surplus: &[Region]) {
        if self.history.is_on() && !surplus.is_empty() {
            self.history.see_regions(Timestamp::now(), self.placement.regions());
        }
    }

    /// Notes that a block lies where it lay, but takes another part of the pool.
    pub(super) fn note_resized(&mut self, id: BlockId, before: Bytes) {
        let Some(record) = self.table.get(id).copied() else { return };
        let held = self.placement.held(record.place);
        if self.history.is_on() && held != before {
            let at = Timestamp::now();
            let born = record.provenance.run.at.raw();
            self.history.note(at, Note { other: born, ..of_block(EventKind::Free, id, &record, before) });
            let other = record.requested.get();
            // Undone, it is as it was: the state before is that of both.
            self.history.note(at, Note { other, ..of_block(EventKind::Allocate, id, &record, held) });
        }
    }

    /// Notes the end of a compaction that began at `began`.
    #[cold]
    pub(super) fn note_compaction(&mut self, began: Timestamp, buffers: usize, bytes: Bytes) {
        let at = Timestamp::now();
        let lasted = at.raw().saturating_sub(began.raw());
        let note = Note {
            block: buffers as u64,
            other: self.placement.largest_hole().get(),
            step: u32::try_from(lasted).unwrap_or(u32::MAX),
            ..Note::new(EventKind::Compaction, bytes)
        };
        self.history.note(at, note);
    }
}

fn block_state(state: SpanState) -> BlockState {
    match state {
        SpanState::Retired => BlockState::Retired,
        SpanState::Pinned => BlockState::Pinned,
        _ => BlockState::Live,
    }
}

fn of_block(kind: EventKind, id: BlockId, record: &Record, held: Bytes) -> Note {
    Note {
        before: block_state(record.state),
        block: block_number(id),
        address: record.address,
        origin: record.provenance.origin,
        step: record.provenance.run.step,
        ..Note::new(kind, held)
    }
}

/// Where a block lay, as an event carries it.
pub(super) fn lay_at(address: Address) -> u64 {
    address.get()
}

impl Request {
    /// The request with another size, as it is placed.
    #[inline(always)]
    pub(super) fn record(self, address: Address, place: BlockPlace) -> Record {
        let Self { size, provenance } = self;
        Record { requested: size, address, place, state: SpanState::Live, provenance, pin: PinReason::default() }
    }
}
