//! Compaction carried out: an arena's plan is done on live buffers.
//!
//! ```text
//!  look     which residents may move (no program uses them, no outsider holds their address, their contents are
//!           defined)
//!  plan     the arena: which of them to move where; what the plan needs leaves circulation
//!  lock     the residents of the plan: from here on other threads wait for them; if one is in use now, a new plan
//!           without it
//!  move     one after the other: bytes, a new view of them, the arena's books, the resident's; the old view ends
//!  end      what was opened is free
//! ```
//!
//! No lock of the arena or of the residents is held while bytes move or the engine is called, and nothing is waited
//! for. A resident that was locked is unlocked however the work ends, by a panic too.

use std::{
    mem,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    error::Result,
    memory::{
        Arena, Block, BlockId, Compaction, Execution, Goal, Move, MoveBarrier, Needs, Obstacle, OutOfMemory, PIN_BYTES,
        PIN_NANOS, Pinned, Request,
    },
    report::timeline::{TIMELINE, What},
    runtime::device_memory::{DeviceMemory, LockedForMove, Resident},
    units::Bytes,
};

/// How often a plan is made anew because a buffer of it is in use by then. Each new plan leaves one more buffer where
/// it is.
const ATTEMPTS: usize = 16;

/// How often a plan for a pin is made, each without the blocks that the one before could not move.
const PIN_ATTEMPTS: usize = 8;

/// Residents in use that are looked at to see whether another plan is worth making.
const WATCHED: usize = 1024;

/// A plan that was carried out; the hole that it opened is still out of circulation.
pub struct Compacted<'a> {
    compaction: Compaction<'a>,
    /// Buffers moved.
    pub buffers: u64,
    /// Their sizes, summed.
    pub bytes: Bytes,
}

impl Compacted<'_> {
    /// Allocates a block in the hole.
    ///
    /// # Errors
    /// As [`crate::memory::Arena::allocate`].
    pub fn allocate(self, request: Request) -> Result<Block, OutOfMemory> {
        self.compaction.allocate(request)
    }

    /// Reserves the low end that was emptied.
    ///
    /// # Errors
    /// As [`crate::memory::Arena::begin_scratch`].
    pub fn begin_scratch(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        self.compaction.begin_scratch(bytes)
    }

    /// Reserves the hole for scratch.
    ///
    /// # Errors
    /// As [`crate::memory::Arena::begin_scratch_anywhere`].
    pub fn begin_scratch_anywhere(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        self.compaction.begin_scratch_anywhere(bytes)
    }
}

/// Why a goal was not reached.
pub struct Blocked {
    /// Why there is no plan.
    pub obstacle: Obstacle,
    /// What programs or transfers under way keep where it is, or did so a moment ago.
    pub in_use: InUse,
}

/// Residents that programs or transfers under way keep where they are: so many that looking at them again is cheap.
#[derive(Default)]
pub struct InUse(Vec<Weak<dyn Resident>>);

impl InUse {
    /// Those of `memory` at this instant. O(residents).
    #[cold]
    pub fn of(memory: &DeviceMemory) -> Self {
        let mut found = Self::default();
        memory.residents.all().iter().filter(|resident| is_in_use(&***resident)).for_each(|one| found.add(one));
        found
    }

    fn add(&mut self, resident: &Arc<dyn Resident>) {
        if self.0.len() < WATCHED {
            self.0.push(Arc::downgrade(resident));
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the use of one of them has ended, or there are none. O(those).
    pub fn has_changed(&self) -> bool {
        self.is_empty()
            || self.0.iter().any(|resident| resident.upgrade().is_none_or(|resident| !is_in_use(&*resident)))
    }
}

/// Whether a program or a transfer keeps a resident where it is.
fn is_in_use(resident: &dyn Resident) -> bool {
    matches!(resident.move_barrier(), Some(MoveBarrier::InUse | MoveBarrier::Gone))
}

/// What [`compact`] did on one device.
pub struct Report {
    /// Buffers moved.
    pub buffers: u64,
    /// Their sizes, summed.
    pub bytes: Bytes,
    /// From begin to end.
    pub time: Duration,
    /// The largest hole before.
    pub hole_before: Bytes,
    /// The largest hole after.
    pub hole_after: Bytes,
    /// What could not move, and why.
    pub pinned: Vec<Pinned>,
}

/// What could not move at this instant, by reason.
pub fn pinned(memory: &DeviceMemory) -> Vec<Pinned> {
    staying(memory, |resident| resident.move_barrier().map(MoveBarrier::reason))
}

/// The residents that stay where they are, summed up for each reason that `why` gives; the largest sum first.
pub fn staying(memory: &DeviceMemory, why: impl Fn(&dyn Resident) -> Option<&'static str>) -> Vec<Pinned> {
    let mut sums: FxHashMap<&'static str, Pinned> = FxHashMap::default();
    for resident in memory.residents.all() {
        let Some(why) = why(&*resident) else { continue };
        let Some(occupied) = resident.occupied() else { continue };
        let sum = sums.entry(why).or_insert(Pinned { why, blocks: 0, bytes: Bytes::ZERO });
        sum.blocks += 1;
        sum.bytes += occupied.size;
    }
    let mut pinned: Vec<Pinned> = sums.into_values().collect();
    pinned.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.why.cmp(other.why)));
    pinned
}

/// Moves buffers of `memory` until `goal` is reached.
///
/// # Errors
/// Why it is blocked. A move that fails ends the work early; what was moved stays moved.
pub fn carry_out<'a>(memory: &'a DeviceMemory, goal: Goal) -> Result<Compacted<'a>, Blocked> {
    let mut busy: FxHashMap<BlockId, Weak<dyn Resident>> = FxHashMap::default();
    for _ in 0..ATTEMPTS {
        let (movable, mut in_use) = Movable::of(memory, |block| busy.contains_key(&block));
        let costs = memory.carrier.costs();
        let plan = memory.plan(goal, &costs, &|block| movable.get(block).is_some());
        let compaction = match plan {
            Ok(compaction) => compaction,
            Err(obstacle) => {
                in_use.0.extend(busy.into_values());
                return Err(Blocked { obstacle, in_use });
            }
        };
        match lock(compaction.moves(), |block| movable.get(block)) {
            Ok(locked) => return Ok(memory.moves.during(|| perform(memory, compaction, locked))),
            Err(block) => busy.extend(movable.get(block).map(|resident| (block, Arc::downgrade(resident)))),
        }
    }
    let in_use = InUse(busy.into_values().collect());
    Err(Blocked { obstacle: Obstacle::Barriers { free: memory.stats().free_bytes }, in_use })
}

/// Residents by their block's number.
#[derive(Default)]
struct Movable(Vec<Option<(BlockId, Arc<dyn Resident>)>>);

impl Movable {
    /// The residents that may move now, except those of blocks that were `busy` a moment ago; and those that a program
    /// or a transfer keeps where they are. O(blocks).
    fn of(memory: &DeviceMemory, busy: impl Fn(BlockId) -> bool) -> (Self, InUse) {
        let (mut movable, mut in_use) = (Self::default(), InUse::default());
        for resident in memory.residents.all() {
            let Some(block) = resident.occupied().map(|occupied| occupied.block) else { continue };
            if is_in_use(&*resident) {
                in_use.add(&resident);
            } else if resident.move_barrier().is_none() && !busy(block) {
                movable.add(block, resident);
            }
        }
        (movable, in_use)
    }

    fn add(&mut self, block: BlockId, resident: Arc<dyn Resident>) {
        if self.0.len() <= block.index() {
            self.0.resize(block.index() + 1, None);
        }
        self.0[block.index()] = Some((block, resident));
    }

    fn get(&self, block: BlockId) -> Option<&Arc<dyn Resident>> {
        let (id, resident) = self.0.get(block.index())?.as_ref()?;
        (*id == block).then_some(resident)
    }
}

/// How many bytes would move until `needs` of a `run` find room; `None` if they would find none, or would not have if
/// blocks had moved from the beginning. Nothing moves.
pub fn would_open(memory: &DeviceMemory, (needs, run): (&Needs, Execution)) -> Option<Bytes> {
    let (movable, _) = Movable::of(memory, |_| false);
    let movable = |block| movable.get(block).is_some();
    let costs = memory.carrier.costs();
    let moved = memory.would_come((needs, None), &costs, &movable)?;
    memory.would_have_come((needs, run), &costs, &movable).then_some(moved)
}

/// Whether the rest of what a call needs finds room by moves, of which it has blocks that are its `own` already. `None`
/// where that depends on programs or transfers under way. Nothing moves.
pub fn would_come(memory: &DeviceMemory, rest: &Needs, (whole, own): (&Needs, &[BlockId])) -> Option<bool> {
    let (movable, in_use) = Movable::of(memory, |_| false);
    if !in_use.is_empty() || !memory.pending().is_zero() {
        return None;
    }
    let movable = |block| movable.get(block).is_some();
    Some(memory.would_come((rest, Some((whole, own))), &memory.carrier.costs(), &movable).is_some())
}

/// The arena of `memory`, imagined, after the moves for `goal`; `None` if there is no plan. Nothing moves.
pub fn imagined_after(memory: &DeviceMemory, goal: Goal) -> Option<Arena> {
    let (movable, _) = Movable::of(memory, |_| false);
    memory.imagined_after(goal, &memory.carrier.costs(), &|block| movable.get(block).is_some())
}

/// The least limit, `most` at most, under which `needs` of a `run` would have found room; where it `compacts`, by
/// moves.
pub fn least_limit(
    memory: &DeviceMemory,
    (needs, run): (&Needs, Execution),
    most: Bytes,
    compacts: bool,
) -> Option<Bytes> {
    let movable = compacts.then(|| Movable::of(memory, |_| false).0);
    let may_move = |block| movable.as_ref().is_some_and(|movable| movable.get(block).is_some());
    let may_move: &dyn Fn(BlockId) -> bool = &may_move;
    memory.least_limit((needs, run), most, (&memory.carrier.costs(), compacts.then_some(may_move)))
}

/// Locks the residents of all moves, or none of them.
///
/// # Errors
/// The block whose resident is in use now.
fn lock<'a>(
    moves: &[Move],
    resident_of: impl Fn(BlockId) -> Option<&'a Arc<dyn Resident>>,
) -> Result<Vec<Box<dyn LockedForMove>>, BlockId> {
    let locked = |step: &Move| {
        let resident = resident_of(step.block).ok_or(step.block)?;
        Arc::clone(resident).lock_for_move(step.block).ok_or(step.block)
    };
    moves.iter().map(locked).collect()
}

/// Makes the moves, in order. The first that fails ends the work.
fn perform<'a>(
    memory: &DeviceMemory,
    mut compaction: Compaction<'a>,
    locked: Vec<Box<dyn LockedForMove>>,
) -> Compacted<'a> {
    let since = TIMELINE.clock();
    let (mut buffers, mut bytes) = (0, Bytes::ZERO);
    for (number, mut resident) in locked.into_iter().enumerate() {
        let step = compaction.moves()[number];
        match relocate(memory, &mut compaction, &mut *resident, step) {
            Ok(()) => {
                resident.moved();
                buffers += 1;
                bytes += step.size;
            }
            Err(error) => {
                log::warn!("a compaction of {} ends early: {error}", memory.name());
                break;
            }
        }
    }
    if let Some(since) = since.filter(|_| buffers > 0) {
        TIMELINE.note(memory.name(), since, || What::Moved { buffers, bytes });
    }
    Compacted { compaction, buffers, bytes }
}

/// Moves one resident's bytes and prepares its view at the new address.
///
/// # Errors
/// The device's, the engine's or the arena's; the bytes are where they were then, as after a panic.
fn relocate(
    memory: &DeviceMemory,
    compaction: &mut Compaction<'_>,
    resident: &mut dyn LockedForMove,
    step: Move,
) -> Result<()> {
    // Padding need not be moved.
    let bytes = step.size.min(resident.bytes());
    // SAFETY: both addresses lie in regions of this carrier's device: the resident's own block, and one of the same
    // size that the plan took out of circulation. The resident is locked, so nothing uses the bytes of either.
    unsafe { memory.carrier.relocate(step.from, step.to, bytes)? };
    let back = MoveBack { memory, step, bytes };
    // SAFETY: the bytes are at `step.to` now; the block there is aligned and as large as the old one, and is the
    // resident's from the commit on, or not used if there is none.
    let prepared = unsafe { resident.prepare(step.to) };
    prepared.and_then(|()| compaction.commit())?;
    mem::forget(back);
    Ok(())
}

/// A move that is not committed. Dropped, by an error or a panic, it moves the bytes back.
struct MoveBack<'a> {
    memory: &'a DeviceMemory,
    step: Move,
    bytes: Bytes,
}

impl Drop for MoveBack<'_> {
    fn drop(&mut self) {
        let Move { from, to, .. } = self.step;
        // SAFETY: both blocks are still out of use by all but this thread, as before the move; the old one is the
        // resident's.
        if let Err(error) = unsafe { self.memory.carrier.relocate(to, from, self.bytes) } {
            log::error!("an array of {} on {} is lost: {error}", self.bytes, self.memory.name());
        }
    }
}

/// Moves everything that can move, so that free memory is in as few holes as possible.
pub fn compact(memory: &DeviceMemory) -> Report {
    let start = Instant::now();
    let hole_before = memory.stats().largest_free_block;
    let deadline = start + Duration::from_secs(10);
    let (buffers, bytes) = loop {
        match carry_out(memory, Goal::Pack) {
            Ok(compacted) => break (compacted.buffers, compacted.bytes),
            Err(Blocked { obstacle: Obstacle::UnderWay, .. }) if Instant::now() < deadline => {
                memory.wait_for_compaction(deadline)
            }
            Err(_) => break (0, Bytes::ZERO),
        }
    };
    Report {
        buffers,
        bytes,
        time: start.elapsed(),
        hole_before,
        hole_after: memory.stats().largest_free_block,
        pinned: pinned(memory),
    }
}

/// Before the address of an unused resident is given to an outsider, moves it where it hinders compaction least, if
/// it is small enough for the move to be cheap. Otherwise pinned blocks divide the memory for as long as they live.
/// What it costs does not grow with the number of blocks.
pub fn relocate_for_pin(memory: &DeviceMemory, resident: &Arc<dyn Resident>) {
    let Some(occupied) = resident.occupied().filter(|occupied| occupied.size <= PIN_BYTES) else { return };
    if resident.move_barrier().is_some() {
        return;
    }
    let block = occupied.block;
    match memory.plan_pin(block) {
        Ok(compaction) => {
            carry_out_for_pin(memory, compaction, &[(block, Arc::clone(resident))]);
            return;
        }
        // It lies well, or cannot lie better: most often a scalar in a slab.
        Err(_) if !memory.stands_amid(block) => return,
        // No hole at the end holds it: other blocks are moved out of the way, if that is cheap too.
        Err(_) => {}
    }
    let costs = memory.carrier.costs();
    // Mostly all may move, so those that may not are learnt of from a plan. So few that a look at each of them costs
    // less than a table.
    let mut stay: SmallVec<[BlockId; 8]> = SmallVec::new();
    for _ in 0..PIN_ATTEMPTS {
        let may_move = |other| !stay.contains(&other);
        let Ok(compaction) = memory.plan_pin_making_way(block, &costs, PIN_NANOS, &may_move) else { return };
        let blocks: SmallVec<[BlockId; 4]> = compaction.moves().iter().map(|step| step.block).collect();
        // Asked without the arena's lock: a resident may be dropped here, and frees its block then.
        let mut movable = memory.residents.of(&blocks);
        movable.retain(|(_, other)| other.move_barrier().is_none());
        let Some(busy) = carry_out_for_pin(memory, compaction, &movable) else { return };
        let is_movable = |id| movable.iter().any(|(block, _)| *block == id);
        stay.extend(blocks.into_iter().filter(|&id| id == busy || !is_movable(id)));
        if stay.contains(&block) {
            return;
        }
    }
}

/// Makes the moves of a plan for a pin; none, and the answer is a block that stays, if one of them is not `movable` or
/// is in use by now.
fn carry_out_for_pin(
    memory: &DeviceMemory,
    compaction: Compaction<'_>,
    movable: &[(BlockId, Arc<dyn Resident>)],
) -> Option<BlockId> {
    let resident_of = |id| movable.iter().find(|(block, _)| *block == id).map(|(_, resident)| resident);
    match lock(compaction.moves(), resident_of) {
        Ok(locked) => {
            drop(perform(memory, compaction, locked));
            None
        }
        Err(block) => Some(block),
    }
}

#[cfg(test)]
mod tests;
