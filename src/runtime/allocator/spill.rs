//! Spilling: arrays that no program uses go to memory of the host, so that others have room.
//!
//! ```text
//!  device   | A | B | C | D |       limit          B, C and D may go; A is in use, or wanted by a launch
//!                 |                                 B's next use is the furthest away (memory/next_use.rs)
//!  tier     | ... B ... |           spill_limit    a block of another arena, where the engine sees B as before
//! ```
//!
//! A spilled array is as usable as any: the engine has a view of it where it lies, so that reads, copies and NumPy
//! views need no way back. Programs do: a launch brings its arguments back first (`runtime/execute/wanted.rs`), and a
//! launch whose arguments an outsider keeps in the tier reads them there.

use std::{sync::Arc, time::Instant};

use crate::{
    error::Error,
    fork,
    memory::{
        Goal, MoveBarrier, Pinned, Provenance, Request,
        history::{EventKind, Holding, holdings},
        next_use::{NextUse, UseKey},
    },
    report::timeline::{TIMELINE, What},
    runtime::{
        allocator::{compaction::staying, core::Allocator},
        device_memory::{Allocation, DeviceMemory, Occupied, Resident, Tier, origins::ORIGINS},
        shape::Shape,
    },
    units::Bytes,
};

/// Spills arrays of `memory`, those first whose next use is furthest away, until there is room for `goal`, as far as
/// the numbers tell; or all that may go without a goal. How many bytes went; zero where the memory has no tier, none
/// may go, or the tier has no room. O(n log n) for n arrays.
#[cold]
pub fn make_room(allocator: &Allocator, memory: &DeviceMemory, goal: Option<Goal>) -> Bytes {
    make_room_by(allocator, memory, goal, |_| true)
}

/// As [`make_room`], by arrays alone whose next use `may` accepts.
pub fn make_room_by(
    allocator: &Allocator,
    memory: &DeviceMemory,
    goal: Option<Goal>,
    may: impl Fn(NextUse) -> bool,
) -> Bytes {
    let Some(tier) = &memory.tier else { return Bytes::ZERO };
    // Arrays of programs that are done may go.
    allocator.in_flight.reap_all();
    let mut order = fork::step(|| in_order_of_use(memory, tier));
    order.retain(|candidate| may(candidate.next));
    let enough = Enough::new(allocator.compacts(), memory, goal);
    let mut gone = Bytes::ZERO;
    while let Some(candidate) = order.pop() {
        match fork::step(|| spill(memory, tier, candidate, &order)) {
            Ok(bytes) => gone += bytes,
            Err(TierIsFull) => continue,
        }
        if enough.is_there(memory, gone) {
            break;
        }
    }
    gone
}

/// Whether there would be room for `goal` once all had gone but what outsiders keep on the device. O(n) for n arrays.
#[cold]
pub fn could_make_room(memory: &DeviceMemory, goal: Goal) -> bool {
    let (Some(_), Goal::Hole(bytes) | Goal::Bottom(bytes)) = (&memory.tier, goal) else { return false };
    let stays = |resident: &Arc<dyn Resident>| {
        matches!(resident.move_barrier(), Some(MoveBarrier::Referenced | MoveBarrier::AddressKnown))
    };
    let staying = memory.residents.all().into_iter().filter(stays).filter_map(|resident| resident.occupied());
    let staying: Bytes = staying.map(|occupied| occupied.size).sum();
    bytes <= memory.limit().saturating_sub(staying)
}

/// An array that may go.
struct Candidate {
    /// When it is used next.
    next: NextUse,
    /// Whether its copy is in the tier, so that it costs less than another.
    has_copy: bool,
    /// The size that was asked for.
    size: Bytes,
    key: UseKey,
    resident: Arc<dyn Resident>,
}

/// The arrays that may go, the one that goes first at the end: its next use is the furthest away. Of those that are
/// used at the same time, or of which nothing is known, one goes first whose copy is in the tier, and then the larger
/// one.
fn in_order_of_use(memory: &DeviceMemory, tier: &Tier) -> Vec<Candidate> {
    let candidates = memory.residents.all().into_iter().filter(|resident| resident.may_spill());
    let (candidates, keys): (Vec<_>, Vec<_>) =
        candidates.filter_map(|resident| resident.use_key().map(|key| (resident, key))).unzip();
    let uses = tier.record.next_uses(&keys);
    let mut order: Vec<_> = uses
        .into_iter()
        .zip(keys)
        .zip(candidates)
        .map(|((next, key), resident)| {
            let size = resident.occupied().map_or(Bytes::ZERO, |occupied| occupied.size);
            Candidate { next, has_copy: resident.has_copy(), size, key, resident }
        })
        .collect();
    order.sort_by_key(|candidate| (candidate.next, candidate.has_copy, candidate.size));
    order
}

/// When enough arrays have gone.
enum Enough {
    /// Never.
    Never,
    /// When so much memory is free, which compaction makes one piece of.
    Free(Bytes),
    /// When there is a hole of this size.
    Hole(Bytes),
    /// When so much has gone: the numbers alone do not tell what there is room for.
    Gone(Bytes),
}

impl Enough {
    fn new(compacts: bool, memory: &DeviceMemory, goal: Option<Goal>) -> Self {
        let by_numbers = match goal {
            None => return Self::Never,
            Some(Goal::Hole(bytes)) if compacts => Self::Free(bytes),
            Some(Goal::Hole(bytes)) => Self::Hole(bytes),
            Some(Goal::Bottom(bytes)) => return Self::Gone(bytes),
            Some(Goal::Pack) => return Self::Gone(Bytes::ZERO),
        };
        // What the numbers promise was not to be had.
        if by_numbers.is_there(memory, Bytes::ZERO)
            && let Self::Free(bytes) | Self::Hole(bytes) = by_numbers
        {
            return Self::Gone(bytes);
        }
        by_numbers
    }

    fn is_there(&self, memory: &DeviceMemory, gone: Bytes) -> bool {
        match *self {
            Self::Never => false,
            Self::Free(bytes) => {
                let stats = memory.stats();
                stats.free_bytes + (stats.limit - stats.pool_bytes) >= bytes
            }
            Self::Hole(bytes) => memory.stats().largest_request >= bytes,
            Self::Gone(bytes) => gone >= bytes,
        }
    }
}

/// There is no room for an array in the tier.
struct TierIsFull;

/// A block of the tier. Where it has no room, copies of arrays that are used soon are kept no longer: first of those
/// that may not go, then of `others`, the one that is used first at the beginning.
fn allocate_in_tier(
    memory: &DeviceMemory,
    tier: &Tier,
    (size, provenance): (Bytes, Provenance),
    others: &[Candidate],
) -> Result<Allocation, TierIsFull> {
    let allocate = || {
        let block = tier.memory.allocate(Request { size, provenance }).ok()?;
        Some(Allocation::new(Arc::clone(&tier.memory), block, Bytes::ZERO, provenance))
    };
    if let Some(allocation) = allocate() {
        return Ok(allocation);
    }
    let in_use = memory.residents.all().into_iter().filter(|resident| !resident.may_spill());
    for resident in in_use.chain(others.iter().map(|other| Arc::clone(&other.resident))) {
        if resident.has_copy()
            && !resident.forget_copy().is_zero()
            && let Some(allocation) = allocate()
        {
            return Ok(allocation);
        }
    }
    Err(TierIsFull)
}

/// Spills one array; zero if it may not go by now.
fn spill(
    memory: &DeviceMemory,
    tier: &Tier,
    Candidate { next, key, resident, .. }: Candidate,
    others: &[Candidate],
) -> Result<Bytes, TierIsFull> {
    let since = Instant::now();
    let Some(occupied) = resident.occupied() else { return Ok(Bytes::ZERO) };
    let Occupied { block, size, provenance } = occupied;
    // The copy that is kept, if there is one, stays while the array is locked.
    let mut to =
        if resident.has_copy() { None } else { Some(allocate_in_tier(memory, tier, (size, provenance), others)?) };
    let waiting = Arc::clone(&resident);
    let Some(mut locked) = resident.lock_to_spill(block) else { return Ok(Bytes::ZERO) };
    let (Some(from), copy) = (locked.address(), locked.copy()) else { return Ok(Bytes::ZERO) };
    let bytes = size.min(locked.bytes());
    let (address, copied) = match (copy, &to) {
        (Some(copy), _) => {
            to = None;
            (copy, Ok(()))
        }
        // SAFETY: the locked resident's block is at `from`, and nothing uses its bytes; the block of the tier is new
        // and as large.
        (None, Some(to)) => (to.block().address, unsafe { tier.copy(memory, from, to.block().address, bytes) }),
        // An outsider has come meanwhile, and its copy has gone.
        (None, None) => return Ok(Bytes::ZERO),
    };
    // SAFETY: the bytes are in a block of the tier that is the resident's from `spilled` on, or not used if that is
    // not called.
    match copied.and_then(|()| unsafe { locked.prepare(address) }) {
        Ok(()) => {
            let was_copied = to.is_some();
            let waits_in = locked.spilled(to);
            if let Some(block) = waits_in {
                tier.waiting.enter(block, Arc::downgrade(&waiting));
            }
            let (took, copied) = (since.elapsed(), if was_copied { bytes } else { Bytes::ZERO });
            tier.record.spilled(bytes, was_copied.then_some(took));
            memory.note_transfer(EventKind::Spill, (bytes, copied), provenance.origin, took);
            TIMELINE.note(memory.name(), since, || What::Spilled { bytes, copied });
            tier.record.expect(key, next);
            Ok(size)
        }
        Err(error) => {
            log::warn!("an array of {bytes} on {} is not spilled: {error}", memory.name());
            Ok(Bytes::ZERO)
        }
    }
}

/// Brings back what waits in the tier of `memory`, into a block that `allocate` finds, for the launch of this `step`,
/// or for none. How many bytes came: none, if it did not wait there by then, or an outsider or a transfer uses it.
///
/// # Errors
/// Those of `allocate`, the device's or the engine's; the array is where it was then.
pub fn bring_back<E: From<Error>>(
    memory: &DeviceMemory,
    resident: &Arc<dyn Resident>,
    step: Option<u32>,
    allocate: impl FnOnce(&Shape, Provenance) -> Result<Allocation, E>,
) -> Result<Bytes, E> {
    let Some(tier) = &memory.tier else { return Ok(Bytes::ZERO) };
    let Some((shape, provenance)) = resident.waits() else { return Ok(Bytes::ZERO) };
    let allocation = allocate(&shape, provenance)?;
    let (bytes, since) = (Bytes::new(shape.size as u64), Instant::now());
    let key = resident.use_key();
    if !fork::step(|| Arc::clone(resident).bring_back(allocation))? {
        return Ok(Bytes::ZERO);
    }
    let took = since.elapsed();
    tier.record.came_back(key, step, bytes, took);
    memory.note_transfer(EventKind::Return, (bytes, bytes), provenance.origin, took);
    TIMELINE.note(memory.name(), since, || What::Returned { bytes });
    Ok(bytes)
}

/// So many holders of the tier are named.
const HOLDERS: usize = 3;

/// What an error for memory that is exhausted says about the tier: who is there, and what could not go there, and why.
#[cold]
pub fn tier_details(memory: &DeviceMemory, tier: &Tier) -> String {
    let limit = tier.memory.stats().limit;
    let mut text =
        format!("\nspilled: {} of the {limit} that PJRT_ARENA_SPILL_LIMIT allows on {}", tier.waits(), memory.name());
    let waiting = tier.waiting.all().into_iter().filter_map(|resident| resident.waits());
    let holders = holdings(waiting.map(|(shape, provenance)| (provenance, Bytes::new(shape.size as u64))));
    for Holding { origin, bytes, blocks, .. } in holders.iter().take(HOLDERS) {
        text += &format!("\n  spilled {bytes} in {blocks} block(s): {}", ORIGINS.label(*origin));
    }
    let why = |resident: &dyn Resident| match resident.move_barrier() {
        Some(barrier) => Some(barrier.reason()),
        None if !resident.may_spill() => Some("wanted by a launch"),
        None => None,
    };
    for Pinned { why, blocks, bytes } in staying(memory, why) {
        text += &format!("\n  could not be spilled: {bytes} in {blocks} block(s): {why}");
    }
    text
}
