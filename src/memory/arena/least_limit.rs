//! The least limit under which all that happened, and a call, would have found room.

use rustc_hash::FxHashSet;

use crate::{
    memory::{
        arena::{core::Arena, past::Past, prospects::Needs},
        backing::Backing,
        block_table::BlockId,
        compaction::costs::Costs,
        history::block_number,
    },
    units::Bytes,
};

/// Limits are told in this unit.
const UNIT: Bytes = Bytes::mib(1);

/// Small blocks, and what is left behind large ones, take so small a part of a larger limit.
const SMALL_BLOCKS: u64 = 64;

impl Arena {
    /// The least limit in whole MiB, at most `most`, under which `needs` would have found room. `device` makes one that
    /// has all memory there could be, with this granularity and so much at most in advance.
    ///
    /// All that happened since the start is done again under each limit, because under another one blocks lie elsewhere.
    /// Where blocks move, they move again as they would there, and `movable` says which of them could now. If the
    /// history does not know all, or doing it again would take long, the blocks are supposed to lie where they do, with
    /// more room behind them. `None` where none is enough, or it is not the limit that is in the way. O(log n) times
    /// O(n log n) for n blocks, or events.
    pub fn least_limit(
        &self,
        needs: &Needs,
        most: Bytes,
        device: &dyn Fn(Bytes, Option<Bytes>) -> Box<dyn Backing>,
        (costs, movable): (&Costs, Option<&dyn Fn(BlockId) -> bool>),
    ) -> Option<Bytes> {
        let (past, may_move) = {
            let mut state = self.state.lock();
            state.lower_floor();
            // A region that is smaller than the limit is what the device had.
            if state.stats(self.limit).limit < self.limit {
                return None;
            }
            let numbers = |movable: &dyn Fn(BlockId) -> bool| {
                let ids = state.table.iter().map(|(id, _)| id).filter(|&id| movable(id));
                ids.map(block_number).collect::<FxHashSet<u64>>()
            };
            (Past::of(&state), movable.map(numbers))
        };
        let behind = self.limit.checked_add(needs.sum()?)?;
        let behind = behind.checked_add(Bytes::new(behind.get() / SMALL_BLOCKS))?.checked_round_up(UNIT)?;
        let fits = |limit: u64| {
            let limit = Bytes::new(limit * UNIT.get());
            let more = limit.round_down(self.backing.granularity()).saturating_sub(self.limit);
            match (&past, movable) {
                (Some(past), _) => self
                    .again(limit, device)
                    .is_some_and(|arena| past.fits(&arena, needs, may_move.as_ref().map(|may_move| (costs, may_move)))),
                (None, Some(movable)) => self.state.lock().would_open(needs, more, costs, movable).is_some(),
                (None, None) => limit >= behind,
            }
        };
        let most = most.get() / UNIT.get();
        let (mut below, mut enough) = (self.limit.get() / UNIT.get(), (behind.get() / UNIT.get()).min(most));
        // Blocks that lie elsewhere may leave less in one piece.
        while enough > below && !fits(enough) {
            (below, enough) = (enough, (2 * enough - below).min(most));
        }
        if enough <= below {
            return None;
        }
        while enough - below > 1 {
            let middle = below.midpoint(enough);
            if fits(middle) { enough = middle } else { below = middle }
        }
        Some(Bytes::new(enough * UNIT.get()))
    }

    /// An arena like this one with another limit, in which nothing has happened.
    fn again(&self, limit: Bytes, device: &dyn Fn(Bytes, Option<Bytes>) -> Box<dyn Backing>) -> Option<Self> {
        let device = device(self.backing.granularity(), self.backing.most_in_advance());
        let mut arena = Self::new(String::new(), self.strategy, limit, device).ok()?;
        if !self.has_slots {
            arena.use_no_slots();
        }
        if self.has_colours {
            arena.use_colours();
        }
        Some(arena)
    }
}
