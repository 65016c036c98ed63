//! What would find room, if something were otherwise: computed on copies of the books, while nothing changes.
//!
//! ```text
//!  would_fit    retired blocks, and others, are gone; or the limit is higher
//!  would_open   blocks have moved together; or the limit is higher
//!  least_limit  the lowest limit under which all that happened, and the call, find room
//! ```
//!
//! So what an error of exhausted memory advises was tried before it is said, and what cannot help is not begun.

use rustc_hash::{FxHashMap, FxHashSet};

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
        history::{EventKind, block_number},
        oom::OutOfMemory,
        provenance::Request,
        space::node::SpanState,
        strategy::placement::{Shortage, Supposed},
    },
    units::Bytes,
};

/// Limits are told in this unit.
const UNIT: Bytes = Bytes::mib(1);

/// Small blocks, and what is left behind large ones, take so small a part of a larger limit.
const SMALL_BLOCKS: u64 = 64;

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

    /// The least limit in whole MiB, at most `most`, under which `needs` would have found room. `device` makes one that
    /// has all memory there could be, with this granularity and so much at most in advance.
    ///
    /// All that happened since the start is done again under each limit, because under another one blocks lie elsewhere.
    /// Where blocks move, `movable` says which of them could. If the history does not know all, or some have moved, the
    /// blocks are supposed to lie where they do, with more room behind them. `None` where none is enough, or it is not
    /// the limit that is in the way. O(log n) times O(n log n) for n blocks, or events.
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

    /// As [`Arena::would_open`], under a limit that allows so much `more`.
    fn would_open(
        &self,
        needs: &Needs,
        more: Bytes,
        costs: &Costs,
        movable: &dyn Fn(BlockId) -> bool,
    ) -> Option<Bytes> {
        let granule = self.placement.space()?.granule();
        let rounded = |size: &Bytes| size.max(&granule).checked_round_up(granule);
        let size = needs.arrays.iter().try_fold(Bytes::ZERO, |sum, size| sum.checked_add(rounded(size)?))?;
        let size = size.checked_add(self.lacking_scratch(needs))?;
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

/// What happened in an arena since its start.
struct Past(Vec<Step>);

/// One step of it, with blocks by their numbers.
enum Step {
    Take(u64, Bytes),
    Free(u64),
    /// A block became another one in the same place.
    Rename(u64, u64),
    /// So much is kept for scratch.
    Scratch(Bytes),
}

impl Past {
    /// `None` where the history does not know all of it, or blocks have moved.
    fn of(state: &State) -> Option<Self> {
        let events = state.history.since(0)?;
        let mut steps = Vec::with_capacity(events.len());
        for (number, event) in events.iter().enumerate() {
            let before = number.checked_sub(1).and_then(|before| events.get(before));
            match event.kind() {
                EventKind::Allocate => {
                    let in_place = before.filter(|before| {
                        before.kind() == EventKind::Free
                            && (before.address, before.bytes) == (event.address, event.bytes)
                            && before.time() == event.time()
                    });
                    match (in_place, steps.pop()) {
                        (Some(_), Some(Step::Free(gone))) => steps.push(Step::Rename(gone, event.block)),
                        (_, last) => {
                            steps.extend(last.into_iter().chain([Step::Take(event.block, Bytes::new(event.other))]))
                        }
                    }
                }
                EventKind::Free => steps.push(Step::Free(event.block)),
                EventKind::Scratch => steps.push(Step::Scratch(event.bytes)),
                EventKind::Move => return None,
                _ => {}
            }
        }
        Some(Self(steps))
    }

    /// Whether all of it finds room in an `arena` in which nothing has happened, and then `needs`: at once, or by moves
    /// of those that may.
    fn fits(&self, arena: &Arena, needs: &Needs, moves: Option<(&Costs, &FxHashSet<u64>)>) -> bool {
        let mut blocks: FxHashMap<u64, BlockId> = FxHashMap::default();
        let keep = |bytes| {
            let kept = arena.begin_scratch(bytes).is_ok() || arena.begin_scratch_anywhere(bytes).is_ok();
            if kept {
                arena.end_scratch(bytes);
            }
            kept
        };
        for step in &self.0 {
            match *step {
                Step::Take(block, size) => match arena.allocate(size) {
                    Ok(placed) => _ = blocks.insert(block, placed.id),
                    Err(_) => return false,
                },
                Step::Free(block) => _ = blocks.remove(&block).map(|id| arena.free(id)),
                Step::Rename(from, to) => {
                    let renamed = blocks.remove(&from);
                    blocks.extend(renamed.map(|id| (to, id)));
                }
                Step::Scratch(bytes) => {
                    arena.state.lock().lower_floor();
                    if !keep(bytes) {
                        return false;
                    }
                }
            }
        }
        if arena.would_fit(needs, &|_| false) {
            return true;
        }
        moves.is_some_and(|(costs, may_move)| {
            let movable = blocks.iter().filter(|(number, _)| may_move.contains(number)).map(|(_, &id)| id);
            let movable: FxHashSet<BlockId> = movable.collect();
            arena.would_open(needs, costs, &|id| movable.contains(&id)).is_some()
        })
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
