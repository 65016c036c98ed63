//! What the arena's lock guards, and the steps that change it: a block is entered, a block is removed.

use std::time::Duration;

use crate::{
    memory::{
        Region, Stats,
        arena::{
            Block, compaction,
            recording::{Scopes, Watched},
            scratch,
        },
        block_table::{BlockId, BlockTable, Record},
        history::History,
        provenance::{Request, Timestamp},
        space::SpanState,
        strategy::{Placed, Placement, Shortage},
    },
    units::Bytes,
};

#[derive(Debug)]
pub(super) struct State {
    pub(super) placement: Box<dyn Placement>,
    pub(super) table: BlockTable,
    pub(super) counters: Counters,
    pub(super) scratch: scratch::Floor,
    /// A compaction is under way: one at a time.
    pub(super) compacting: bool,
    /// The last plan's. Its memory serves the next: fresh pages cost a fifth of a plan.
    pub(super) input: compaction::PlanInput,
    pub(super) waiters: u32,
    pub(super) history: History,
    pub(super) scopes: Scopes,
    /// Calls of the device when its regions were looked at last.
    pub(super) device_calls: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) in_use: Bytes,
    pub(super) pending: Bytes,
    pub(super) slack: Bytes,
    pub(super) pending_blocks: u32,
    pub(super) peak_in_use: Bytes,
    /// The highest sum of `in_use` and `pending` since [`Arena::end_window`].
    pub(super) window_peak: Bytes,
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
    /// Since the start, whatever [`Arena::clear_peaks`] clears.
    pub(super) allocated_total: Bytes,
    pub(super) allocations_before: u64,
    pub(super) peak_pinned: Bytes,
    pub(super) pinned_total: Bytes,
    pub(super) reserved_total: Bytes,
}

impl Counters {
    pub(super) fn unpin(&mut self, requested: Bytes) {
        self.pinned -= requested;
        self.pinned_blocks -= 1;
    }
}

impl State {
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
        let counters = &mut self.counters;
        counters.in_use += size;
        counters.num_allocs += 1;
        counters.allocated_total += size;
        counters.peak_in_use = counters.peak_in_use.max(counters.in_use);
        counters.window_peak = counters.window_peak.max(counters.in_use + counters.pending);
        counters.peak_pool = counters.peak_pool.max(self.placement.pool());
        counters.largest_alloc = counters.largest_alloc.max(size);
        if self.history.is_on() {
            self.note_allocation(id, placed.held, at, backing);
        }
        if self.scopes.exceeded(self.counters.in_use) {
            self.scopes.raise(self.counters.in_use, self.history.sequence());
        }
        id
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
            limit,
        }
    }
}
