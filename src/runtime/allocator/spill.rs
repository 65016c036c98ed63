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

use std::sync::Arc;

use crate::{
    memory::{Block, Request},
    runtime::{
        allocator::core::Allocator,
        device_memory::{DeviceMemory, Resident, Tier},
    },
    units::Bytes,
};

/// Spills arrays of `memory` until `bytes` of them are gone, those first whose next use is furthest away. How many
/// bytes went; zero where the memory has no tier, none may go, or the tier has no room. O(n log n) for n arrays.
#[cold]
pub fn make_room(allocator: &Allocator, memory: &DeviceMemory, bytes: Bytes) -> Bytes {
    let Some(tier) = &memory.tier else { return Bytes::ZERO };
    // Arrays of programs that are done may go.
    allocator.in_flight.reap_all();
    let candidates = memory.residents.all().into_iter().filter(|resident| resident.may_spill());
    let (candidates, keys): (Vec<_>, Vec<_>) =
        candidates.filter_map(|resident| resident.use_key().map(|key| (resident, key))).unzip();
    let mut order: Vec<_> = tier.record.next_uses(keys.into_iter()).into_iter().zip(candidates).collect();
    order.sort_by(|(one, _), (other, _)| other.cmp(one));
    let mut gone = Bytes::ZERO;
    for (_, resident) in order {
        if gone >= bytes {
            break;
        }
        match spill(memory, tier, resident) {
            Ok(bytes) => gone += bytes,
            Err(TierIsFull) => continue,
        }
    }
    gone
}

/// There is no room for an array in the tier.
struct TierIsFull;

/// A block of the tier; freed if nobody takes it.
struct TierBlock<'a> {
    tier: &'a DeviceMemory,
    block: Option<Block>,
}

impl Drop for TierBlock<'_> {
    fn drop(&mut self) {
        if let Some(block) = self.block
            && let Err(error) = self.tier.free(block.id)
        {
            log::error!("{error}");
        }
    }
}

/// Spills one array; zero if it may not go by now.
fn spill(memory: &DeviceMemory, tier: &Tier, resident: Arc<dyn Resident>) -> Result<Bytes, TierIsFull> {
    let Some(occupied) = resident.occupied() else { return Ok(Bytes::ZERO) };
    let (size, provenance) = (occupied.size, occupied.provenance);
    let block = tier.memory.allocate(Request { size, provenance }).map_err(|_| TierIsFull)?;
    let mut held = TierBlock { tier: &tier.memory, block: Some(block) };
    let Some(mut locked) = resident.lock_to_spill(occupied.block) else { return Ok(Bytes::ZERO) };
    let Some(from) = locked.address() else { return Ok(Bytes::ZERO) };
    let bytes = size.min(locked.bytes());
    // SAFETY: the locked resident's block is at `from`, and nothing uses its bytes; the block of the tier is new and as
    // large. Both are memory of the host, because the device has a tier.
    let copied = unsafe { memory.carrier.copy(from, block.address, bytes) };
    // SAFETY: the bytes are at the new block of the tier, which is the resident's from `spilled` on, or not used if
    // that is not called.
    match copied.and_then(|()| unsafe { locked.prepare(block.address) }) {
        Ok(()) => {
            held.block = None;
            locked.spilled(block);
            tier.record.count_out(bytes);
            Ok(size)
        }
        Err(error) => {
            log::warn!("an array of {bytes} on {} is not spilled: {error}", memory.name());
            Ok(Bytes::ZERO)
        }
    }
}

/// What an error for memory that is exhausted says about the tier.
#[cold]
pub fn story(memory: &DeviceMemory, tier: &Tier) -> String {
    let stats = tier.memory.stats();
    let staying: Bytes = memory
        .residents
        .all()
        .iter()
        .filter(|resident| !resident.may_spill())
        .filter_map(|resident| resident.occupied())
        .map(|occupied| occupied.size)
        .sum();
    format!(
        "\nspilled: {} of the {} that PJRT_ARENA_SPILL_LIMIT allows on {}; arrays of {staying} could not be spilled, because \
         programs or outsiders use them",
        stats.bytes_in_use,
        stats.limit,
        memory.name()
    )
}
