//! Whether what a call needs can be had at all: known before anything is moved, spilled, asked of other processes or
//! waited for, so that what cannot succeed changes nothing.
//!
//! A yes is no promise, because blocks may lie in each other's way. A no is final: it supposes that every program
//! under way ends, and that all goes that may.

use std::time::Duration;

use rustc_hash::FxHashSet;

use crate::{
    memory::{Arena, BlockId, Goal, MayMove, MoveBarrier, Needs},
    runtime::{
        allocator::{call_needs::CallNeeds, compaction, core::Allocator, spill::foreseen::Foreseen},
        device_memory::{DeviceMemory, Resident, Tier},
    },
    units::Bytes,
};

/// How long to wait for the ends of programs whose results are there, before anything is moved or refused because of
/// them: their threads may have no processor.
const ENDING: Duration = Duration::from_millis(50);

/// Whether an outsider keeps the bytes where they are, for as long as it likes.
pub fn is_kept(resident: &dyn Resident) -> bool {
    matches!(resident.move_barrier(), Some(MoveBarrier::Referenced | MoveBarrier::AddressKnown))
}

/// Whether what `call` needs can be had, by what the allocator may do for it: of this memory, and elsewhere. O(1) for
/// each memory where nothing moves or is spilled, else O(n log n) for n blocks and each array.
#[cold]
pub fn can_be_had(allocator: &Allocator, memory: &DeviceMemory, mut call: CallNeeds) -> bool {
    // What programs that are done used may go.
    allocator.in_flight.drain_ready(ENDING);
    let elsewhere = std::mem::take(&mut call.elsewhere);
    can_be_had_here(allocator, memory, call)
        && elsewhere.into_iter().all(|(memory, call)| can_be_had_here(allocator, &memory, call))
}

fn can_be_had_here(allocator: &Allocator, memory: &DeviceMemory, call: CallNeeds) -> bool {
    let compacts = allocator.compacts();
    if let Some(tier) = &memory.tier {
        return can_be_spilled_for(compacts, (memory, memory), tier, call);
    }
    // Nothing else is done than to wait for retired blocks, which the arena knows to help.
    if !compacts && memory.group.is_none() {
        return true;
    }
    let stats = memory.stats();
    let within = stats.available() + stats.pending_bytes + stats.slack_bytes + stats.reserved_bytes;
    let Some(sum) = call.needs.sum() else { return false };
    if sum.saturating_sub(call.had.bytes) > within {
        // What caches and programs keep looks as if it were in use. What has an owner stays.
        allocator.drain();
        let owned: Bytes = memory.residents.all().iter().filter_map(|one| Some(one.occupied()?.size)).sum();
        if sum > stats.limit.saturating_sub(owned) {
            return false;
        }
    }
    if !compacts {
        return true;
    }
    allocator.drain();
    let rest = call.rest();
    // A plan for one array that cannot be had moves nothing.
    let is_alone = rest.parts() <= 1 && call.had.blocks.is_empty();
    match (!is_alone).then(|| compaction::would_come(memory, &rest, (&call.needs, &call.had.blocks))).flatten() {
        Some(comes) => comes,
        None => stats.pinned_blocks == 0 || fits_in_some_order(memory, call, &kept(memory)),
    }
}

/// Whether what `call` needs could be had yet after the moves for `goal`, which make room for one part of it. Where
/// arrays are spilled, moves come first: they may take the holes that would become one with what goes after them.
#[cold]
pub fn may_be_had_after_moves(
    allocator: &Allocator,
    memory: &DeviceMemory,
    call: &dyn Fn() -> CallNeeds,
    goal: Goal,
) -> bool {
    let Some(tier) = &memory.tier else { return true };
    let call = call();
    let rest = call.rest();
    if rest.parts() <= 1 {
        return true;
    }
    let Some(moved) = compaction::imagined_after(memory, goal) else { return true };
    moved.would_fit(&rest, &|_| false, None) || can_be_spilled_for(allocator.compacts(), (memory, &moved), tier, call)
}

/// The blocks that outsiders keep.
fn kept(memory: &DeviceMemory) -> FxHashSet<BlockId> {
    let kept = memory.residents.all().into_iter().filter(|resident| is_kept(&**resident));
    kept.filter_map(|resident| Some(resident.occupied()?.block)).collect()
}

/// As [`can_be_had`], where all arrays of `memory` may go to the tier but those that outsiders keep; its blocks lie as
/// in `arena`.
fn can_be_spilled_for(compacts: bool, (memory, arena): (&DeviceMemory, &Arena), tier: &Tier, call: CallNeeds) -> bool {
    let waiting: Bytes = call.waiting().sum();
    let present = call.arguments.iter().map(|argument| argument.size).sum::<Bytes>() - waiting;
    let (mut kept, mut others, mut wanted, mut are_in_use) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO, false);
    let mut staying = FxHashSet::default();
    for resident in memory.residents.all() {
        let Some(occupied) = resident.occupied() else { continue };
        if is_kept(&*resident) {
            kept += occupied.size;
            staying.insert(occupied.block);
            continue;
        }
        others += occupied.size;
        are_in_use |= resident.move_barrier().is_some();
        if !resident.may_spill() {
            wanted += occupied.size;
        }
    }
    let tier_stats = tier.memory.stats();
    let room = tier_stats.available() + tier.copies();
    let Some(left) = call.needs.sum().and_then(|needs| {
        arena.stats().limit.saturating_sub(kept).checked_sub(needs)?.checked_sub(present)?.checked_sub(waiting)
    }) else {
        return false;
    };
    if others.saturating_sub(present).saturating_sub(left) > room + waiting {
        return false;
    }
    // What is in use, or another launch wants, may be gone when that has ended, or let others stay.
    if are_in_use || wanted > present {
        return fits_in_some_order(arena, call, &staying);
    }
    let own = call.own();
    let costs = memory.carrier.costs();
    let fits = |stays: &FxHashSet<BlockId>, needs: &Needs, in_turn: bool| {
        let goes = |block: BlockId| !staying.contains(&block) && !stays.contains(&block);
        let may_move = |block: BlockId| stays.contains(&block);
        let moves: Option<MayMove<'_>> = compacts.then_some((&costs, &may_move));
        arena.would_fit(needs, &goes, moves)
            || in_turn && !needs.arguments.is_empty() && arena.would_fit_in_turn(needs, &goes, moves)
    };
    let comes = |stays: &FxHashSet<BlockId>, back: &[Bytes]| {
        fits(stays, &Needs { arguments: back.to_vec(), ..Needs::default() }, true)
    };
    // Where a tier can grow by far more than could go there, nothing stays for want of a piece.
    let is_ample = others.get() <= tier_stats.growth().get() / 4;
    let foreseen = (!is_ample).then(|| Foreseen::of(memory, tier, &own));
    let beside = match &foreseen {
        Some(foreseen) => foreseen.beside_arguments(&call.arguments, &comes),
        None => own.clone(),
    };
    if fits(&beside, &call.beside(&beside), true) {
        return true;
    }
    if own.is_empty() {
        return false;
    }
    // The last thing that is tried: all has gone before the arguments come back.
    let after = match &foreseen {
        Some(foreseen) => foreseen.after_arguments(&call.arguments, &comes),
        None => FxHashSet::default(),
    };
    fits(&after, &call.beside(&after), false)
}

/// Whether what `call` needs would fit if nothing were there but what is `staying`: beside its arguments where they
/// are; or with them, in this order, or the largest first.
fn fits_in_some_order(arena: &Arena, call: CallNeeds, staying: &FxHashSet<BlockId>) -> bool {
    let own = call.own();
    let goes = |block| !staying.contains(&block);
    if !own.is_empty() && arena.would_fit(&call.beside(&own), &|block| goes(block) && !own.contains(&block), None) {
        return true;
    }
    let mut needs = call.beside(&FxHashSet::default());
    arena.would_fit(&needs, &goes, None) || {
        needs.arrays.append(&mut needs.arguments);
        needs.arrays.sort_unstable_by(|one, other| other.cmp(one));
        arena.would_fit(&needs, &goes, None)
    }
}
