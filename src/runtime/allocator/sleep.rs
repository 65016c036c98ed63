//! Sleep: all that may be spilled is, and the memory goes back to the system; and back.
//!
//! ```text
//!  sleep   wait for programs under way -> spill all -> give back regions, pages of holes, what the engine's pool keeps
//!  wake    what waits in the tier comes back while there is room, what is used first at the beginning
//! ```
//!
//! Programs, handles and compiled code stay. A launch on a device that sleeps brings its arguments back as ever.

use std::{ops::ControlFlow, sync::Arc};

use crate::{
    error::{Code, Error, Result},
    runtime::{
        allocator::{allocate::allocate_at_once, core::Allocator, spill},
        device_memory::{DeviceMemory, SharedPool},
        in_flight::Round,
    },
    units::Bytes,
};

/// What went back to the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// In bytes.
    pub bytes: Bytes,
    /// Whole regions among them.
    pub regions: usize,
}

/// Gives memory that holds nothing back to the system: empty regions, the pages of holes, and what the engine's pool
/// keeps for the next program where it shares the device's memory; of the device's tier, too.
pub fn give_back(allocator: &Allocator, memory: &DeviceMemory) -> GivenBack {
    allocator.drain();
    let own = give_back_of(memory);
    let tier = memory.tier.as_ref().map(|tier| give_back_of(&tier.memory)).unwrap_or_default();
    GivenBack { bytes: own.bytes + tier.bytes, regions: own.regions + tier.regions }
}

fn give_back_of(memory: &DeviceMemory) -> GivenBack {
    let regions = memory.regions().len();
    let whole = memory.trim();
    let regions = regions.saturating_sub(memory.regions().len());
    let pages = memory.discard_holes(|hole| {
        // SAFETY: the hole lies in a region of this carrier's device, and the arena allocates nothing in it
        // meanwhile.
        unsafe { memory.carrier.discard(hole.address, hole.bytes) }.unwrap_or_else(|error| {
            log::warn!("a hole of {} could not be given back: {error}", hole.bytes);
            Bytes::ZERO
        })
    });
    let scratch = memory.shared.as_ref().map_or(Bytes::ZERO, SharedPool::trim_unused);
    GivenBack { bytes: whole + pages + scratch, regions }
}

/// Spills all arrays of `memory` that may be, after the programs under way have ended, and gives memory back. How many
/// bytes of arrays went, and what was given back.
///
/// # Errors
/// FAILED_PRECONDITION for a memory without a tier.
pub fn sleep(allocator: &Allocator, memory: &DeviceMemory) -> Result<(Bytes, GivenBack)> {
    if memory.tier.is_none() {
        let text = format!(
            "{} cannot sleep: its arrays have nowhere to go; allowed with PJRT_ARENA_SPILL=host, or a folder on a CPU",
            memory.name()
        );
        return Err(Error::new(Code::FailedPrecondition, text));
    }
    let deadline = allocator.deadline();
    let mut gone = Bytes::ZERO;
    allocator.in_flight.wait_until(&deadline, |round: &Round<'_>| {
        allocator.clear_caches();
        gone += spill::make_room(allocator, memory, None);
        deadline.look_for_signals();
        if round.wait() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    Ok((gone, give_back(allocator, memory)))
}

/// Brings back what waits in the tier of `memory` while there is room, what is used first at the beginning. How many
/// bytes came.
///
/// # Errors
/// The device's or the engine's; what did not come is where it was.
pub fn wake(allocator: &Allocator, memory: &Arc<DeviceMemory>) -> Result<Bytes> {
    let Some(tier) = &memory.tier else { return Ok(Bytes::ZERO) };
    let mut came = Bytes::ZERO;
    for (_, resident) in tier.waiting_by_use() {
        let room = |shape: &_, provenance| allocate_at_once(allocator, memory, shape, provenance);
        match spill::bring_back::<Error>(memory, &resident, None, room) {
            Ok(bytes) => came += bytes,
            Err(error) if error.code == Code::ResourceExhausted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(came)
}
