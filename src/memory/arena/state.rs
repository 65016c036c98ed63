//! What the arena's lock guards, and the steps that change it: a block is entered, a block is removed.

use std::{sync::atomic::Ordering, time::Duration};

use crate::{
    memory::{
        arena::{
            block::{Block, BlockInfo, BlockState},
            floor::{self, Floor},
            lock::Interrupted,
            scopes::Scopes,
            watched::Watched,
        },
        block_table::{BlockId, BlockTable, Record},
        compaction::layout::Layout,
        history::{EventKind, History, Note, block_number, pin_reason_code},
        provenance::{Execution, PinReason, Request, Timestamp},
        space::{
            index::Space,
            node::{End, NodeId, RegionId, SpanState},
        },
        stats::Stats,
        strategy::{
            broken::Broken,
            placement::{BlockPlace, Placed, Placement, Shortage},
        },
    },
    region::{AddressRange, Region},
    units::{Address, Bytes},
};

/// What a plan is made from. At most 24 bytes a node.
#[derive(Debug, Default)]
pub(super) struct PlanInput {
    pub(super) layout: Layout,
    /// The block of each node, if it may move, by the node's number.
    pub(super) blocks: Vec<Option<BlockId>>,
}

/// The last block that lay in each span, by the node's number: entering costs a store, leaving nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners(Vec<Option<BlockId>>);

impl Owners {
    #[inline(always)]
    pub(super) fn note(&mut self, place: BlockPlace, id: BlockId) {
        if let BlockPlace::Span(node) = place {
            match self.0.get_mut(node.index()) {
                Some(owner) => *owner = Some(id),
                None => self.grow(node, id),
            }
        }
    }

    #[cold]
    fn grow(&mut self, node: NodeId, id: BlockId) {
        self.0.resize(node.index() + 1, None);
        self.0[node.index()] = Some(id);
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) placement: Box<dyn Placement>,
    pub(super) table: BlockTable,
    pub(super) counters: Counters,
    pub(super) scratch: Floor,
    /// A compaction is under way: one at a time.
    pub(super) compacting: bool,
    /// The last plan's. Its memory serves the next: fresh pages cost a fifth of a plan.
    pub(super) input: PlanInput,
    pub(super) owners: Owners,
    pub(super) history: History,
    pub(super) scopes: Scopes,
    /// Calls of the device when its regions were looked at last.
    pub(super) device_calls: u64,
    /// A panic has interrupted a change.
    pub(super) is_broken: bool,
}

impl Interrupted for State {
    /// What is known of blocks is forgotten, so that no two can ever get the same memory. Neither the old books nor the
    /// regions are dropped: blocks lie in the regions.
    fn interrupted(&mut self) {
        let empty = Self::new(Box::new(Broken));
        std::mem::forget(std::mem::replace(self, Self { is_broken: true, ..empty }));
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) in_use: Bytes,
    pub(super) pending: Bytes,
    pub(super) slack: Bytes,
    pub(super) pending_blocks: u32,
    pub(super) peak_in_use: Bytes,
    /// The most used, `in_use` and `pending`, since [`State::note_used`] looked last.
    pub(super) most_used: Bytes,
    /// The same since `Arena::clear_peaks`, up to that look.
    pub(super) peak_used: Bytes,
    /// The same since `Arena::end_window`.
    pub(super) window_peak: Bytes,
    /// The same, less what was trimmed since: as much is resident, or less.
    pub(super) warm: Bytes,
    pub(super) peak_pool: Bytes,
    pub(super) num_allocs: u64,
    pub(super) largest_alloc: Bytes,
    pub(super) peak_reserved: Bytes,
    pub(super) compactions: u64,
    pub(super) migrations: u64,
    pub(super) moves: u64,
    pub(super) moved: Bytes,
    pub(super) longest_plan: Duration,
    pub(super) pinned: Bytes,
    pub(super) pinned_blocks: u32,
    /// Since the start, whatever `Arena::clear_peaks` clears.
    pub(super) allocated_total: Bytes,
    pub(super) allocations_before: u64,
    pub(super) peak_pinned: Bytes,
    pub(super) pinned_total: Bytes,
    pub(super) reserved_total: Bytes,
}

impl Counters {
    /// What live and retired blocks asked for.
    #[inline(always)]
    pub(super) fn used(&self) -> Bytes {
        self.in_use + self.pending
    }

    pub(super) fn unpin(&mut self, requested: Bytes) {
        self.pinned -= requested;
        self.pinned_blocks -= 1;
    }
}

impl State {
    /// That of an arena without blocks.
    pub(super) fn new(placement: Box<dyn Placement>) -> Self {
        Self {
            placement,
            table: BlockTable::default(),
            counters: Counters::default(),
            scratch: Floor::default(),
            compacting: false,
            input: PlanInput::default(),
            owners: Owners::default(),
            history: History::default(),
            scopes: Scopes::default(),
            device_calls: 0,
            is_broken: false,
        }
    }

    #[inline(always)]
    pub(super) fn attempt(&mut self, request: Request, backing: &Watched) -> Result<Block, Shortage> {
        let size = request.size;
        let placed = match self.placement.place(size, backing) {
            Err(_) if self.lower_floor() => self.placement.place(size, backing)?,
            placed => placed?,
        };
        self.counters.slack += placed.held - size;
        let id = self.enter(request, placed, None, backing);
        Ok(Block { id, address: placed.address, size })
    }

    /// Enters a block that has a place into the block table and the counters, but for its slack. It came at the time
    /// `at`; `None` is now.
    #[inline(always)]
    pub(super) fn enter(
        &mut self,
        request: Request,
        placed: Placed,
        at: Option<Timestamp>,
        backing: &Watched,
    ) -> BlockId {
        let size = request.size;
        let id = self.table.insert(request.record(placed.address, placed.place));
        self.owners.note(placed.place, id);
        let counters = &mut self.counters;
        counters.in_use += size;
        counters.num_allocs += 1;
        counters.allocated_total += size;
        counters.peak_in_use = counters.peak_in_use.max(counters.in_use);
        counters.most_used = counters.most_used.max(counters.used());
        counters.peak_pool = counters.peak_pool.max(self.placement.pool());
        counters.largest_alloc = counters.largest_alloc.max(size);
        if self.history.is_on() {
            self.note_allocation(id, placed.held, at, backing);
        }
        if self.scopes.exceeded(self.counters.in_use) {
            self.scopes.raise(self.counters.in_use, Bytes::ZERO, self.history.sequence(), request.provenance.run);
        }
        id
    }

    /// What has to change for room that retired blocks will make to be there no more: a block or scratch took a part of
    /// it, a region went, or the device refuses memory now. Blocks that end only add to it.
    pub(super) fn takings(&self, refused: bool) -> (u64, Bytes, Bytes, [bool; 2]) {
        let counters = &self.counters;
        let taken = counters.allocations_before + counters.num_allocs + counters.moves + counters.migrations;
        (taken, self.placement.pool(), self.scratch.bytes(), [refused, self.compacting])
    }

    /// The block that lies in a span of the index, and its record. O(1).
    pub(super) fn owner(&self, node: NodeId) -> Option<(BlockId, &Record)> {
        let id = (*self.owners.0.get(node.index())?)?;
        let record = self.table.get(id).filter(|record| record.place == BlockPlace::Span(node))?;
        Some((id, record))
    }

    pub(super) fn vacate(&mut self, id: BlockId, record: &Record) -> Option<Region> {
        let vacated = self.placement.vacate(record.place, record.state);
        let counters = &mut self.counters;
        if record.state == SpanState::Retired {
            counters.pending -= record.requested;
            counters.pending_blocks -= 1;
        } else {
            counters.in_use -= record.requested;
            if record.state == SpanState::Pinned {
                counters.unpin(record.requested);
            }
        }
        counters.slack -= vacated.held - record.requested;
        if self.history.is_on() {
            self.note_free(id, record, vacated.held, vacated.surplus.is_some());
        }
        vacated.surplus
    }

    pub(super) fn stats(&self, limit: Bytes) -> Stats {
        let counters = &self.counters;
        Stats {
            bytes_in_use: counters.in_use,
            pending_bytes: counters.pending,
            slack_bytes: counters.slack,
            free_bytes: self.placement.free(),
            pool_bytes: self.placement.pool(),
            peak_bytes_in_use: counters.peak_in_use,
            peak_used_bytes: counters.peak_used.max(counters.most_used),
            peak_pool_bytes: counters.peak_pool,
            num_allocs: counters.num_allocs,
            largest_alloc_size: counters.largest_alloc,
            live_blocks: u64::from(self.table.len() - counters.pending_blocks),
            pending_blocks: u64::from(counters.pending_blocks),
            largest_free_block: self.placement.largest_hole(),
            largest_request: self.placement.largest_request(),
            reserved_bytes: self.scratch.bytes(),
            peak_reserved_bytes: counters.peak_reserved,
            compactions: counters.compactions,
            migrations: counters.migrations,
            pinned_bytes: counters.pinned,
            pinned_blocks: u64::from(counters.pinned_blocks),
            moves: counters.moves,
            moved_bytes: counters.moved,
            longest_plan: counters.longest_plan,
            allocated_total: counters.allocated_total,
            freed_total: counters.allocated_total - counters.in_use - counters.pending,
            allocations_total: counters.allocations_before + counters.num_allocs,
            frees_total: counters.allocations_before + counters.num_allocs - u64::from(self.table.len()),
            peak_pinned_bytes: counters.peak_pinned,
            pinned_total: counters.pinned_total,
            reserved_total: counters.reserved_total,
            limit: match self.is_broken {
                true => limit,
                false => limit.min(self.placement.pool() + self.placement.growth()),
            },
        }
    }

    pub(super) fn begin_scratch(&mut self, bytes: Bytes) -> bool {
        self.keep_scratch(bytes, |space, region, floor| floor::keep(space, region, floor, bytes))
    }

    /// As [`Self::begin_scratch`], in any hole.
    pub(super) fn begin_scratch_anywhere(&mut self, bytes: Bytes) -> bool {
        self.keep_scratch(bytes, |space, _, floor| floor::keep_in_hole(space, floor, bytes, End::Low))
    }

    /// Keeps `bytes` for a program, in the span that `keep` makes in the place of the one that is kept. Whether it did.
    fn keep_scratch(
        &mut self,
        bytes: Bytes,
        keep: impl FnOnce(&mut Space, RegionId, Option<NodeId>) -> Option<NodeId>,
    ) -> bool {
        if bytes > self.scratch.bytes
            && let Some(region) = self.placement.bottom()
        {
            let floor = self.scratch.span;
            let space = self.placement.space_mut();
            let raised = space.and_then(|space| Some((keep(space, region, floor)?, space)));
            let Some((span, space)) = raised else { return false };
            let before = self.scratch.bytes;
            self.scratch.bytes = space.size(span);
            self.scratch.span = Some(span);
            self.counters.reserved_total += self.scratch.bytes.saturating_sub(before);
            self.note_scratch(before);
            self.counters.peak_reserved = self.counters.peak_reserved.max(self.scratch.bytes);
        }
        self.scratch.under_way.push((bytes, self.history.sequence()));
        true
    }

    /// Has those who want a peak of what was used take it up, and looks for the next from now on.
    pub(super) fn note_used(&mut self) {
        let counters = &mut self.counters;
        let used = counters.used();
        let most = std::mem::replace(&mut counters.most_used, used);
        counters.peak_used = counters.peak_used.max(most);
        counters.window_peak = counters.window_peak.max(most);
        counters.warm = counters.warm.max(most);
        self.scopes.note_used(most);
    }

    /// Counts that so many bytes of holes are not resident any more.
    pub(super) fn cool(&mut self, bytes: Bytes) {
        self.note_used();
        self.counters.warm = self.counters.warm.saturating_sub(bytes).max(self.counters.used());
    }

    /// Counts what is in use with the scratch of a program that is about to run.
    pub(super) fn note_launch(&mut self, scratch: Bytes, run: Execution) {
        let needed = self.counters.in_use + scratch;
        self.counters.peak_in_use = self.counters.peak_in_use.max(needed);
        let used = self.counters.used() + scratch;
        self.counters.peak_used = self.counters.peak_used.max(used);
        self.scopes.note_used(used);
        if self.scopes.exceeded(needed) {
            self.scopes.raise(needed, scratch, self.history.sequence(), run);
        }
    }

    /// Gives up what no program under way needs; whether that was anything.
    #[cold]
    pub(super) fn lower_floor(&mut self) -> bool {
        let needed = self.scratch.needed();
        let Some(span) = self.scratch.span else { return false };
        let Some(space) = self.placement.space_mut() else { return false };
        let before = self.scratch.bytes;
        if needed.is_zero() {
            // The region stays: the strategy keeps it whatever is in it.
            let _ = space.free(span);
            (self.scratch.span, self.scratch.bytes) = (None, Bytes::ZERO);
        } else {
            space.trim_span(span, needed);
            self.scratch.bytes = space.size(span);
        }
        self.note_scratch(before);
        self.scratch.bytes < before
    }
}

/// What happens, as the history has it.
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

    /// Notes something else about a block that takes `held` from the pool; its record is as it was before.
    #[inline(never)]
    pub(super) fn note_held(&mut self, kind: EventKind, id: BlockId, before: &Record, held: Bytes, other: u64) {
        self.history.note(Timestamp::now(), Note { other, ..of_block(kind, id, before, held) });
    }

    /// As [`Self::note_held`], for callers that do not know what the block takes.
    pub(super) fn note_block(&mut self, kind: EventKind, id: BlockId, before: &Record, other: u64) {
        if self.history.is_on() {
            self.note_held(kind, id, before, self.placement.held(before.place), other);
        }
    }

    pub(super) fn note_pin(&mut self, kind: EventKind, id: BlockId, before: &Record, why: PinReason) {
        self.note_block(kind, id, before, pin_reason_code(why));
    }

    /// Notes what is kept for scratch, and where, if that changed.
    pub(super) fn note_scratch(&mut self, before: Bytes) {
        let now = self.scratch.bytes();
        if self.history.is_on() && now != before {
            let address = self.scratch_region().map_or(Address::new(0), |kept| kept.address);
            let note = Note { other: before.get(), address, ..Note::new(EventKind::Scratch, now) };
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

impl Request {
    /// The request with another size, as it is placed.
    #[inline(always)]
    pub(super) fn record(self, address: Address, place: BlockPlace) -> Record {
        let Self { size, provenance } = self;
        Record { requested: size, address, place, state: SpanState::Live, provenance, pin: PinReason::default() }
    }
}
