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
        allocator::{compaction, core::Allocator, spill::candidates::Candidates},
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
    pub had: Had,
    /// Its arguments, where arrays are spilled: those that are on the device, without those that cannot go.
    pub present: Vec<Bytes>,
    /// And those that come back from the tier.
    pub waiting: Vec<Bytes>,
    /// What the same call needs of other devices.
    pub elsewhere: Vec<(Arc<DeviceMemory>, CallNeeds)>,
}

/// What a call has of what it needs of one memory.
#[derive(Clone, Default)]
pub struct Had {
    /// All together.
    pub bytes: Bytes,
    /// Whether its scratch is kept.
    pub scratch: bool,
    /// Blocks for the first of its arrays.
    pub blocks: Vec<BlockId>,
}

impl CallNeeds {
    /// Those of a call that needs one array.
    pub fn of(size: Bytes) -> Self {
        Self { needs: Needs::of(size), ..Self::default() }
    }

    /// What it does not have yet.
    fn rest(&self) -> Needs {
        Needs {
            scratch: if self.had.scratch { Bytes::ZERO } else { self.needs.scratch },
            arrays: self.needs.arrays.get(self.had.blocks.len()..).unwrap_or_default().to_vec(),
            ..Needs::default()
        }
    }

    /// All that has to lie in the memory at once, or has to go into it yet.
    fn with_arguments(self) -> Needs {
        Needs { arguments: self.present.into_iter().chain(self.waiting).collect(), ..self.needs }
    }
}

/// Whether an outsider keeps the bytes where they are, for as long as it likes.
pub fn is_kept(resident: &dyn Resident) -> bool {
    matches!(resident.move_barrier(), Some(MoveBarrier::Referenced | MoveBarrier::AddressKnown))
}

/// Whether what `call` needs can be had, by what the allocator may do for it: of this memory, and elsewhere. O(1) for
/// each memory where nothing moves or is spilled, else O(n log n) for n blocks and each array.
#[cold]
pub fn can_be_had(allocator: &Allocator, memory: &DeviceMemory, mut call: CallNeeds) -> bool {
    let elsewhere = std::mem::take(&mut call.elsewhere);
    can_be_had_here(allocator, memory, call)
        && elsewhere.into_iter().all(|(memory, call)| can_be_had_here(allocator, &memory, call))
}

fn can_be_had_here(allocator: &Allocator, memory: &DeviceMemory, call: CallNeeds) -> bool {
    let compacts = allocator.compacts();
    if let Some(tier) = &memory.tier {
        return can_be_spilled_for(memory, tier, call);
    }
    // Nothing else is done than to wait for retired blocks, which the arena knows to help.
    if !compacts && memory.group.is_none() {
        return true;
    }
    let stats = memory.stats();
    let within = stats.free_bytes + stats.pending_bytes + stats.slack_bytes + stats.reserved_bytes;
    let within = within + stats.limit.saturating_sub(stats.pool_bytes);
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
    let parts = rest.arrays.len() + usize::from(!rest.scratch.is_zero());
    // A plan for one array that cannot be had moves nothing.
    let is_alone = parts <= 1 && call.had.blocks.is_empty();
    match (!is_alone).then(|| compaction::would_come(memory, &rest, (&call.needs, &call.had.blocks))).flatten() {
        Some(comes) => comes,
        None => stats.pinned_blocks == 0 || fits_beside_kept(memory, call.needs),
    }
}

/// As [`can_be_had`], where all arrays may go to the tier but those that outsiders keep.
fn can_be_spilled_for(memory: &DeviceMemory, tier: &Tier, call: CallNeeds) -> bool {
    let sum = |arguments: &[Bytes]| arguments.iter().copied().sum::<Bytes>();
    let (present, waiting) = (sum(&call.present), sum(&call.waiting));
    let (mut kept, mut others, mut wanted, mut are_in_use) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO, false);
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
        }
    }
    let tier_stats = tier.memory.stats();
    let room = tier_stats.free_bytes + tier_stats.limit.saturating_sub(tier_stats.pool_bytes) + tier.copies();
    let Some(left) = call.needs.sum().and_then(|needs| {
        memory.stats().limit.saturating_sub(kept).checked_sub(needs)?.checked_sub(present)?.checked_sub(waiting)
    }) else {
        return false;
    };
    let must_go = others.saturating_sub(present).saturating_sub(left);
    // Where nothing changes meanwhile, it is known which arrays go until the tier is full.
    if !are_in_use && wanted <= present && waiting.is_zero() && going(memory, tier, room) < must_go {
        return false;
    }
    must_go <= room + waiting && fits_beside_kept(memory, call.with_arguments())
}

/// The bytes of the arrays that go until a tier with so much `room` is full, in the order in which they go.
fn going(memory: &DeviceMemory, tier: &Tier, mut room: Bytes) -> Bytes {
    let mut candidates = Candidates::of(memory, tier, |_| true);
    let (mut bytes, mut refused) = (Bytes::ZERO, Bytes::MAX);
    while let Some(candidate) = candidates.pop_if(|candidate| candidate.has_copy || candidate.size < refused) {
        let takes = if candidate.has_copy { Bytes::ZERO } else { candidate.size };
        match room.checked_sub(takes) {
            Some(left) => {
                room = left;
                bytes += candidate.size;
            }
            None => refused = takes,
        }
    }
    bytes
}

/// Whether `needs` would fit if nothing were there but what outsiders keep: in this order, or the largest first.
fn fits_beside_kept(memory: &DeviceMemory, mut needs: Needs) -> bool {
    let kept = memory.residents.all();
    let kept = kept.iter().filter(|resident| is_kept(&***resident)).filter_map(|resident: &Arc<_>| resident.occupied());
    let kept: FxHashSet<BlockId> = kept.map(|occupied| occupied.block).collect();
    let goes = |block: BlockId| !kept.contains(&block);
    memory.would_fit(&needs, &goes) || {
        needs.arrays.append(&mut needs.arguments);
        needs.arrays.sort_unstable_by(|one, other| other.cmp(one));
        memory.would_fit(&needs, &goes)
    }
}
