//! What would find room, if something were otherwise: computed on copies of the books, while nothing changes.
//!
//! ```text
//!  would_fit        retired blocks, and others, are gone
//!  would_come       blocks move
//!  imagined_after   the same, to look further from there
//! ```
//!
//! So what an error of exhausted memory advises was tried before it is said, and what cannot help is not begun. Under
//! which limit there would be room is another file's (`least_limit`).

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    error::Error,
    memory::{
        arena::{
            block::{Block, BlockInfo},
            compaction::Goal,
            core::Arena,
            rehearsal::{Needs, Rehearsal},
            state::State,
            watched::Watched,
        },
        backing::release_or_log,
        block_table::BlockId,
        compaction::costs::Costs,
        imagined::Imagined,
        oom::OutOfMemory,
        provenance::Request,
        space::node::SpanState,
        strategy::placement::Shortage,
    },
    units::Bytes,
};

/// What moving costs, and the blocks that may move.
pub type MayMove<'a> = (&'a Costs, &'a dyn Fn(BlockId) -> bool);

/// The numbers of an allocation that found no room, and the blocks that were there: of one instant.
#[derive(Clone, Debug)]
pub struct Exhaustion {
    /// The numbers.
    pub numbers: Box<OutOfMemory>,
    /// The blocks, in no order.
    pub blocks: Vec<BlockInfo>,
}

impl Arena {
    /// As [`Self::allocate`], for the last time.
    ///
    /// # Errors
    /// The numbers and the blocks. O(blocks).
    pub fn allocate_at_last(&self, request: Request) -> Result<Block, Exhaustion> {
        let mut state = self.state.lock();
        let found = state.attempt(request, &self.backing);
        found.map_err(|shortage| self.with_blocks(&state, self.out_of_memory(&state, request.size, shortage)))
    }

    /// As [`Self::begin_scratch_anywhere`], for the last time.
    ///
    /// # Errors
    /// The numbers and the blocks. O(blocks).
    pub fn begin_scratch_at_last(&self, bytes: Bytes) -> Result<(), Exhaustion> {
        let mut state = self.state.lock();
        if state.begin_scratch(bytes) || state.begin_scratch_anywhere(bytes) {
            return Ok(());
        }
        Err(self.with_blocks(&state, self.no_scratch(&state, bytes)))
    }

    /// The numbers and the blocks of this instant, for a request whose block the device could not fill with memory,
    /// because of `refusal`.
    #[cold]
    pub fn refused(&self, requested: Bytes, refusal: Error) -> OutOfMemory {
        let state = self.state.lock();
        self.out_of_memory(&state, requested, Shortage { refusal: Some(refusal) })
    }

    /// The numbers and the blocks of this instant, for a request that the device has refused, if it has. O(blocks).
    pub fn exhaustion(&self, requested: Bytes, refusal: Option<Box<Error>>) -> Exhaustion {
        let state = self.state.lock();
        let shortage = Shortage { refusal: refusal.map(|refusal| *refusal) };
        self.with_blocks(&state, self.out_of_memory(&state, requested, shortage))
    }

    /// Whether `needs` would find room if all retired blocks, and those that `goes` names, were freed, nothing else
    /// changing but what `moves`. Scratch that no program under way needs makes room. O(blocks) where nothing moves.
    pub fn would_fit(&self, needs: &Needs, goes: &dyn Fn(BlockId) -> bool, moves: Option<MayMove<'_>>) -> bool {
        fits_after(&self.imagined(), needs, goes, moves)
    }

    /// As [`Self::would_fit`], where arguments come first: those for which there is room before anything goes.
    pub fn would_fit_in_turn(&self, needs: &Needs, goes: &dyn Fn(BlockId) -> bool, moves: Option<MayMove<'_>>) -> bool {
        let copy = self.imagined();
        let come = needs.arguments.iter().map_while(|&size| Some(copy.allocate(size).ok()?.id));
        let come: FxHashSet<BlockId> = come.collect();
        let rest = Needs { arguments: needs.arguments[come.len()..].to_vec(), ..needs.clone() };
        fits_after(&copy, &rest, &|block| goes(block) && !come.contains(&block), moves)
    }

    /// Whether `needs` would find room where blocks may move at these costs that are live and `movable`. How many
    /// bytes would move; `None` if there is no room. Retired blocks stay. Where not all arrays find room one after the
    /// other, those that are the call's own are freed, and the `whole` of the call looks for a hole for all of its
    /// arrays. O(n log n) for n blocks and each array.
    pub fn would_come(
        &self,
        (needs, whole): (&Needs, Option<(&Needs, &[BlockId])>),
        costs: &Costs,
        movable: &dyn Fn(BlockId) -> bool,
    ) -> Option<Bytes> {
        Rehearsal::new(&self.imagined(), Some(costs)).fits((needs, whole), movable)
    }

    /// The arena, imagined, as it would be after the moves for `goal` of blocks that are `movable`; `None` if there is
    /// no plan. O(n log n) for n blocks.
    pub fn imagined_after(&self, goal: Goal, costs: &Costs, movable: &dyn Fn(BlockId) -> bool) -> Option<Self> {
        let copy = self.imagined();
        drop(Rehearsal::new(&copy, Some(costs)).compact(goal, movable)?);
        Some(copy)
    }

    /// Whether a block of `size` would come once all retired blocks are freed, and no program under way needs scratch
    /// but for so much of its `own`; where the device has `refused` memory, of what is released to it then. Only the
    /// strategy's books are copied: threads that wait ask again and again.
    pub(super) fn would_end(&self, state: &State, size: Bytes, (own, refused): (Bytes, bool)) -> bool {
        let left = if refused { state.placement.leaving() } else { Imagined::ALL };
        let device = Imagined::like(&self.backing, left);
        let mut placement = state.placement.copy(&device);
        for (_, record) in state.table.iter().filter(|(_, record)| record.state == SpanState::Retired) {
            if let Some(region) = placement.vacate(record.place, record.state).surplus {
                placement.released(region.bytes);
                release_or_log(&device, region);
            }
        }
        match state.scratch.span.zip(placement.space_mut()) {
            Some((span, space)) if !own.is_zero() => space.trim_span(span, own),
            // The region stays, as where scratch is given up.
            Some((span, space)) => _ = space.free(span),
            None => {}
        }
        placement.place(size, &device).is_ok()
    }

    /// The same arena on a device that is imagined, and has all memory there could be. O(blocks).
    pub fn imagined(&self) -> Self {
        let device = Imagined::like(&self.backing, Imagined::ALL);
        let state = self.state.lock().copy(&device);
        Self::of_state(Arc::clone(&self.name), state, (self.strategy, self.limit), Watched::new(Box::new(device)))
    }

    /// The numbers of this instant, for scratch.
    pub(super) fn no_scratch(&self, state: &State, bytes: Bytes) -> OutOfMemory {
        OutOfMemory { is_scratch: true, ..self.out_of_memory(state, bytes, Shortage { refusal: None }) }
    }

    fn with_blocks(&self, state: &State, numbers: OutOfMemory) -> Exhaustion {
        Exhaustion { numbers: Box::new(numbers), blocks: state.blocks().collect() }
    }
}

impl State {
    /// The same blocks in the same places, on another device. Who looks, what was noted, and what is under way stay
    /// with the original.
    fn copy(&self, device: &Imagined) -> Self {
        Self {
            table: self.table.clone(),
            counters: self.counters.clone(),
            scratch: self.scratch.clone(),
            owners: self.owners.clone(),
            is_broken: self.is_broken,
            ..Self::new(self.placement.copy(device))
        }
    }
}

/// Whether `needs` find room in an arena that nobody uses, once what `goes` has gone.
fn fits_after(arena: &Arena, needs: &Needs, goes: &dyn Fn(BlockId) -> bool, moves: Option<MayMove<'_>>) -> bool {
    let movable = |block| moves.is_some_and(|(_, movable)| movable(block));
    let rehearsal = Rehearsal::new(arena, moves.map(|(costs, _)| costs));
    free_all(arena, goes) && rehearsal.fits((needs, None), &movable).is_some()
}

/// Frees retired blocks, and those that `goes` names.
fn free_all(arena: &Arena, goes: &dyn Fn(BlockId) -> bool) -> bool {
    let going: Vec<BlockId> = {
        let state = arena.state.lock();
        let blocks = state.table.iter();
        blocks.filter(|&(id, record)| record.state == SpanState::Retired || goes(id)).map(|(id, _)| id).collect()
    };
    going.into_iter().all(|id| arena.free(id).is_ok())
}
