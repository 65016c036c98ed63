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
//! Neither may it write into an array that a program from a host callback reads, which the engine does not know.
//!
//! The engine keeps the last word where it would not take the memory over: an argument that somebody holds the address
//! of (trap T11), that the caller forbade to consume, or that comes twice (its error, trap T13). A program that we could
//! not read says too late what it consumes.

use std::ptr;

use crate::{
    device::strided,
    engine::{Outcome, Raw},
    memory::Provenance,
    report::snapshot::OriginKind,
    runtime::{
        allocator::{allocate::allocate, oom::exhausted},
        buffer::{Buffer, reading::Reading, storage::Access},
        device_memory::origins::ORIGINS,
        executable::loaded::{Donations, Loaded},
        execute::{
            call::NAME,
            device_launch::{Destination, DeviceLaunch},
            donations::lent,
        },
    },
    sys,
};

/// A copy of an argument.
pub struct DonationCopy {
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
    lane: &mut DeviceLaunch<'_>,
    loaded: &Loaded,
    arguments: &[*mut sys::PJRT_Buffer],
    kept: &[i64],
) -> Outcome {
    let Donations::Only(donated) = &loaded.program.plan.donations else { return Ok(()) };
    for &argument in donated {
        let Some(&handle) = arguments.get(argument) else { continue };
        // SAFETY: the caller's promise.
        let buffer = unsafe { Buffer::borrow(handle, NAME)? };
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
unsafe fn stand_in(lane: &mut DeviceLaunch<'_>, loaded: &Loaded, argument: usize, buffer: &Buffer) -> Outcome {
    if buffer.state().is_referenced() {
        return Ok(());
    }
    // SAFETY: the caller's promise; the array is whole from the start, because its owner lends it as it is.
    unsafe { copy(lane, loaded, argument, buffer, || Ok(buffer.read()?)).map(drop) }
}

/// Makes a stand-in for an argument that a program from a host callback reads: that is over after who knows how long, and may wait
/// for whoever would wait for it. The caller gave the array away all the same, so it ends as one that was consumed.
///
/// # Errors
/// As [`prepare`]; FAILED_PRECONDITION where it cannot be copied.
///
/// # Safety
/// As [`prepare`].
#[cold]
pub unsafe fn for_lent(
    lane: &mut DeviceLaunch<'_>,
    loaded: &Loaded,
    argument: usize,
    arguments: &[*mut sys::PJRT_Buffer],
    buffer: &Buffer,
) -> Outcome {
    // The engine refuses to be given what it is passed twice.
    if arguments.iter().filter(|&&other| other == arguments[argument]).count() > 1 {
        return Ok(());
    }
    // SAFETY: the caller's promise; the array is whole, because a program reads it already.
    let made = unsafe { copy(lane, loaded, argument, buffer, || buffer.lend().map(Some))? };
    if made { Ok(()) } else { Err(lent().into()) }
}

/// Copies an argument, if it lies in the device's own memory and `read` finds it; whether it did.
///
/// # Errors
/// As [`prepare`], or those of `read`.
///
/// # Safety
/// As [`prepare`]; the array must be whole.
unsafe fn copy<'a>(
    lane: &mut DeviceLaunch<'_>,
    loaded: &Loaded,
    argument: usize,
    buffer: &'a Buffer,
    read: impl FnOnce() -> Outcome<Option<Reading<'a>>>,
) -> Outcome<bool> {
    let client = &loaded.client;
    let Some(device) = lane.device.filter(|device| device.memory.0 == buffer.memory.0) else { return Ok(false) };
    let Some(arena) = &device.arena else { return Ok(false) };
    // Room first: it may have to be waited for, which nobody does who reads.
    let maker = Provenance { origin: ORIGINS.of_shape(OriginKind::Copy, &buffer.shape), run: lane.run };
    let held = allocate(&client.allocator, arena, &buffer.shape, maker)
        .map_err(|shortage| exhausted(&client.allocator, arena, shortage))?;
    let Some(reading) = read()? else { return Ok(false) };
    // SAFETY: the array is whole, as the caller says, and neither changes nor goes while it is read; the block is ours alone and as
    // large. It is aligned, holds the array, and is freed only after the view.
    let view = unsafe {
        strided::copy(
            ptr::with_exposed_provenance(reading.address()),
            ptr::with_exposed_provenance_mut(held.address()),
            buffer.shape.size,
        );
        client.session.view(device.memory, held.address(), buffer.shape.array())?
    };
    lane.stand_ins
        .push(DonationCopy { argument, place: Destination { held, view: Raw(view), shell: None, before: None } });
    Ok(true)
}
