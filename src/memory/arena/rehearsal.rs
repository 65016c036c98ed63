//! A call in an arena that nobody uses: what the allocator does for it, where nothing else is under way.
//!
//! ```text
//!  arguments   one after the other, as they come back from where they were spilled to
//!  scratch     at the low end, or elsewhere where that cannot be emptied
//!  arrays      one after the other, twice: at once, or in a hole that moves open; or else in one hole for all of them
//! ```

use crate::{
    memory::{
        arena::{
            compaction::{Compaction, Goal},
            core::Arena,
            pinning::{PIN_BYTES, PIN_NANOS},
            state::State,
        },
        block_table::BlockId,
        compaction::costs::Costs,
    },
    units::Bytes,
};

/// What one call needs of one memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// For arguments that come back from where they were spilled to, before all else.
    pub arguments: Vec<Bytes>,
    /// For the program's scratch, where it is kept in this memory.
    pub scratch: Bytes,
    /// For arrays, in the order in which they are allocated.
    pub arrays: Vec<Bytes>,
}

impl Needs {
    /// Those of one array.
    pub fn of(size: Bytes) -> Self {
        Self { arrays: vec![size], ..Self::default() }
    }

    /// All together; `None` if that is no number.
    pub fn sum(&self) -> Option<Bytes> {
        self.arguments.iter().chain(&self.arrays).try_fold(self.scratch, |sum, &size| sum.checked_add(size))
    }

    /// How many blocks.
    pub fn parts(&self) -> usize {
        self.arguments.len() + usize::from(!self.scratch.is_zero()) + self.arrays.len()
    }
}

/// See the module's documentation.
pub(super) struct Rehearsal<'a> {
    pub(super) arena: &'a Arena,
    /// Where blocks move.
    costs: Option<&'a Costs>,
}

impl<'a> Rehearsal<'a> {
    /// In an `arena` where blocks move at these `costs`, or do not.
    pub(super) fn new(arena: &'a Arena, costs: Option<&'a Costs>) -> Self {
        Self { arena, costs }
    }

    /// How many bytes move until what is needed finds room, where blocks may that are `movable`; `None` if there is no
    /// room. With the `whole` of a call goes what it has already, which is freed before a hole is looked for that holds
    /// all arrays. Blocks move for scratch only if the call is to succeed then; if not, the scratch goes where there is
    /// room, and the call asks again with the rest: so with a `whole` the first alone is tried.
    pub(super) fn fits(
        &self,
        (needs, whole): (&Needs, Option<(&Needs, &[BlockId])>),
        movable: &dyn Fn(BlockId) -> bool,
    ) -> Option<Bytes> {
        let before = self.arena.stats().moved_bytes;
        let has_begun = whole.is_some();
        let other = (self.costs.is_some() && !needs.scratch.is_zero() && !has_begun).then(|| self.arena.imagined());
        if self.takes_arguments(needs, movable)
            && self.keep(needs.scratch, movable)
            && self.fits_arrays((needs, whole), movable)
        {
            return Some(self.arena.stats().moved_bytes - before);
        }
        let arena = other?;
        let other = Rehearsal { arena: &arena, costs: self.costs };
        let fits = other.takes_arguments(needs, movable)
            && other.keep_at_once(needs.scratch)
            && other.fits_arrays((needs, whole), movable);
        fits.then(|| arena.stats().moved_bytes - before)
    }

    fn takes_arguments(&self, needs: &Needs, movable: &dyn Fn(BlockId) -> bool) -> bool {
        needs.arguments.iter().all(|&size| self.take(size, movable).is_some())
    }

    fn fits_arrays(
        &self,
        (needs, whole): (&Needs, Option<(&Needs, &[BlockId])>),
        movable: &dyn Fn(BlockId) -> bool,
    ) -> bool {
        let arrays = whole.map_or(&needs.arrays, |(whole, _)| &whole.arrays);
        let mut taken = whole.map_or_else(Vec::new, |(_, own)| own.to_vec());
        if taken.is_empty() {
            // A launch that holds memory waits for nothing, and moves nothing, before it has given all back once.
            let first = arrays.first().is_none_or(|&size| self.take_all(&[size], &mut taken, movable));
            let rest = first
                && arrays.iter().skip(1).all(|&size| {
                    let block = self.arena.allocate(size).ok().map(|block| block.id);
                    taken.extend(block);
                    block.is_some()
                });
            if rest {
                return true;
            }
            if !first || !self.free_all(&mut taken) {
                return false;
            }
        }
        let rest = if taken.is_empty() { arrays } else { &needs.arrays };
        if self.take_all(rest, &mut taken, movable) {
            return true;
        }
        let freed = self.free_all(&mut taken);
        let sum = self.arena.state.lock().sum(arrays);
        let opened = sum.and_then(|sum| self.compact(Goal::Hole(sum), movable)).map(drop);
        freed && opened.is_some() && self.take_all(arrays, &mut taken, movable)
    }

    fn free_all(&self, taken: &mut Vec<BlockId>) -> bool {
        taken.drain(..).all(|id| self.arena.free(id).is_ok())
    }

    fn take_all(&self, arrays: &[Bytes], taken: &mut Vec<BlockId>, movable: &dyn Fn(BlockId) -> bool) -> bool {
        arrays.iter().all(|&size| {
            let block = self.take(size, movable);
            taken.extend(block);
            block.is_some()
        })
    }

    /// A block of this size: at once, or in a hole that moves open.
    pub(super) fn take(&self, size: Bytes, movable: &dyn Fn(BlockId) -> bool) -> Option<BlockId> {
        let taken = self.arena.allocate(size).or_else(|full| match self.compact(Goal::Hole(size), movable) {
            Some(compacted) => compacted.allocate(size),
            None => Err(full),
        });
        taken.ok().map(|block| block.id)
    }

    /// Whether there is room for a program's scratch: at the low end, or elsewhere where that cannot be emptied.
    pub(super) fn keep(&self, bytes: Bytes, movable: &dyn Fn(BlockId) -> bool) -> bool {
        let compacted = |goal| self.compact(goal, movable);
        self.arena.begin_scratch(bytes).is_ok()
            || compacted(Goal::Bottom(bytes)).is_some_and(|bottom| bottom.begin_scratch(bytes).is_ok())
            || self.arena.begin_scratch_anywhere(bytes).is_ok()
            || compacted(Goal::Hole(bytes)).is_some_and(|hole| hole.begin_scratch_anywhere(bytes).is_ok())
    }

    /// As [`Self::keep`], where nothing moves.
    fn keep_at_once(&self, bytes: Bytes) -> bool {
        self.arena.begin_scratch_at_last(bytes).is_ok()
    }

    /// Moves blocks until there is room for `goal`, where blocks move.
    pub(super) fn compact(&self, goal: Goal, movable: &dyn Fn(BlockId) -> bool) -> Option<Compaction<'a>> {
        carried_out(self.arena.plan(goal, self.costs?, movable).ok()?)
    }

    /// As the allocator does before an address is given to an outsider.
    pub(super) fn make_way_for(&self, id: BlockId) {
        let Some(costs) = self.costs else { return };
        let small = self.arena.state.lock().table.get(id).is_some_and(|record| record.requested <= PIN_BYTES);
        if !small {
            return;
        }
        let moved = match self.arena.plan_pin(id) {
            Err(_) if self.arena.stands_amid(id) => {
                self.arena.plan_pin_making_way(id, costs, PIN_NANOS, &|_| true).ok()
            }
            planned => planned.ok(),
        };
        drop(moved.and_then(carried_out));
    }
}

/// A plan whose moves are made, in the books alone.
fn carried_out(mut compaction: Compaction<'_>) -> Option<Compaction<'_>> {
    for _ in 0..compaction.moves().len() {
        compaction.commit().ok()?;
    }
    Some(compaction)
}

impl State {
    /// What `arrays` take side by side, where blocks lie in a space.
    pub(super) fn sum(&self, arrays: &[Bytes]) -> Option<Bytes> {
        let granule = self.placement.space()?.granule();
        let rounded = |size: &Bytes| size.max(&granule).checked_round_up(granule);
        arrays.iter().try_fold(Bytes::ZERO, |sum, size| sum.checked_add(rounded(size)?))
    }
}
