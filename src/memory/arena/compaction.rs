//! Carrying a plan out.
//!
//! ```text
//!  plan     under the lock: input -> plan; the holes that it needs leave circulation
//!  move     without the lock: the caller copies the bytes of one move
//!  commit   under the lock: the block is at its new place, its old one is kept out of circulation too
//!  end      under the lock: all that was kept is free again, and the request that asked for it is served
//! ```
//!
//! What a plan moves must not change meanwhile: the caller makes sure that the blocks are neither used nor freed
//! between plan and commit, or drops the compaction, which undoes nothing and loses nothing. Other blocks come and go
//! as ever, in the holes that the plan does not need.

use std::{fmt, time::Instant};

use crate::{
    error::{Error, Result},
    memory::{
        arena::{
            block::Block,
            core::Arena,
            state::{PlanInput, State},
        },
        block_table::BlockId,
        compaction::{
            costs::Costs,
            layout::{Kind, Layout, Run},
            plan::{self, step::Plan},
        },
        history::EventKind,
        oom::OutOfMemory,
        provenance::{Request, Timestamp},
        space::{index::Space, moves::Holds, node::SpanState},
        strategy::placement::{BlockPlace, SmallBlock},
    },
    units::{Address, Bytes},
};

/// What a compaction is to achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A hole of so many bytes.
    Hole(Bytes),
    /// Nothing but scratch in the lowest so many bytes.
    Bottom(Bytes),
    /// As few holes as possible.
    Pack,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Less is free than was asked for.
    TooLittle {
        /// Bytes free.
        free: Bytes,
    },
    /// Enough is free, but blocks that cannot move divide it.
    Barriers {
        /// Bytes free.
        free: Bytes,
    },
    /// There is nothing to do: the block lies well, or the strategy does not move blocks.
    Nothing,
    /// Another compaction of this arena is under way; [`Arena::wait_for_compaction`] waits for its end.
    UnderWay,
}

/// One block to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The block.
    pub block: BlockId,
    /// Where its bytes are.
    pub from: Address,
    /// Where they go; the two places may overlap.
    pub to: Address,
    /// How many.
    pub size: Bytes,
}

/// A plan that is being carried out. Dropping it returns what it kept out of circulation; what was committed stays.
#[must_use = "dropping a compaction ends it"]
#[derive(Debug)]
pub struct Compaction<'a> {
    arena: &'a Arena,
    pub(super) moves: Vec<Move>,
    pub(super) places: Vec<Run>,
    committed: usize,
    pub(super) holds: Holds,
    pub(super) ended: bool,
    /// It makes way for a pin, not for a request.
    pub(super) for_pin: Option<BlockId>,
    began: Timestamp,
    moved: Bytes,
}

impl Arena {
    /// Plans how to reach `goal` by moving blocks that are live and `movable`, and keeps the holes for it out of
    /// circulation. O(n log n) in the number of blocks, with the lock.
    ///
    /// # Errors
    /// Why there is no plan; nothing changed then.
    pub fn plan(
        &self,
        goal: Goal,
        costs: &Costs,
        movable: &dyn Fn(BlockId) -> bool,
    ) -> Result<Compaction<'_>, Obstacle> {
        self.begin(None, |state, input| state.plan(goal, costs, movable, input))
    }

    /// Makes a plan and keeps what it needs out of circulation.
    pub(super) fn begin(
        &self,
        for_pin: Option<BlockId>,
        find: impl FnOnce(&mut State, &mut PlanInput) -> Result<Plan, Obstacle>,
    ) -> Result<Compaction<'_>, Obstacle> {
        let mut state = self.state.lock();
        if state.compacting {
            return Err(Obstacle::UnderWay);
        }
        let start = Instant::now();
        let mut input = std::mem::take(&mut state.input);
        let planned = find(&mut state, &mut input);
        let counters = &mut state.counters;
        counters.longest_plan = counters.longest_plan.max(start.elapsed());
        let mut compaction = Compaction::new(self);
        let prepared = planned.and_then(|plan| state.prepare(&mut compaction, &input, &plan).ok_or(Obstacle::Nothing));
        state.input = input;
        prepared?;
        (compaction.ended, compaction.for_pin) = (false, for_pin);
        state.compacting = true;
        Ok(compaction)
    }

    /// Waits until no compaction is under way, or `deadline`.
    pub fn wait_for_compaction(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.compacting {
            if Instant::now() >= deadline {
                return;
            }
            state = self.state.sleep(state, Some(deadline));
        }
    }
}

impl<'a> Compaction<'a> {
    /// An empty one. Until it is prepared it holds nothing, and returning what it holds takes the lock.
    pub(super) fn new(arena: &'a Arena) -> Self {
        Self {
            arena,
            moves: Vec::new(),
            places: Vec::new(),
            committed: 0,
            holds: Holds::default(),
            ended: true,
            for_pin: None,
            began: Timestamp::now(),
            moved: Bytes::ZERO,
        }
    }

    /// The moves, in the order in which they are to be made.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Says that the bytes of the next move have been moved.
    ///
    /// # Errors
    /// `INTERNAL` when the block is no longer where the plan found it; the compaction cannot go on then.
    pub fn commit(&mut self) -> Result<()> {
        let (Some(&next), Some(&place)) = (self.moves.get(self.committed), self.places.get(self.committed)) else {
            return Err(Error::internal("a compaction has no move left to commit"));
        };
        let state = &mut *self.arena.state.lock();
        let stale = || Error::internal(format!("block {} changed while it was moved", next.block));
        let record = state.table.get_mut(next.block).ok_or_else(stale)?;
        let (BlockPlace::Span(id), true) = (record.place, record.address == next.from) else { return Err(stale()) };
        let space = state.placement.space_mut().ok_or_else(stale)?;
        let moved = space.relocate(id, place, &mut self.holds).ok_or_else(stale)?;
        (record.place, record.address) = (BlockPlace::Span(moved), next.to);
        let now = *record;
        state.owners.note(now.place, next.block);
        state.note_block(EventKind::Move, next.block, &now, next.from.get());
        self.committed += 1;
        self.moved += next.size;
        match self.for_pin {
            // Those that make way for it are moved, and no more.
            Some(pinned) => state.counters.migrations += u64::from(next.block == pinned),
            None => state.counters.compactions += u64::from(self.committed == 1),
        }
        state.counters.moves += 1;
        state.counters.moved += next.size;
        Ok(())
    }

    /// Ends the compaction, and allocates what is asked for before another thread can.
    ///
    /// # Errors
    /// As [`Arena::allocate`].
    pub fn allocate(self, request: impl Into<Request>) -> Result<Block, OutOfMemory> {
        let request = request.into();
        self.finish(|state, arena| {
            let found = state.attempt(request, &arena.backing);
            found.map_err(|shortage| arena.out_of_memory(state, request.size, shortage))
        })
    }

    /// Ends the compaction, and does `then` before another thread can use the room.
    pub(super) fn finish<T>(mut self, then: impl FnOnce(&mut State, &'a Arena) -> T) -> T {
        let (result, surplus) = {
            let mut state = self.arena.state.lock();
            self.return_holes(&mut state);
            let result = then(&mut state, self.arena);
            let surplus = state.trim_surplus();
            self.arena.state.wake(&state);
            (result, surplus)
        };
        self.arena.release(surplus);
        result
    }

    fn return_holes(&mut self, state: &mut State) {
        self.ended = true;
        state.compacting = false;
        let emptied = state.placement.space_mut().map(|space| space.let_go(&mut self.holds)).unwrap_or_default();
        emptied.into_iter().for_each(|region| state.placement.emptied(region));
        if self.committed > 0 && self.for_pin.is_none() && state.history.is_on() {
            state.note_compaction(self.began, self.committed, self.moved);
        }
    }
}

impl Drop for Compaction<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let surplus = {
            let mut state = self.arena.state.lock();
            self.return_holes(&mut state);
            self.arena.state.wake(&state);
            state.trim_surplus()
        };
        self.arena.release(surplus);
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLittle { free } => write!(f, "only {free} is free"),
            Self::Barriers { free } => write!(f, "{free} is free, divided by blocks that cannot move"),
            Self::Nothing => write!(f, "there is nothing to move"),
            Self::UnderWay => write!(f, "another compaction is under way"),
        }
    }
}

impl State {
    fn plan(
        &mut self,
        goal: Goal,
        costs: &Costs,
        movable: &dyn Fn(BlockId) -> bool,
        input: &mut PlanInput,
    ) -> Result<Plan, Obstacle> {
        let Some(granule) = self.placement.space().map(Space::granule) else { return Err(Obstacle::Nothing) };
        let lacking = match goal {
            Goal::Hole(size) => size,
            Goal::Bottom(size) => size - size.min(self.scratch.bytes()),
            Goal::Pack => Bytes::ZERO,
        };
        let free = self.placement.free();
        let regrows = matches!(goal, Goal::Hole(size) if self.placement.fits_instead_of(size, free));
        // Ordinary blocks take less than slots do.
        if lacking > free && !regrows && (lacking > free + self.slack_of_slots(granule) || !self.dissolve_slots()) {
            return Err(Obstacle::TooLittle { free });
        }
        let free = self.placement.free();
        self.draw(input, movable).ok_or(Obstacle::Nothing)?;
        let mut plan = self.plan_on(&input.layout, goal, costs);
        if plan.is_none() && self.dissolve_slots() {
            self.draw(input, movable).ok_or(Obstacle::Nothing)?;
            plan = self.plan_on(&input.layout, goal, costs);
        }
        plan.ok_or(Obstacle::Barriers { free })
    }

    pub(super) fn draw(&self, input: &mut PlanInput, movable: &dyn Fn(BlockId) -> bool) -> Option<()> {
        let space = self.placement.space()?;
        let PlanInput { layout, blocks } = input;
        blocks.clear();
        blocks.resize(space.node_count(), None);
        for (id, record) in self.table.iter() {
            if let BlockPlace::Span(node) = record.place
                && record.state == SpanState::Live
                && movable(id)
            {
                blocks[node.index()] = Some(id);
            }
        }
        space.draw(blocks, layout);
        Some(())
    }

    fn plan_on(&self, layout: &Layout, goal: Goal, costs: &Costs) -> Option<Plan> {
        let space = self.placement.space()?;
        match goal {
            Goal::Hole(size) => self.plan_hole(layout, size, Bytes::ZERO, costs),
            Goal::Pack => Some(plan::pack(layout, costs)),
            Goal::Bottom(size) => {
                let bottom = space.bottom(self.placement.bottom()?, size)?;
                let kept = self.scratch.span().map_or(Run { size: 0, ..bottom }, |span| space.run(span));
                let (offset, size) = (kept.offset + kept.size, bottom.size.checked_sub(kept.size)?);
                let window = Run { offset, size, ..bottom };
                // What is kept elsewhere may go back to the bottom.
                let cleared = plan::clear(layout, window, costs);
                cleared.or_else(|| if kept.offset > 0 { plan::clear(layout, bottom, costs) } else { None })
            }
        }
    }

    /// A plan for a hole of `size`, under a limit that allows so much `more`.
    pub(super) fn plan_hole(&self, layout: &Layout, size: Bytes, more: Bytes, costs: &Costs) -> Option<Plan> {
        plan::open_hole(layout, self.placement.space()?.need(size)?, costs).or_else(|| {
            // No region has so much, or can: one that does comes in the place of those that can be emptied.
            let plan = plan::pack(layout, costs);
            let emptied = Bytes::new(plan.emptied(layout) << layout.granule_shift);
            (!plan.steps.is_empty() && self.placement.fits_instead_of(size, emptied + more)).then_some(plan)
        })
    }

    /// What the slots in use take beyond what ordinary blocks would.
    fn slack_of_slots(&self, granule: Bytes) -> Bytes {
        let slots = self.table.iter().filter(|(_, record)| matches!(record.place, BlockPlace::Slot(_)));
        let slack = slots.map(|(_, record)| {
            let span = record.requested.max(granule).checked_round_up(granule);
            span.and_then(|span| self.placement.held(record.place).checked_sub(span)).unwrap_or_default()
        });
        slack.sum()
    }

    /// Takes the regions to release out of the strategy.
    fn trim_surplus(&mut self) -> Vec<crate::memory::Region> {
        let surplus = self.placement.trim_surplus();
        self.note_surplus(&surplus);
        surplus
    }

    /// Makes ordinary blocks of those in slots, so that they can move too; whether there were any.
    fn dissolve_slots(&mut self) -> bool {
        let small = |place: BlockPlace, requested, state| match place {
            BlockPlace::Slot(slot) => Some(SmallBlock { slot, requested, state }),
            BlockPlace::Span(_) | BlockPlace::Mapping { .. } => None,
        };
        let records = self.table.iter().map(|(_, record)| record);
        let blocks: Vec<_> = records.filter_map(|record| small(record.place, record.requested, record.state)).collect();
        let held: Bytes = blocks.iter().map(|block| self.placement.held(BlockPlace::Slot(block.slot))).sum();
        let slots = self.table.iter().filter(|(_, record)| matches!(record.place, BlockPlace::Slot(_)));
        let sizes: Vec<_> = slots.map(|(id, record)| (id, self.placement.held(record.place))).collect();
        let extents = self.placement.free();
        let Some(spans) = self.placement.dissolve(&blocks) else { return false };
        let mut spans = spans.into_iter();
        for &(id, _) in &sizes {
            if let Some(span) = spans.next()
                && let Some(record) = self.table.get_mut(id)
            {
                record.place = BlockPlace::Span(span);
                self.owners.note(record.place, id);
                self.counters.slack += self.placement.held(record.place);
            }
        }
        self.counters.slack -= held;
        sizes.into_iter().for_each(|(id, before)| self.note_resized(id, before));
        !blocks.is_empty() || self.placement.free() != extents
    }

    /// Keeps out of circulation what `plan` needs, and writes its moves down.
    fn prepare(&mut self, compaction: &mut Compaction<'_>, input: &PlanInput, plan: &Plan) -> Option<()> {
        let spans = &input.layout.spans;
        let space = self.placement.space()?;
        for step in &plan.steps {
            let span = spans.get(step.span)?;
            let place = Run { region: step.region, offset: step.to, size: span.size };
            let node = span.node?;
            let (block, requested) = self.owner(node).map(|(block, record)| (block, record.requested))?;
            let (from, to) = (space.address(node), space.start(place));
            compaction.moves.push(Move { block, from, to, size: requested });
            compaction.places.push(place);
        }
        let space = self.placement.space_mut()?;
        let touched = compaction.places.iter().chain(plan.hole.as_ref());
        for place in touched {
            let first = spans.partition_point(|span| {
                (span.region, span.offset.saturating_add(span.size)) <= (place.region, place.offset)
            });
            let covered = spans[first..]
                .iter()
                .take_while(|span| span.region == place.region && span.offset < place.offset + place.size);
            for hole in covered.filter(|span| span.kind == Kind::Hole) {
                space.hold(hole.node?, &mut compaction.holds);
            }
        }
        Some(())
    }
}
