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
    error::{Code, Error},
    fork,
    memory::{
        Goal, Pinned, Provenance,
        history::{EventKind, Holding, holdings},
        next_use::NextUse,
    },
    report::timeline::{TIMELINE, What},
    runtime::{
        allocator::{
            call_needs::CallNeeds,
            compaction::staying,
            core::Allocator,
            prospects::{can_be_had, is_kept},
            spill::{
                candidates::{Candidate, Candidates},
                tier_room::TierRoom,
            },
        },
        device_memory::{Allocation, DeviceMemory, Occupied, Resident, Tier, origins::ORIGINS},
        in_flight::deadline::{Deadline, cancelled},
        shape::Shape,
    },
    units::Bytes,
};

pub mod candidates;
pub mod foreseen;
#[cfg(test)]
mod tests;
mod tier_room;

/// Spills arrays of `memory`, those first whose next use is furthest away, until there is room for `goal`, as far as
/// the numbers tell; or all that may go without a goal. How many bytes went; zero where the memory has no tier, none
/// may go, or the tier has no room. O(n) for n arrays, and O(log n) for each that goes.
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
    spill_until(memory, tier, &Enough::new(allocator.compacts(), memory, goal), may, || true)
}

/// As [`make_room`], for an allocation that waits: no more arrays go after a signal has ended the wait.
pub fn make_room_until(
    deadline: &Deadline<'_>,
    allocator: &Allocator,
    memory: &DeviceMemory,
    goal: Option<Goal>,
) -> Bytes {
    let Some(tier) = &memory.tier else { return Bytes::ZERO };
    allocator.in_flight.reap_all();
    let enough = Enough::new(allocator.compacts(), memory, goal);
    spill_until(memory, tier, &enough, |_| true, || goes_on(deadline))
}

/// Makes room for several arrays of so many bytes together, which need not lie side by side: in one plan, where each by
/// itself would look at all arrays. Nothing goes where so much is free, or, for a caller that `waits`, will be when
/// retired blocks are; nor where the `call` can never have all that it needs. What is not reached is left to the
/// allocations.
///
/// # Errors
/// CANCELLED, if a signal ended it.
#[cold]
pub fn make_room_for_all(
    allocator: &Allocator,
    memory: &DeviceMemory,
    bytes: Bytes,
    waits: bool,
    call: &dyn Fn() -> CallNeeds,
) -> Result<(), Error> {
    let Some(tier) = &memory.tier else { return Ok(()) };
    let missing = || {
        let stats = memory.stats();
        let pending = if waits { stats.pending_bytes } else { Bytes::ZERO };
        let wanted = bytes.saturating_sub(pending);
        (wanted > stats.available()).then_some(wanted)
    };
    if missing().is_none() {
        return Ok(());
    }
    allocator.drain();
    let Some(wanted) = missing().filter(|_| can_be_had(allocator, memory, call())) else { return Ok(()) };
    let deadline = allocator.deadline().telling(|waited| {
        log::info!("a launch waits on {} for room for {bytes}, for {waited:.1?} so far", memory.name());
    });
    spill_until(memory, tier, &Enough::Free(wanted), |_| true, || goes_on(&deadline));
    let why = "Arrays made room for those of a program.";
    deadline.interrupted().map_or(Ok(()), |after| Err(cancelled(after, why)))
}

/// Whether no signal has ended a wait.
fn goes_on(deadline: &Deadline<'_>) -> bool {
    deadline.look_for_signals();
    deadline.interrupted().is_none()
}

/// Spills arrays whose next use `may` accepts until `enough`, as long as it `goes_on`. How many bytes went.
fn spill_until(
    memory: &DeviceMemory,
    tier: &Tier,
    enough: &Enough,
    may: impl Fn(NextUse) -> bool,
    goes_on: impl Fn() -> bool,
) -> Bytes {
    memory.moves.during(|| {
        let mut candidates = fork::step(|| Candidates::of(memory, tier, may));
        let mut room = TierRoom::new(memory, tier);
        let mut gone = Bytes::ZERO;
        while goes_on()
            && let Some(candidate) =
                candidates.pop_if(|candidate| candidate.copy.is_some() || room.may_hold(candidate.size))
        {
            let bytes = fork::step(|| spill(memory, tier, candidate, &mut room, &candidates));
            gone += bytes;
            if !bytes.is_zero() && enough.is_there(memory, gone) {
                break;
            }
        }
        gone
    })
}

/// Whether there would be room for `goal` once all had gone but what outsiders keep on the device. O(n) for n arrays.
#[cold]
pub fn could_make_room(memory: &DeviceMemory, goal: Goal) -> bool {
    let (Some(_), Goal::Hole(bytes) | Goal::Bottom(bytes)) = (&memory.tier, goal) else { return false };
    let staying = memory.residents.all().into_iter().filter(|resident| is_kept(&**resident));
    let staying = staying.filter_map(|resident| resident.occupied());
    let staying: Bytes = staying.map(|occupied| occupied.size).sum();
    bytes <= memory.limit().saturating_sub(staying)
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
            Self::Free(bytes) => memory.stats().available() >= bytes,
            Self::Hole(bytes) => memory.stats().largest_request >= bytes,
            Self::Gone(bytes) => gone >= bytes,
        }
    }
}

/// Spills one array; zero if it may not go by now, or has no room in the tier.
fn spill(
    memory: &DeviceMemory,
    tier: &Tier,
    Candidate { next, key, resident, .. }: Candidate,
    room: &mut TierRoom<'_>,
    others: &Candidates,
) -> Bytes {
    let since = Instant::now();
    let Some(Occupied { block, size, provenance }) = resident.occupied() else { return Bytes::ZERO };
    // The copy that is kept, if there is one, stays while the array is locked.
    let mut to = None;
    if resident.copy().is_none() {
        to = room.allocate(size, provenance, others);
        if to.is_none() {
            return Bytes::ZERO;
        }
    }
    let waiting = Arc::clone(&resident);
    let Some(mut locked) = resident.lock_to_spill(block) else { return Bytes::ZERO };
    let (Some(from), copy) = (locked.address(), locked.copy()) else { return Bytes::ZERO };
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
        (None, None) => return Bytes::ZERO,
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
            size
        }
        Err(error) => {
            log::warn!("an array of {bytes} on {} is not spilled: {error}", memory.name());
            room.failed(error);
            Bytes::ZERO
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
    if !memory.moves.during(|| fork::step(|| Arc::clone(resident).bring_back(allocation)))? {
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
    let trouble = tier.trouble.lock().clone();
    // Nothing but the tier keeps what may be spilled.
    let tier_refuses = trouble.as_ref().map(|trouble| match trouble.code {
        Code::ResourceExhausted => "no room in the tier",
        _ => "the copy to the tier failed",
    });
    let why = |resident: &dyn Resident| match resident.move_barrier() {
        Some(barrier) => Some(barrier.reason()),
        None if !resident.may_spill() => Some("wanted by a launch"),
        None => tier_refuses,
    };
    for Pinned { why, blocks, bytes } in staying(memory, why) {
        text += &format!("\n  could not be spilled: {bytes} in {blocks} block(s): {why}");
    }
    if let Some(trouble) = trouble.filter(|trouble| !trouble.message.is_empty()) {
        text += &format!("\n  the tier's last error: {}", trouble.message);
    }
    text
}
