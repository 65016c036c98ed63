//! The least limit under which all that happened, and a call, would have found room.

use rustc_hash::FxHashSet;

use crate::{
    memory::{
        arena::{
            core::Arena,
            past::Past,
            rehearsal::Needs,
            state::{PlanInput, State},
        },
        backing::Backing,
        block_table::BlockId,
        compaction::{
            costs::Costs,
            layout::{Kind, Layout, Span},
        },
        history::block_number,
        imagined::Imagined,
        provenance::Execution,
    },
    units::Bytes,
};

/// Limits are told in this unit.
const UNIT: Bytes = Bytes::mib(1);

/// Small blocks, and what is left behind large ones, take so small a part of a larger limit.
const SMALL_BLOCKS: u64 = 64;

/// So many steps of the past are done again where each limit is tried: a tenth of a second's work.
const MOST_STEPS: u64 = 1 << 18;

impl Arena {
    /// The least limit in whole MiB, at most `most`, under which `needs` of a `run` would have found room.
    ///
    /// All that happened since the start is done again under each limit, because under another one blocks lie
    /// elsewhere. Where blocks move, they move again as they would there, and `movable` says which of them could now.
    /// If the history does not know all, or doing it again would take long, the blocks are supposed to lie where they
    /// do, with more room behind them. `None` where none is enough, or it is not the limit that is in the way.
    /// O(log n) times O(n log n) for n blocks, or events.
    pub fn least_limit(
        &self,
        (needs, run): (&Needs, Execution),
        most: Bytes,
        (costs, movable): (&Costs, Option<&dyn Fn(BlockId) -> bool>),
    ) -> Option<Bytes> {
        let (past, may_move) = {
            let mut state = self.state.lock();
            state.lower_floor();
            // A region that is smaller than the limit is what the device had.
            if state.stats(self.limit).limit < self.limit {
                return None;
            }
            (Past::of(&state, run.step, needs.scratch), movable.map(|movable| numbers(&state, movable)))
        };
        let behind = self.limit.checked_add(needs.sum()?)?;
        let behind = behind.checked_add(Bytes::new(behind.get() / SMALL_BLOCKS))?.checked_round_up(UNIT)?;
        let fits = |limit: u64| {
            let limit = Bytes::new(limit * UNIT.get());
            let more = limit.round_down(self.backing.granularity()).saturating_sub(self.limit);
            match (&past, movable) {
                (Some(past), _) => self
                    .again(limit)
                    .is_some_and(|arena| past.fits(&arena, needs, may_move.as_ref().map(|may_move| (costs, may_move)))),
                (None, Some(movable)) => self.state.lock().would_open(needs, more, costs, movable) == Some(true),
                (None, None) => limit >= behind,
            }
        };
        let most = most.get() / UNIT.get();
        let (own, mut enough) = (self.limit.get() / UNIT.get(), (behind.get() / UNIT.get()).min(most));
        // What is used stays, and what is needed comes beside it.
        let least = self.used().checked_add(needs.sum()?)?.checked_round_up(UNIT)?;
        let mut below = own.max(least.get() / UNIT.get() - 1);
        // Blocks that lie elsewhere may leave less in one piece.
        while enough > below && !fits(enough) {
            (below, enough) = (enough, (2 * enough - below).min(most));
        }
        if enough <= below {
            return None;
        }
        // One that is lower than another that is not enough may be, so each is tried, where that does not take long.
        let work = past.as_ref().map_or(u64::MAX, Past::len).saturating_mul(enough - below);
        if work <= MOST_STEPS {
            enough = (below + 1..enough).find(|&limit| fits(limit)).unwrap_or(enough);
            return Some(Bytes::new(enough * UNIT.get()));
        }
        while enough - below > 1 {
            let middle = below.midpoint(enough);
            if fits(middle) { enough = middle } else { below = middle }
        }
        Some(Bytes::new(enough * UNIT.get()))
    }

    /// Whether `needs` of a `run` would have found room where blocks had moved from the beginning, at these costs,
    /// those that are `movable` now: before an address is given away others make way for it, so that all may lie
    /// elsewhere. As far as the history knows. O(n log n) for n events.
    pub fn would_have_come(
        &self,
        (needs, run): (&Needs, Execution),
        costs: &Costs,
        movable: &dyn Fn(BlockId) -> bool,
    ) -> bool {
        let (past, may_move) = {
            let state = self.state.lock();
            (Past::of(&state, run.step, needs.scratch), numbers(&state, movable))
        };
        let (Some(past), Some(arena)) = (past, self.again(self.limit)) else { return true };
        past.len() > MOST_STEPS || past.fits(&arena, needs, Some((costs, &may_move)))
    }

    /// An arena like this one with another limit, in which nothing has happened.
    fn again(&self, limit: Bytes) -> Option<Self> {
        let device = Imagined::like(&self.backing, Imagined::ALL);
        let mut arena = Self::new(String::new(), self.strategy, limit, Box::new(device)).ok()?;
        if !self.has_slots {
            arena.use_no_slots();
        }
        if self.has_colours {
            arena.use_colours();
        }
        Some(arena)
    }
}

/// The numbers in the history of the blocks that are `movable`.
fn numbers(state: &State, movable: &dyn Fn(BlockId) -> bool) -> FxHashSet<u64> {
    state.table.iter().map(|(id, _)| id).filter(|&id| movable(id)).map(block_number).collect()
}

impl State {
    /// Of the scratch, what is not kept; a strategy without a place for it keeps none.
    fn lacking_scratch(&self, needs: &Needs) -> Bytes {
        match self.placement.bottom() {
            Some(_) => needs.scratch.saturating_sub(self.scratch.bytes()),
            None => Bytes::ZERO,
        }
    }

    /// Whether moves of those that are `movable` would open a hole for all of `needs`, if blocks lay where they do
    /// under a limit that allows so much `more`.
    fn would_open(&self, needs: &Needs, more: Bytes, costs: &Costs, movable: &dyn Fn(BlockId) -> bool) -> Option<bool> {
        let size = self.sum(&needs.arrays)?.checked_add(self.lacking_scratch(needs))?;
        let mut input = PlanInput::default();
        self.draw(&mut input, movable)?;
        let layout = &mut input.layout;
        if self.placement.bottom().is_some() {
            widen(layout, more);
        }
        let fits = self.placement.fits_instead_of(size, self.placement.empty() + more);
        Some(fits || self.plan_hole(layout, size, more, costs).is_some())
    }
}

/// Draws the layout's last region so much larger: below the spans at its upper end that stay there, because they do in
/// a larger region, too.
fn widen(layout: &mut Layout, more: Bytes) {
    let Some(more) = u32::try_from(more.get() >> layout.granule_shift).ok().filter(|&more| more > 0) else { return };
    let staying = layout.spans.iter().rev().take_while(|span| span.kind == Kind::Fixed).count();
    let at = layout.spans.len() - staying;
    let Some(&below) = at.checked_sub(1).and_then(|below| layout.spans.get(below)) else { return };
    for span in &mut layout.spans[at..] {
        span.offset = span.offset.saturating_add(more);
    }
    if below.kind == Kind::Hole {
        layout.spans[at - 1].size = below.size.saturating_add(more);
    } else {
        let (offset, region) = (below.end(), below.region);
        layout.spans.insert(at, Span { region, offset, size: more, kind: Kind::Hole, node: None });
    }
}
