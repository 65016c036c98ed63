//! Pins: a block whose address an outsider holds does not move.
//!
//! ```text
//!  before a pin   |  a  |  B  | c |     hole     | # |      `#` is pinned, and `B` is about to be
//!  after it       |  a  |     | c |        |  B  | # |      those that move keep their memory whole
//! ```

use crate::{
    error::Result,
    memory::{
        arena::{
            compaction::{Compaction, Move, Obstacle},
            core::Arena,
            state::{PlanInput, State},
        },
        block_table::BlockId,
        compaction::{
            costs::Costs,
            layout::Layout,
            plan::{self, step::Plan},
        },
        history::EventKind,
        provenance::PinReason,
        space::{
            around::Around,
            node::{NodeId, SpanState},
        },
        strategy::placement::BlockPlace,
    },
    units::Bytes,
};

/// The largest block that is moved out of the way before its address is given out: 0.2 ms at 20 GB/s.
pub const PIN_BYTES: Bytes = Bytes::mib(4);
/// The cost of moving other blocks out of its way, by the planner's estimate: as much again.
pub const PIN_NANOS: u64 = 400_000;

impl Arena {
    /// Plans to move a live block out of the way of those that move, to the upper end of its region, because it is
    /// about to be pinned. O(1): only the region's highest spans are looked at.
    ///
    /// # Errors
    /// [`Obstacle::Nothing`] when it lies well, or no better place was found.
    pub fn plan_pin(&self, id: BlockId) -> Result<Compaction<'_>, Obstacle> {
        let mut state = self.state.lock();
        if state.compacting {
            return Err(Obstacle::UnderWay);
        }
        let mut compaction = Compaction::new(self);
        state.prepare_pin(&mut compaction, id).ok_or(Obstacle::Nothing)?;
        (compaction.ended, compaction.for_pin) = (false, Some(id));
        state.compacting = true;
        Ok(compaction)
    }

    /// As [`Self::plan_pin`], where other blocks that are live and `movable` make way: in all at no more than `most`
    /// nanoseconds by `costs`. O(log n) in the number of blocks, with the lock: only spans around the block and around
    /// a few places for it are looked at.
    ///
    /// # Errors
    /// As [`Self::plan_pin`].
    pub fn plan_pin_making_way(
        &self,
        id: BlockId,
        costs: &Costs,
        most: u64,
        movable: &dyn Fn(BlockId) -> bool,
    ) -> Result<Compaction<'_>, Obstacle> {
        self.begin(Some(id), |state, input| {
            state.order_pins();
            state.plan_pin_making_way(id, costs, most, movable, input).ok_or(Obstacle::Nothing)
        })
    }

    /// Whether a live block would divide the memory of those that move if it were pinned where it lies. O(1).
    pub fn stands_amid(&self, id: BlockId) -> bool {
        self.state.lock().span_amid(id).is_some()
    }

    /// Says that an outsider holds the address of a live block: it does not move until [`Self::unpin`]. O(1).
    ///
    /// # Errors
    /// `NOT_FOUND` for a stale or unknown id.
    pub fn pin(&self, id: BlockId) -> Result<()> {
        self.pin_because(id, PinReason::default())
    }

    /// As [`Self::pin`], with a reason for reports. O(1).
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub fn pin_because(&self, id: BlockId, why: PinReason) -> Result<()> {
        self.set_pinned(id, SpanState::Live, SpanState::Pinned, why)
    }

    /// Takes back what [`Self::pin`] said. O(1).
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub fn unpin(&self, id: BlockId) -> Result<()> {
        self.set_pinned(id, SpanState::Pinned, SpanState::Live, PinReason::default())
    }

    fn set_pinned(&self, id: BlockId, from: SpanState, to: SpanState, why: PinReason) -> Result<()> {
        let state = &mut *self.state.lock();
        let Some(record) = state.table.get_mut(id) else { return self.missing(id, state.is_broken) };
        if record.state != from {
            return Ok(());
        }
        let before = *record;
        (record.state, record.pin) = (to, why);
        let counters = &mut state.counters;
        if to == SpanState::Pinned {
            counters.pinned += before.requested;
            counters.pinned_blocks += 1;
            counters.pinned_total += before.requested;
            counters.peak_pinned = counters.peak_pinned.max(counters.pinned);
        } else {
            counters.unpin(before.requested);
        }
        if let (BlockPlace::Span(span), Some(space)) = (before.place, state.placement.space_mut()) {
            if to == SpanState::Pinned { space.pin(span) } else { space.unpin(span) }
        }
        match to {
            SpanState::Pinned => state.note_pin(EventKind::Pin, id, &before, why),
            _ => state.note_pin(EventKind::Unpin, id, &before, before.pin),
        }
        Ok(())
    }
}

impl State {
    /// The span of a live block that does not lie well for a pinned one.
    fn span_amid(&self, id: BlockId) -> Option<NodeId> {
        // In a pool of many regions the best place may be in another one, which could then never be released.
        self.placement.bottom()?;
        let record = self.table.get(id)?;
        let (BlockPlace::Span(span), SpanState::Live) = (record.place, record.state) else { return None };
        (!self.placement.space()?.lies_beside_pinned(span)).then_some(span)
    }

    fn order_pins(&mut self) {
        if let Some(space) = self.placement.space_mut() {
            space.order_pins();
        }
    }

    fn plan_pin_making_way(
        &self,
        id: BlockId,
        costs: &Costs,
        most: u64,
        movable: &dyn Fn(BlockId) -> bool,
        input: &mut PlanInput,
    ) -> Option<Plan> {
        let around = self.draw_around(id, movable, &mut input.layout)?;
        plan::pin(&input.layout, around.block, &around.ends, costs).filter(|plan| plan.cost <= most)
    }

    /// Draws what is around the possible places of a live block that does not lie well for a pinned one.
    fn draw_around(&self, id: BlockId, movable: &dyn Fn(BlockId) -> bool, layout: &mut Layout) -> Option<Around> {
        layout.spans.clear();
        let span = self.span_amid(id)?;
        let moves = |node| {
            let owner = self.owner(node).filter(|(_, record)| record.state == SpanState::Live);
            owner.is_some_and(|(other, _)| other == id || movable(other))
        };
        self.placement.space()?.draw_around(span, &moves, layout)
    }

    fn prepare_pin(&mut self, compaction: &mut Compaction<'_>, id: BlockId) -> Option<()> {
        let record = *self.table.get(id)?;
        let (BlockPlace::Span(span), SpanState::Live) = (record.place, record.state) else { return None };
        let space = self.placement.space_mut()?;
        let (hole, place) = space.pinned_end(span)?;
        space.hold(hole, &mut compaction.holds);
        let to = space.start(place);
        compaction.moves.push(Move { block: id, from: record.address, to, size: record.requested });
        compaction.places.push(place);
        Some(())
    }
}
