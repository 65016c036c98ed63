//! What would find room, if something were otherwise: computed on copies of the books, while nothing changes.
//!
//! ```text
//!  would_fit    retired blocks, and others, are gone
//!  would_open   blocks have moved together
//! ```
//!
//! Under which limit there would be room is another file's (`least_limit`).
//!
//! So what an error of exhausted memory advises was tried before it is said, and what cannot help is not begun.

use crate::{
    error::Error,
    memory::{
        arena::{
            block::{Block, BlockInfo},
            core::Arena,
            state::{PlanInput, State},
        },
        backing::Backing,
        block_table::BlockId,
        compaction::{
            costs::Costs,
            layout::{Kind, Layout, Span},
        },
        oom::OutOfMemory,
        provenance::Request,
        space::node::SpanState,
        strategy::placement::{Shortage, Supposed},
    },
    units::Bytes,
};

/// What one call needs of one memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// For the program's scratch, where it is kept in this memory.
    pub scratch: Bytes,
    /// For arrays, in the order in which they are allocated.
    pub arrays: Vec<Bytes>,
}

impl Needs {
    /// Those of one array.
    pub fn of(size: Bytes) -> Self {
        Self { scratch: Bytes::ZERO, arrays: vec![size] }
    }

    /// All together; `None` if that is no number.
    pub fn sum(&self) -> Option<Bytes> {
        self.arrays.iter().try_fold(self.scratch, |sum, &size| sum.checked_add(size))
    }
}

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
    /// changing. Scratch that no program under way needs makes room. O(blocks).
    pub fn would_fit(&self, needs: &Needs, goes: &dyn Fn(BlockId) -> bool) -> bool {
        let mut state = self.state.lock();
        state.lower_floor();
        state.would_fit(&state.sizes(needs), &self.prospect(false), goes)
    }

    /// How many bytes would move until `needs` find room in one piece; `None` if no plan was found. Blocks move that are
    /// live and `movable`. O(n log n) for n blocks.
    pub fn would_open(&self, needs: &Needs, costs: &Costs, movable: &dyn Fn(BlockId) -> bool) -> Option<Bytes> {
        let mut state = self.state.lock();
        state.lower_floor();
        state.would_open(needs, Bytes::ZERO, costs, movable)
    }

    /// Nothing is otherwise but that the device may refuse memory.
    pub(super) fn prospect(&self, refused: bool) -> Supposed<'static> {
        Supposed { refused, most_in_advance: self.backing.most_in_advance(), freed: &[] }
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
    /// As [`Arena::would_fit`], with the floor as it is.
    pub(super) fn would_fit(&self, sizes: &[Bytes], supposed: &Supposed<'_>, goes: &dyn Fn(BlockId) -> bool) -> bool {
        let freed = self.table.iter().filter(|&(id, record)| record.state == SpanState::Retired || goes(id));
        let freed: Vec<_> = freed.map(|(_, record)| (record.place, record.state)).collect();
        self.placement.would_fit(sizes, &Supposed { freed: &freed, ..*supposed })
    }

    /// What `needs` are to the strategy: scratch is a block beside what is kept for it already.
    fn sizes(&self, needs: &Needs) -> Vec<Bytes> {
        let scratch = self.lacking_scratch(needs);
        let scratch = (!scratch.is_zero()).then_some(scratch);
        scratch.into_iter().chain(needs.arrays.iter().copied()).collect()
    }

    /// Of the scratch, what is not kept; a strategy without a place for it keeps none.
    fn lacking_scratch(&self, needs: &Needs) -> Bytes {
        match self.placement.bottom() {
            Some(_) => needs.scratch.saturating_sub(self.scratch.bytes()),
            None => Bytes::ZERO,
        }
    }

    /// What the arrays of `needs` take side by side, where blocks lie in a space.
    pub(super) fn sum_of_arrays(&self, needs: &Needs) -> Option<Bytes> {
        let granule = self.placement.space()?.granule();
        let rounded = |size: &Bytes| size.max(&granule).checked_round_up(granule);
        needs.arrays.iter().try_fold(Bytes::ZERO, |sum, size| sum.checked_add(rounded(size)?))
    }

    /// As [`Arena::would_open`], under a limit that allows so much `more`.
    pub(super) fn would_open(
        &self,
        needs: &Needs,
        more: Bytes,
        costs: &Costs,
        movable: &dyn Fn(BlockId) -> bool,
    ) -> Option<Bytes> {
        let size = self.sum_of_arrays(needs)?.checked_add(self.lacking_scratch(needs))?;
        let mut input = PlanInput::default();
        self.draw(&mut input, movable)?;
        let layout = &mut input.layout;
        if self.placement.bottom().is_some() {
            widen(layout, more);
        }
        if self.placement.fits_instead_of(size, self.placement.empty() + more) {
            return Some(Bytes::ZERO);
        }
        let plan = self.plan_hole(layout, size, more, costs)?;
        let granules = plan.steps.iter().filter_map(|step| layout.spans.get(step.span));
        Some(granules.map(|span| Bytes::new(u64::from(span.size) << layout.granule_shift)).sum())
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
