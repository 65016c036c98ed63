//! Whether what a call needs can be had at all: known before anything is moved, spilled, asked of other processes or
//! waited for, so that what cannot succeed changes nothing.
//!
//! A yes is no promise, because blocks may lie in each other's way. A no is final: it supposes that every program
//! under way ends, and that all goes that may.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    memory::{BlockId, MoveBarrier, Needs},
    runtime::{
        allocator::{core::Allocator, spill::candidates::Candidates},
        device_memory::{DeviceMemory, Resident, Tier},
    },
    units::Bytes,
};

/// What a call needs of one memory, of which it may have a part.
#[derive(Clone, Default)]
pub struct CallNeeds {
    /// All that it needs beside its arguments.
    pub needs: Needs,
    /// What it has of that.
    pub had: Bytes,
    /// Its arguments, where arrays are spilled: those that are on the device, without those that cannot go.
    pub present: Vec<Bytes>,
    /// And those that come back from the tier.
    pub waiting: Vec<Bytes>,
    /// What the same call needs of other devices.
    pub elsewhere: Vec<(Arc<DeviceMemory>, CallNeeds)>,
}

impl CallNeeds {
    /// Those of a call that needs one array.
    pub fn of(size: Bytes) -> Self {
        Self { needs: Needs::of(size), ..Self::default() }
    }

    /// All that has to lie in the memory at once, or has to go into it yet.
    fn with_arguments(mut self) -> Needs {
        self.needs.arrays.extend(self.present.into_iter().chain(self.waiting));
        self.needs
    }
}

/// Whether an outsider keeps the bytes where they are, for as long as it likes.
pub fn is_kept(resident: &dyn Resident) -> bool {
    matches!(resident.move_barrier(), Some(MoveBarrier::Referenced | MoveBarrier::AddressKnown))
}

/// Whether what `call` needs can be had, by what the allocator may do for it: of this memory, and elsewhere. O(1) for
/// each memory where nothing is spilled and no address is known outside, else O(n) for n blocks.
#[cold]
pub fn can_be_had(allocator: &Allocator, memory: &DeviceMemory, mut call: CallNeeds) -> bool {
    let elsewhere = std::mem::take(&mut call.elsewhere);
    can_be_had_here(allocator, memory, call)
        && elsewhere.into_iter().all(|(memory, call)| can_be_had_here(allocator, &memory, call))
}

fn can_be_had_here(allocator: &Allocator, memory: &DeviceMemory, call: CallNeeds) -> bool {
    let compacts = allocator.compacts();
    if let Some(tier) = &memory.tier {
        return can_be_spilled_for(memory, tier, call, compacts);
    }
    // Nothing else is done than to wait for retired blocks, which the arena knows to help.
    if !compacts && memory.group.is_none() {
        return true;
    }
    let stats = memory.stats();
    let within = stats.free_bytes + stats.pending_bytes + stats.slack_bytes + stats.reserved_bytes;
    let within = within + stats.limit.saturating_sub(stats.pool_bytes);
    let Some(sum) = call.needs.sum() else { return false };
    if sum.saturating_sub(call.had) > within {
        // What caches and programs keep looks as if it were in use. What has an owner stays.
        allocator.drain();
        let owned: Bytes = memory.residents.all().iter().filter_map(|one| Some(one.occupied()?.size)).sum();
        if sum > stats.limit.saturating_sub(owned) {
            return false;
        }
    }
    stats.pinned_blocks == 0 || !compacts || fits_beside_kept(memory, call.needs)
}

/// As [`can_be_had`], where all arrays may go to the tier but those that outsiders keep.
fn can_be_spilled_for(memory: &DeviceMemory, tier: &Tier, call: CallNeeds, compacts: bool) -> bool {
    let (limit, present) = (memory.stats().limit, call.present.iter().copied().sum());
    let (mut kept, mut others, mut wanted, mut are_in_use) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO, false);
    let mut arguments = FxHashSet::default();
    for resident in memory.residents.all() {
        let Some(occupied) = resident.occupied() else { continue };
        if is_kept(&*resident) {
            kept += occupied.size;
            continue;
        }
        others += occupied.size;
        are_in_use |= resident.move_barrier().is_some();
        if !resident.may_spill() {
            wanted += occupied.size;
            arguments.insert(occupied.block);
        }
    }
    let tier_stats = tier.memory.stats();
    let room = tier_stats.free_bytes + tier_stats.limit.saturating_sub(tier_stats.pool_bytes) + tier.copies();
    let waiting: Bytes = call.waiting.iter().copied().sum();
    let has_none = call.had.is_zero();
    let needs = call.with_arguments();
    let Some(left) = needs.sum().and_then(|sum| limit.saturating_sub(kept).checked_sub(sum)) else { return false };
    let must_go = others.saturating_sub(present).saturating_sub(left);
    // Where nothing changes meanwhile, it is known which arrays go until the tier is full, and what they leave. The
    // arguments may go, too, and come back side by side.
    if !are_in_use && wanted <= present && waiting.is_zero() {
        let (mut goes, bytes) = going(memory, tier, room);
        goes.extend(arguments);
        if bytes < must_go
            || (has_none && !compacts && !fits_where(memory, needs.clone(), &|block| goes.contains(&block)))
        {
            return false;
        }
    }
    must_go <= room + waiting && fits_beside_kept(memory, needs)
}

/// The blocks of the arrays that go until a tier with so much `room` is full, in the order in which they go, and their
/// sizes, summed.
fn going(memory: &DeviceMemory, tier: &Tier, mut room: Bytes) -> (FxHashSet<BlockId>, Bytes) {
    let mut candidates = Candidates::of(memory, tier, |_| true);
    let (mut goes, mut bytes) = (FxHashSet::default(), Bytes::ZERO);
    let mut refused = Bytes::MAX;
    while let Some(candidate) = candidates.pop_if(|candidate| candidate.has_copy || candidate.size < refused) {
        let takes = if candidate.has_copy { Bytes::ZERO } else { candidate.size };
        match room.checked_sub(takes) {
            Some(left) => {
                room = left;
                bytes += candidate.size;
                goes.extend(candidate.resident.occupied().map(|occupied| occupied.block));
            }
            None => refused = takes,
        }
    }
    (goes, bytes)
}

/// Whether `needs` would fit if nothing were there but what outsiders keep.
fn fits_beside_kept(memory: &DeviceMemory, needs: Needs) -> bool {
    let kept = memory.residents.all();
    let kept = kept.iter().filter(|resident| is_kept(&***resident)).filter_map(|resident: &Arc<_>| resident.occupied());
    let kept: FxHashSet<BlockId> = kept.map(|occupied| occupied.block).collect();
    fits_where(memory, needs, &|block| !kept.contains(&block))
}

/// Whether `needs` would fit if all were gone that `goes` names: in this order, or the largest first.
fn fits_where(memory: &DeviceMemory, mut needs: Needs, goes: &dyn Fn(BlockId) -> bool) -> bool {
    memory.would_fit(&needs, goes) || {
        needs.arrays.sort_unstable_by(|one, other| other.cmp(one));
        memory.would_fit(&needs, goes)
    }
}
