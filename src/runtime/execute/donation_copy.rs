//! Copies that are donated in place of arrays that cannot be.
//!
//! ```text
//!   caller's argument   NumPy's memory, aliased ----- read ----> ........ deleted once the program runs
//!   copy                a block of the arena  <------ copied           |
//!   engine                                            is donated the copy: the result lies in its block
//! ```
//!
//! A program may write its result into an argument that is donated to it, but never into memory that an outsider still looks
//! at. Left alone, the engine copies such an argument into memory of its own, and the result lies there, outside of the arena
//! and its limit. A donation copy is the same copy, in the arena.
//!
//! Neither may it write into an array that a program from a host callback reads, of which the engine does not know.
//!
//! The engine keeps the last word where it would not take the memory over: an argument that an outsider holds the address of
//! (engine behaviour T11), that the caller forbade to consume, or that comes twice (its error, engine behaviour T13). A program that we could not read
//! says too late what it consumes.

use std::ptr;

use crate::{
    device::strided,
    engine::{EngineBuffer, Outcome},
    memory::{Execution, Provenance},
    report::snapshot::OriginKind,
    runtime::{
        allocator::allocate::allocate_or_explain,
        buffer::{BufferRef, borrowed, reading::Reading, storage::Access},
        client::Device,
        device_memory::origins::ORIGINS,
        executable::loaded::{Donations, Loaded},
        execute::{call::Call, destination::Destination},
    },
};

/// A copy of an argument.
pub struct DonationCopy {
    /// Which one, by its number.
    pub argument: usize,
    /// Where the copy lies.
    pub destination: Destination,
}

/// Copies the arguments of the device with the number `index` that have to be. Costs a program one look at each argument that
/// it donates.
///
/// # Errors
/// INVALID_ARGUMENT for an argument that was deleted or donated, RESOURCE_EXHAUSTED, or the engine's. The arguments are as
/// they were.
pub fn prepare(
    call: &Call<'_>,
    index: usize,
    device: Option<&Device>,
    execution: Execution,
    copies: &mut Vec<DonationCopy>,
) -> Outcome {
    let Donations::Only(donated) = &call.loaded.program.plan.donations else { return Ok(()) };
    for &argument in donated {
        if argument >= call.arguments(index).len() {
            continue;
        }
        let buffer = call.argument(index, argument)?;
        if buffer.access == Access::ReadOnly && !call.keeps(argument) && call.comes_once(index, argument) {
            copies.extend(copy_read_only(call.loaded, buffer, device, execution, argument)?);
        }
    }
    Ok(())
}

/// Copies an argument that only lends its memory, if the engine would take the memory over.
///
/// # Errors
/// As [`prepare`].
#[cold]
fn copy_read_only(
    loaded: &Loaded,
    buffer: BufferRef<'_>,
    device: Option<&Device>,
    execution: Execution,
    argument: usize,
) -> Outcome<Option<DonationCopy>> {
    if buffer.state().is_referenced() {
        return Ok(None);
    }
    // The array is defined from the start, because its owner lends it as it is.
    copy(loaded, buffer, device, execution, argument, || Ok(buffer.get().read()?))
}

/// Copies an argument that a program from a host callback reads. The caller donated the array all the same, so it ends as one
/// that was consumed.
///
/// # Errors
/// As [`prepare`]; FAILED_PRECONDITION where it cannot be copied.
#[cold]
pub fn copy_borrowed(
    loaded: &Loaded,
    buffer: BufferRef<'_>,
    device: Option<&Device>,
    execution: Execution,
    argument: usize,
) -> Outcome<DonationCopy> {
    // SAFETY: the client is open during the call that executes one of its programs.
    let lend = || unsafe { buffer.get().lend() }.map(Some);
    // The array is defined, because a program reads it already.
    Ok(copy(loaded, buffer, device, execution, argument, lend)?.ok_or_else(borrowed)?)
}

/// Copies an argument whose array is defined, if it lies in the device's own memory and `read` finds it.
///
/// # Errors
/// As [`prepare`], or those of `read`.
fn copy<'a>(
    loaded: &Loaded,
    buffer: BufferRef<'a>,
    device: Option<&Device>,
    execution: Execution,
    argument: usize,
    read: impl FnOnce() -> Outcome<Option<Reading<'a>>>,
) -> Outcome<Option<DonationCopy>> {
    let client = &loaded.client;
    let Some(device) = device.filter(|device| device.memory.0 == buffer.memory.0) else { return Ok(None) };
    let Some(arena) = &device.arena else { return Ok(None) };
    // Room first: it may have to be waited for, and whoever reads waits for nothing.
    let provenance = Provenance { origin: ORIGINS.of_shape(OriginKind::Copy, &buffer.shape), run: execution };
    let allocation = allocate_or_explain(&client.allocator, arena, &buffer.shape, provenance)?;
    let Some(reading) = read()? else { return Ok(None) };
    // SAFETY: the array is defined, and neither changes nor goes while it is read; the block is ours alone and as large. It is
    // aligned, holds the array, and is freed only after the view, which is new and ours.
    let view = unsafe {
        strided::copy(
            ptr::with_exposed_provenance(reading.address()),
            ptr::with_exposed_provenance_mut(allocation.address()),
            buffer.shape.size,
        );
        let view = client.session.view(device.memory, allocation.address(), buffer.shape.array())?;
        EngineBuffer::own(client.session, view)
    };
    Ok(Some(DonationCopy { argument, destination: Destination::new(view, allocation) }))
}
