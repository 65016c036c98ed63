//! Copies that are donated in place of arrays that only lend their memory.
//!
//! ```text
//!   caller's argument   NumPy's memory, aliased ----- read ----> ........ deleted once the program runs
//!   stand-in            a block of the arena  <------ copied           |
//!   engine                                            is given the stand-in for good: the result lies in its block
//! ```
//!
//! A program may write its result into an argument that it is given for good, but never into memory that an outsider
//! still looks at. Left alone, the engine copies such an argument into memory of its own, and the result lies there,
//! outside of the arena and its limit. A stand-in is the same copy, in the arena.
//!
//! The engine keeps the last word where it would not take the memory over: an argument that somebody holds the address
//! of (trap T11), that the caller forbade to consume, or that comes twice (its error, trap T13). A program that we could
//! not read says too late what it consumes.

use std::ptr;

use super::{
    buffer::Buffer,
    entry::Outcome,
    lane::{Destination, Lane},
    loaded::{Donations, Loaded},
    origins::ORIGINS,
    storage::Access,
};
use crate::{device::strided, engine::Raw, memory::Maker, report::snapshot::OriginKind, sys};

/// A copy of an argument.
pub struct StandIn {
    /// Which one, by its number.
    pub argument: usize,
    /// Where the copy lies.
    pub place: Destination,
}

/// Makes the stand-ins of one device. `kept` are the numbers of arguments that the caller forbade to consume. Costs a
/// program one look at each argument that it donates.
///
/// # Errors
/// INVALID_ARGUMENT for an argument that was deleted or donated, RESOURCE_EXHAUSTED, or the engine's. The arguments are as
/// they were; what was made so far stays in the lane for the caller to abandon.
///
/// # Safety
/// The client must be alive; the arguments must be live buffers of ours.
pub unsafe fn prepare(
    lane: &mut Lane<'_>,
    loaded: &Loaded,
    arguments: &[*mut sys::PJRT_Buffer],
    kept: &[i64],
) -> Outcome {
    let Donations::Only(donated) = &loaded.program.plan.donations else { return Ok(()) };
    for &argument in donated {
        let Some(&handle) = arguments.get(argument) else { continue };
        // SAFETY: the caller's promise.
        let buffer = unsafe { Buffer::borrow(handle, "PJRT_LoadedExecutable_Execute")? };
        if buffer.access == Access::ReadOnly
            && !kept.contains(&(argument as i64))
            && arguments.iter().filter(|&&other| other == handle).count() == 1
        {
            // SAFETY: the caller's promise.
            unsafe { stand_in(lane, loaded, argument, buffer)? };
        }
    }
    Ok(())
}

/// Makes one stand-in, if the engine would take the argument's memory over.
///
/// # Errors
/// As [`prepare`].
///
/// # Safety
/// As [`prepare`].
#[cold]
unsafe fn stand_in(lane: &mut Lane<'_>, loaded: &Loaded, argument: usize, buffer: &Buffer) -> Outcome {
    let client = &loaded.client;
    let Some(device) = lane.device.filter(|device| device.memory.0 == buffer.memory.0) else { return Ok(()) };
    let Some(arena) = &device.arena else { return Ok(()) };
    if buffer.state().is_referenced() {
        return Ok(());
    }
    let Some(reading) = buffer.read()? else { return Ok(()) };
    let maker = Maker { origin: ORIGINS.of_shape(OriginKind::Copy, &buffer.shape), run: lane.run };
    let held = client.allocate(arena, &buffer.shape, maker).map_err(|shortage| client.exhausted(arena, shortage))?;
    // SAFETY: the array is whole from the start, because its owner lends it as it is, and does not go while it is read;
    // the block is ours alone and as large. It is aligned, holds the array, and is freed only after the view.
    let view = unsafe {
        strided::copy(
            ptr::with_exposed_provenance(reading.address()),
            ptr::with_exposed_provenance_mut(held.address()),
            buffer.shape.size,
        );
        let shape = &buffer.shape;
        client.view(device.memory, held.address(), shape)?
    };
    lane.stand_ins.push(StandIn { argument, place: Destination { held, view: Raw(view), shell: None, before: None } });
    Ok(())
}
