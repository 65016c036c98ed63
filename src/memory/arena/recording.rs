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

use std::time::Duration;

use crate::{
    memory::{
        arena::{
            block::BlockInfo,
            core::Arena,
            scopes::{Scope, ScopeId},
        },
        history::{Event, EventKind, Events, FailedRequest, History, Note},
        oom::OutOfMemory,
        provenance::{OriginId, Provenance, Timestamp},
        stats::Stats,
    },
    region::AddressRange,
    units::Bytes,
};

/// What a scope saw.
#[derive(Clone, Debug)]
pub struct Scoped {
    /// In use when it was opened.
    pub start: Bytes,
    /// In use when it was ended.
    pub end: Bytes,
    /// The most in use between, with the scratch of the program that began then.
    pub peak: Bytes,
    /// The most that live and retired blocks asked for between, with such scratch.
    pub peak_used: Bytes,
    /// That program's scratch.
    pub scratch: Bytes,
    /// The run that was launched at the peak; 0 if that came otherwise, or before the scope.
    pub peak_run: u32,
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

    /// Remembers the last `events` events from here on, with 0 none; where events are remembered already, that goes on
    /// as it is. Takes the lock.
    pub fn keep_history(&self, events: usize) {
        let state = &mut *self.state.lock();
        if state.history.is_on() != (events > 0) {
            let mut regions = state.placement.regions();
            regions.sort_unstable_by_key(|region| region.address);
            state.history.restart(events, regions);
        }
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

    /// Records that an array of `bytes` was spilled ([`EventKind::Spill`]) or is back ([`EventKind::Return`]), for
    /// which so many bytes were copied in so long; or that memory was asked for ([`EventKind::Asked`]) or given
    /// ([`EventKind::Given`]).
    pub fn note_transfer(&self, kind: EventKind, (bytes, copied): (Bytes, Bytes), origin: OriginId, took: Duration) {
        let step = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let note = Note { other: copied.get(), origin, step, ..Note::new(kind, bytes) };
        let state = &mut *self.state.lock();
        if state.history.is_on() {
            state.history.note(Timestamp::now(), note);
        }
    }

    /// Begins to watch for the most in use. O(1).
    pub fn open_scope(&self) -> ScopeId {
        let state = &mut *self.state.lock();
        state.note_used();
        let (start, peak_used) = (state.counters.in_use, state.counters.used());
        let (scopes, after_peak) = (&mut state.scopes, state.history.sequence());
        let id = ScopeId(scopes.next);
        scopes.next += 1;
        scopes.open.push(Scope { id, start, peak: start, peak_used, scratch: Bytes::ZERO, after_peak, run: 0 });
        scopes.set_mark();
        id
    }

    /// Ends a scope and says what it saw; `None` if it is not open. O(blocks and events since its peak), with the lock.
    pub fn end_scope(&self, id: ScopeId) -> Option<Scoped> {
        let state = &mut *self.state.lock();
        let at = state.scopes.open.iter().position(|scope| scope.id == id)?;
        state.note_used();
        let Scope { start, peak, peak_used, scratch, after_peak, run, .. } = state.scopes.open.swap_remove(at);
        state.scopes.set_mark();
        Some(Scoped {
            start,
            end: state.counters.in_use,
            peak,
            peak_used,
            scratch,
            peak_run: run,
            blocks: state.blocks().collect(),
            after_peak: state.history.since(after_peak),
        })
    }
}
