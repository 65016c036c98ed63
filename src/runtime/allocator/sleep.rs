//! Sleep: all that may be spilled is, and the memory goes back to the system; and back.
//!
//! ```text
//!  sleep   wait for the programs that were under way -> spill all, once -> give back regions, pages of holes, what the
//!          engine's pool keeps
//!  wake    what waits in the tier comes back while there is room, what is used first at the beginning
//! ```
//!
//! Programs, handles and compiled code stay. A launch on a device that sleeps brings its arguments back as ever.

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    error::{Code, Error, Result},
    fork,
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

/// What came of going to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asleep {
    /// Bytes of arrays that were spilled.
    pub spilled: Bytes,
    /// What went back to the system.
    pub given: GivenBack,
    /// Programs and transfers of the client that were still under way: what they use stays on the device.
    pub under_way: usize,
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
    let whole = fork::step(|| memory.trim());
    let regions = regions.saturating_sub(memory.regions().len());
    // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
    let discard = |hole| unsafe { memory.discard(hole) };
    let pages = fork::step(|| memory.discard_holes(discard));
    let scratch = fork::step(|| memory.shared.as_ref().map_or(Bytes::ZERO, SharedPool::trim_unused));
    GivenBack { bytes: whole + pages + scratch, regions }
}

/// Spills all arrays of `memory` that may be, and gives memory back. The programs that are under way at its beginning
/// are waited for, as long as an allocation would wait: not those that other threads launch meanwhile.
///
/// # Errors
/// FAILED_PRECONDITION for a memory without a tier.
pub fn sleep(allocator: &Allocator, memory: &DeviceMemory) -> Result<Asleep> {
    if memory.tier.is_none() {
        let text = format!(
            "{} cannot sleep: its arrays have nowhere to go; allowed with PJRT_ARENA_SPILL=host, or a folder on a CPU",
            memory.name()
        );
        return Err(Error::new(Code::FailedPrecondition, text));
    }
    let deadline = allocator.deadline();
    let begun = allocator.in_flight.under_way();
    let have_ended = || !begun.iter().any(|program| program.is_under_way());
    allocator.in_flight.wait_until(&deadline, |round: &Round<'_>| {
        deadline.look_for_signals();
        if have_ended() || !round.wait() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(begun);
    // Their blocks are free, or their arrays may go, once they are reaped.
    allocator.drain();
    let spilled = spill::make_room(allocator, memory, None);
    let given = give_back(allocator, memory);
    let callbacks = usize::try_from(allocator.callbacks_under_way.load(Ordering::Relaxed)).unwrap_or(0);
    Ok(Asleep { spilled, given, under_way: allocator.in_flight.under_way().len() + callbacks })
}

/// Brings back what waits in the tier of `memory` while there is room, what is used first at the beginning. How many
/// bytes came, and the first error, the device's or the engine's, if there was one: the others come all the same, and
/// what did not come is where it was.
pub fn wake(allocator: &Allocator, memory: &Arc<DeviceMemory>) -> (Bytes, Option<Error>) {
    let Some(tier) = &memory.tier else { return (Bytes::ZERO, None) };
    let (mut came, mut first) = (Bytes::ZERO, None);
    for (_, resident) in tier.waiting_by_use() {
        let room = |shape: &_, provenance| allocate_at_once(allocator, memory, shape, provenance);
        match spill::bring_back::<Error>(memory, &resident, None, room) {
            Ok(bytes) => came += bytes,
            Err(error) if error.code == Code::ResourceExhausted => {}
            Err(error) => first = first.or(Some(error)),
        }
    }
    (came, first)
}
