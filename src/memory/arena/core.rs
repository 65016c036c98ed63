//! The arena itself: allocation, retirement, freeing, trimming, and the numbers.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    memory::{
        arena::{
            block::{Block, BlockInfo, Ends},
            lock::{Guard, Lock},
            state::State,
            watched::Watched,
        },
        backing::{Backing, Strategy, release_or_log},
        block_table::BlockId,
        history::EventKind,
        oom::OutOfMemory,
        provenance::{Provenance, Request},
        space::node::{MIN_GRANULE, SpanState},
        stats::Stats,
        strategy::{
            growing::Growing,
            placement::{Placement, Shortage},
            platform::Platform,
            preallocate::Preallocate,
        },
    },
    region::{AddressRange, Region},
    units::Bytes,
};

/// All memory of one device. See the module above for a block's life.
#[derive(Debug)]
pub struct Arena {
    pub(super) name: Arc<str>,
    pub(super) strategy: Strategy,
    pub(super) limit: Bytes,
    pub(super) backing: Watched,
    pub(super) state: Lock<State>,
    /// Whether small blocks have slots.
    pub(super) has_slots: bool,
    /// Whether large blocks have colours.
    pub(super) has_colours: bool,
    /// How often a waiting allocation computed whether retired blocks will make room.
    #[cfg(test)]
    pub(in crate::memory) predictions: std::sync::atomic::AtomicUsize,
}

/// What [`Arena::lock`] gives: no operation of the arena is under way while it lives.
#[must_use]
pub struct ArenaGuard<'a> {
    _guard: Guard<'a, State>,
}

impl fmt::Debug for ArenaGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaGuard").finish_non_exhaustive()
    }
}

impl Arena {
    /// An arena called `name` that takes at most `limit` from `backing`; nothing is taken yet.
    ///
    /// The limit is rounded down to the device's granularity.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when nothing remains of the limit, or the granularity is no power of two from 256 bytes on.
    pub fn new(name: String, strategy: Strategy, limit: Bytes, backing: Box<dyn Backing>) -> Result<Self> {
        let backing = Watched::new(backing);
        let granularity = backing.granularity();
        if !granularity.get().is_power_of_two() || granularity < MIN_GRANULE {
            return Err(Error::invalid_argument(format!(
                "arena `{name}`: the device's granularity is {} bytes; allowed are powers of two from {MIN_GRANULE} on",
                granularity.get()
            )));
        }
        let asked = limit;
        let limit = limit.round_down(granularity);
        if limit.is_zero() {
            return Err(Error::invalid_argument(format!(
                "arena `{name}`: the limit is {} bytes; allowed is {granularity} or more, the device's granularity",
                asked.get()
            )));
        }
        let placement: Box<dyn Placement> = match strategy {
            Strategy::Preallocate | Strategy::Tpu => Box::new(Preallocate::new(limit)),
            Strategy::Growing => Box::new(Growing::new(limit, granularity)),
            Strategy::Platform => Box::new(Platform::new(limit, granularity)),
        };
        let mut state = State::new(placement);
        if strategy == Strategy::Tpu {
            let refused = |shortage: Shortage| shortage.refusal.unwrap_or_else(|| Error::internal("no region"));
            state.placement.take_up_front(&backing).map_err(refused)?;
            state.counters.peak_pool = state.placement.pool();
        }
        Ok(Self::of_state(name.into(), state, (strategy, limit), backing))
    }

    pub(super) fn of_state(
        name: Arc<str>,
        state: State,
        (strategy, limit): (Strategy, Bytes),
        backing: Watched,
    ) -> Self {
        Self {
            name,
            strategy,
            limit,
            backing,
            state: Lock::new(state),
            has_slots: true,
            has_colours: false,
            #[cfg(test)]
            predictions: Default::default(),
        }
    }

    /// Gives small blocks a place among the others from here on: what lies in slots is moved only where nothing else
    /// helps. To be said before the first allocation; blocks in slots stay there.
    pub fn use_no_slots(&mut self) {
        self.has_slots = false;
        self.state.get_mut().placement.use_no_slots();
    }

    /// Lets a preallocated region lay out large blocks for a processor's caches: behind each of 4 MiB and more, up to a
    /// 64th of the limit, 32 KiB stay unused (as slack) while there is room. For memory that a processor reads; to be
    /// said before the first allocation.
    pub fn use_colours(&mut self) {
        self.has_colours = true;
        self.state.get_mut().placement.use_colours();
    }

    /// The name given to [`Self::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The strategy given to [`Self::new`].
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The limit, rounded as [`Self::new`] says.
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// Takes what is asked for, a size or a [`Request`]; for zero bytes too, the address is the block's own. O(1) but
    /// for the device's part.
    ///
    /// # Errors
    /// The numbers of this instant, when there is no room; it does not wait.
    #[inline]
    pub fn allocate(&self, request: impl Into<Request>) -> Result<Block, OutOfMemory> {
        self.allocate_now(request.into())
    }

    fn allocate_now(&self, request: Request) -> Result<Block, OutOfMemory> {
        let mut state = self.state.lock();
        state.attempt(request, &self.backing).map_err(|shortage| self.out_of_memory(&state, request.size, shortage))
    }

    /// Like [`Self::allocate`]; where the room would come from retired blocks, or from scratch of programs under way
    /// beyond the caller's `own_scratch`, waits for them, at most `timeout`.
    ///
    /// Whether they would help is computed, not guessed: they are joined with the holes beside them (and whole regions
    /// with the limit). If the request does not fit even then, the error comes at once; if it would, but another thread
    /// takes the room, likewise. It is computed, O(blocks), again only once something has taken room, and for half of
    /// the time at most: that is under the lock.
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub fn allocate_waiting(
        &self,
        request: impl Into<Request>,
        own_scratch: Bytes,
        timeout: Duration,
    ) -> Result<Block, OutOfMemory> {
        let request = request.into();
        let size = request.size;
        let mut state = self.state.lock();
        // A timeout that the clock cannot hold is no bound at all.
        let mut deadline = None;
        // What the last prediction was made from, and when the next may be made.
        let mut predicted = None;
        loop {
            let shortage = match state.attempt(request, &self.backing) {
                Ok(block) => return Ok(block),
                Err(shortage) => shortage,
            };
            let now = Instant::now();
            let deadline = *deadline.get_or_insert_with(|| now.checked_add(timeout));
            let refused = shortage.refusal.is_some();
            let mut until = deadline;
            match predicted {
                Some((from, _)) if from == state.takings(refused) => {}
                Some((_, next)) if now < next => until = Some(deadline.map_or(next, |deadline| deadline.min(next))),
                _ if self.would_end(&state, size, (own_scratch, refused)) => {
                    let took = now.elapsed();
                    predicted = Some((state.takings(refused), now + 2 * took));
                    #[cfg(test)]
                    self.predictions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                _ => return Err(self.out_of_memory(&state, size, shortage)),
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(self.out_of_memory(&state, size, shortage));
            }
            state = self.state.sleep(state, until);
        }
    }

    /// Notes that the owner of a live block let go while the device may still use its bytes. O(1).
    ///
    /// # Errors
    /// `NOT_FOUND` for a stale or unknown id, `FAILED_PRECONDITION` for a block that is retired already.
    pub fn retire(&self, id: BlockId) -> Result<()> {
        self.retire_as(id, None)
    }

    /// As [`Self::retire`], of a block whose provenance has changed since it was allocated: a program took it over, or
    /// wrote it anew.
    ///
    /// # Errors
    /// As [`Self::retire`].
    pub fn retire_as(&self, id: BlockId, provenance: Option<Provenance>) -> Result<()> {
        let state = &mut *self.state.lock();
        let Some(record) = state.table.get_mut(id) else { return self.missing(id, state.is_broken) };
        if record.state == SpanState::Retired {
            let name = &self.name;
            return Err(Error::failed_precondition(format!("arena `{name}`: block {id} is retired already")));
        }
        if record.state == SpanState::Pinned {
            state.counters.unpin(record.requested);
        }
        if let Some(provenance) = provenance {
            record.provenance = record.provenance.updated(provenance);
        }
        let before = *record;
        record.state = SpanState::Retired;
        let held = state.placement.retire(before.place);
        state.counters.in_use -= before.requested;
        state.counters.pending += before.requested;
        state.counters.pending_blocks += 1;
        if state.history.is_on() {
            state.note_held(EventKind::Retire, id, &before, held, 0);
        }
        Ok(())
    }

    /// Frees a live or retired block. O(1) but for the device's part, which runs without the lock.
    ///
    /// # Errors
    /// `NOT_FOUND` for a stale or unknown id; nothing changes then.
    pub fn free(&self, id: BlockId) -> Result<()> {
        self.free_as(id, None)
    }

    /// As [`Self::free`], of a block as for [`Self::retire_as`].
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_as(&self, id: BlockId, provenance: Option<Provenance>) -> Result<()> {
        let mut state = self.state.lock();
        let Some(mut record) = state.table.remove(id) else { return self.missing(id, state.is_broken) };
        if let Some(provenance) = provenance {
            record.provenance = record.provenance.updated(provenance);
        }
        let surplus = state.vacate(id, &record);
        match surplus {
            None => self.state.wake(&state),
            Some(region) => {
                drop(state);
                self.release([region]);
            }
        }
        Ok(())
    }

    /// Releases every wholly empty region to the device, and returns their sum. Only `growing` keeps such regions.
    pub fn trim(&self) -> Bytes {
        let surplus = {
            let mut state = self.state.lock();
            let surplus = state.placement.trim();
            state.note_surplus(&surplus);
            surplus
        };
        let released = surplus.iter().map(|region| region.bytes).sum();
        self.release(surplus);
        released
    }

    /// Calls `discard` with the memory behind the holes, piece by piece, and returns the sum of its answers. Pieces
    /// have at most 64 MiB, because the arena is locked while `discard` runs; blocks come and go between them.
    /// O(blocks), and O(1) a piece.
    pub fn discard_holes(&self, mut discard: impl FnMut(AddressRange) -> Bytes) -> Bytes {
        const PIECE: Bytes = Bytes::mib(64);
        let mut discarded = Bytes::ZERO;
        let holes: Vec<_> =
            self.state.lock().placement.space().map(|space| space.holes().collect()).unwrap_or_default();
        for (id, whole) in holes {
            let mut from = whole.address;
            loop {
                let mut state = self.state.lock();
                // It may have been taken since, or a part of it.
                let Some(hole) = state.placement.space().and_then(|space| space.hole(id)) else { break };
                let (start, end) = (hole.address.max(from), hole.address + hole.bytes);
                if start >= end {
                    break;
                }
                // Pieces end where pages do, so that none is cut in two.
                let piece = Bytes::new(start.get() + 1).checked_round_up(PIECE).unwrap_or(Bytes::MAX);
                let bytes = (end - start).min(piece - Bytes::new(start.get()));
                let went = discard(AddressRange { address: start, bytes });
                state.cool(went);
                discarded += went;
                from = start + bytes;
            }
        }
        discarded
    }

    /// Bytes of the regions that [`Self::trim`] would release. O(extents).
    pub fn empty(&self) -> Bytes {
        self.state.lock().placement.empty()
    }

    /// Where programs' scratch is kept.
    pub fn scratch(&self) -> Option<AddressRange> {
        self.state.lock().scratch_region()
    }

    /// The numbers of this instant. O(1) but for the largest hole (see [`Stats::largest_free_block`]), which looks
    /// through the holes of one size class, and for the regions of `growing`.
    pub fn stats(&self) -> Stats {
        self.state.lock().stats(self.limit)
    }

    /// Sizes asked for, summed over retired blocks: [`Stats::pending_bytes`]. O(1).
    pub fn pending(&self) -> Bytes {
        self.state.lock().counters.pending
    }

    /// Waits for the operation under way, and keeps off others while the value lives.
    pub fn lock(&self) -> ArenaGuard<'_> {
        ArenaGuard { _guard: self.state.lock() }
    }

    /// What an allocation that found no room looks at to see whether anything has ended since. O(1).
    pub fn ends(&self) -> Ends {
        let state = self.state.lock();
        let counters = &state.counters;
        Ends {
            frees: counters.allocations_before + counters.num_allocs - u64::from(state.table.len()),
            pending: counters.pending,
            pinned: counters.pinned,
            scratch: state.scratch.bytes(),
        }
    }

    /// Starts the peaks over, as XLA's `ClearStats` does: peaks become what is in use, the number of allocations and
    /// the largest one become zero. What is kept for scratch and no program uses is given up before.
    pub fn clear_peaks(&self) {
        let mut state = self.state.lock();
        if state.lower_floor() {
            self.state.wake(&state);
        }
        let state = &mut *state;
        state.counters.peak_in_use = state.counters.in_use;
        state.note_used();
        state.counters.peak_used = state.counters.used();
        state.counters.peak_pool = state.placement.pool();
        state.counters.allocations_before += std::mem::take(&mut state.counters.num_allocs);
        state.counters.peak_pinned = state.counters.pinned;
        state.counters.largest_alloc = Bytes::ZERO;
        state.counters.peak_reserved = state.scratch.bytes();
    }

    /// All blocks, in no order. O(blocks ever held at once).
    pub fn blocks(&self) -> Vec<BlockInfo> {
        self.state.lock().blocks().collect()
    }

    /// All regions held from the device but those on their way back, in no order. O(regions and blocks).
    pub fn regions(&self) -> Vec<AddressRange> {
        self.state.lock().regions()
    }

    /// Threads that wait in [`Self::allocate_waiting`] now.
    #[cfg(test)]
    pub(in crate::memory) fn waiters(&self) -> u32 {
        self.state.sleepers()
    }

    pub(super) fn release(&self, surplus: impl IntoIterator<Item = Region>) {
        for region in surplus {
            let bytes = region.bytes;
            release_or_log(&self.backing, region);
            let mut state = self.state.lock();
            state.placement.released(bytes);
            self.state.wake(&state);
        }
    }

    /// What a call that ends something answers where there is no such block: an arena that a panic has interrupted
    /// knows none of its blocks, and keeps their memory.
    #[cold]
    pub(super) fn missing(&self, id: BlockId, is_broken: bool) -> Result<()> {
        if is_broken { Ok(()) } else { Err(self.unknown(id)) }
    }

    #[cold]
    pub(super) fn unknown(&self, id: BlockId) -> Error {
        Error::not_found(format!("arena `{}`: block {id} is unknown or was freed before", self.name))
    }

    pub(super) fn out_of_memory(&self, state: &State, requested: Bytes, shortage: Shortage) -> OutOfMemory {
        let stats = state.stats(self.limit);
        OutOfMemory {
            arena: self.name.clone(),
            strategy: self.strategy,
            requested,
            in_use: stats.bytes_in_use,
            pending: stats.pending_bytes,
            slack: stats.slack_bytes,
            free: stats.free_bytes,
            largest_hole: stats.largest_free_block,
            largest_request: stats.largest_request,
            reserved: stats.reserved_bytes,
            growth: state.placement.growth(),
            limit: self.limit,
            is_scratch: false,
            story: None,
            refusal: shortage.refusal.map(Box::new),
        }
    }
}

impl Drop for Arena {
    /// Releases every region, blocks that still live included: without the arena their ids mean nothing.
    fn drop(&mut self) {
        let regions = self.state.get_mut().placement.take_all();
        regions.into_iter().for_each(|region| release_or_log(&self.backing, region));
    }
}
