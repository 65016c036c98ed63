//! Copies that are donated in place of arrays that must not be.
//!
//! ```text
//!   caller's argument   NumPy's memory, aliased ----- read ----> ........ deleted once the program runs
//!   copy                a block of the arena  <------ copied           |
//!   engine                                            is donated the copy: the result lies in its block
//! ```
//!
//! A program may write its result into an argument that is donated to it, but never into memory that an outsider
//! still reads. By itself the engine copies such an argument into memory of its own, and the result lies there,
//! outside of the arena and its limit. A donation copy is the same copy, in the arena.
//!
//! Nor may a program write into an array that a program from a host callback reads, of which the engine does not
//! know.
//!
//! Arguments that the engine would not consume anyway are left to it: an argument whose address an outsider holds
//! (engine behaviour T11), one that the caller forbade to consume, and one that comes twice (the engine's error,
//! engine behaviour T13). For a program that could not be read it is not known before the launch what it consumes.

use std::{ptr, sync::Arc};

use crate::{
    device::strided,
    engine::{EngineBuffer, Outcome},
    memory::{Execution, Needs, Provenance},
    report::snapshot::OriginKind,
    runtime::{
        allocator::{
            allocate::{allocate, footprint},
            call_needs::CallNeeds,
            oom::{Needed, exhausted},
            reclaim::WaitPolicy,
        },
        buffer::{BufferRef, borrowed, reading::Reading, storage::Access},
        client::Device,
        device_memory::{Allocation, origins::ORIGINS},
        executable::loaded::{Donations, Loaded},
        execute::{call::Call, unplaced::Unplaced},
    },
    units::{Address, Bytes},
};

/// A copy of an argument.
pub struct DonationCopy {
    /// The argument's number.
    pub argument: usize,
    /// A view of its block, which goes before the block does.
    pub view: EngineBuffer,
    /// The block.
    pub allocation: Allocation,
}

/// What the call needs, of which it has these copies.
type CopyNeeds<'a> = &'a dyn Fn(&[DonationCopy]) -> CallNeeds;

/// Copies those of the `donated` arguments of the device with the number `index` that must be copied: a look at each.
/// `wait` says whether their allocations wait, which are a part of what the call `needs`.
///
/// # Errors
/// INVALID_ARGUMENT for an argument that was deleted or donated, RESOURCE_EXHAUSTED, or the engine's. The arguments are
/// as they were.
pub fn prepare(
    call: &Call<'_>,
    index: usize,
    (device, execution, wait): (Option<&Device>, Execution, WaitPolicy),
    donated: &[usize],
    needs: CopyNeeds<'_>,
    copies: &mut Vec<DonationCopy>,
) -> Result<(), Unplaced> {
    for &argument in donated {
        if argument >= call.arguments(index).len() {
            continue;
        }
        let buffer = call.argument(index, argument)?;
        if is_copied(call, index, argument, buffer) {
            let needs = || needs(copies);
            let copy = copy_read_only(call.loaded, buffer, device, (execution, wait), argument, &needs)?;
            copies.extend(copy);
        }
    }
    Ok(())
}

/// Copies an argument whose memory programs may only read, if the engine would consume it.
///
/// # Errors
/// As [`prepare`].
#[cold]
fn copy_read_only(
    loaded: &Loaded,
    buffer: BufferRef<'_>,
    device: Option<&Device>,
    (execution, wait): (Execution, WaitPolicy),
    argument: usize,
    needs: &dyn Fn() -> CallNeeds,
) -> Result<Option<DonationCopy>, Unplaced> {
    if buffer.state().is_referenced() {
        return Ok(None);
    }
    // The array is defined, because the outsider's memory is aliased as it is.
    copy(loaded, buffer, device, (execution, wait), argument, needs, || Ok(buffer.get().read()?))
}

/// Copies an argument that a program from a host callback reads. The caller donated the array, so it is deleted like
/// one that was consumed.
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
    let lend = || buffer.get().lend().map(Some);
    let size = footprint(&loaded.client.allocator, &buffer.shape);
    let needs = || CallNeeds::of(size);
    // The array is defined, because a program reads it already.
    let copied = copy(loaded, buffer, device, (execution, WaitPolicy::LaunchWaits), argument, &needs, lend);
    let explained = |unplaced| match unplaced {
        Unplaced::Failed(failure) => failure,
        Unplaced::NoRoom(memory, shortage) => {
            // The call has all else that it needs, so nothing of it is forgotten.
            let run = Execution::default();
            let needed = [Needed { memory: Arc::clone(&memory), needs: Needs::of(size), run }];
            exhausted(&loaded.client.allocator, &memory, shortage, &needed, None).into()
        }
    };
    Ok(copied.map_err(explained)?.ok_or_else(borrowed)?)
}

/// The arguments of the device with the number `index` that [`prepare`] copies.
pub fn copied<'a>(call: &Call<'a>, index: usize) -> Vec<BufferRef<'a>> {
    let Donations::Only(donated) = &call.loaded.program.plan.donations else { return Vec::new() };
    let donated = donated.iter().filter(|&&argument| argument < call.arguments(index).len());
    let copied = donated.filter_map(|&argument| {
        let buffer = call.argument(index, argument).ok()?;
        (is_copied(call, index, argument, buffer) && !buffer.state().is_referenced()).then_some(buffer)
    });
    copied.collect()
}

/// Whether an argument is donated whose memory programs may only read.
fn is_copied(call: &Call<'_>, index: usize, argument: usize, buffer: BufferRef<'_>) -> bool {
    buffer.access == Access::ReadOnly && !call.keeps(argument) && call.comes_once(index, argument)
}

/// Copies an argument whose array is defined, if it lies in the device's own memory and `read` finds it. The copy is a
/// part of what the call `needs`.
///
/// # Errors
/// As [`prepare`], or those of `read`.
fn copy<'a>(
    loaded: &Loaded,
    buffer: BufferRef<'a>,
    device: Option<&Device>,
    (execution, wait): (Execution, WaitPolicy),
    argument: usize,
    needs: &dyn Fn() -> CallNeeds,
    read: impl FnOnce() -> Outcome<Option<Reading<'a>>>,
) -> Result<Option<DonationCopy>, Unplaced> {
    let client = &loaded.client;
    let Some(device) = device.filter(|device| device.memory().0 == buffer.memory.0) else { return Ok(None) };
    let Some(arena) = &device.arena else { return Ok(None) };
    // Allocated first: the allocation may wait, and a thread that reads an array must wait for nothing.
    let provenance = Provenance { origin: ORIGINS.of_shape(OriginKind::Copy, &buffer.shape), run: execution };
    let allocation = allocate(&client.allocator, arena, (&buffer.shape, provenance), wait, needs)
        .map_err(|shortage| Unplaced::NoRoom(Arc::clone(arena), shortage))?;
    let Some(reading) = read()? else { return Ok(None) };
    let (from, bytes) = (reading.address(), buffer.shape.size);
    // SAFETY: the array is defined, and neither changes, moves nor is freed while it is read; nothing else uses the
    // new block, which is as large. The client is alive during the call; the block is aligned, holds the array, and
    // is freed only after the view.
    let view = unsafe {
        if arena.on_host {
            let to = ptr::with_exposed_provenance_mut(allocation.address());
            strided::copy(ptr::with_exposed_provenance(from), to, bytes);
        } else {
            // No processor writes to a GPU's memory.
            let (from, bytes) = (Address::new(from as u64), Bytes::new(bytes as u64));
            arena.carrier.copy_now(from, allocation.block().address, bytes)?;
        }
        EngineBuffer::view(client.session, device.memory(), allocation.address(), buffer.shape.array())?
    };
    Ok(Some(DonationCopy { argument, view, allocation }))
}
