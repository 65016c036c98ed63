//! Copies between devices and memories.
//!
//! ```text
//!  host memory   the source is defined, in an arena, in an outsider's memory or dense in the engine's: pjrt-arena
//!                copies it, into an arena
//!  a GPU         the source is defined, in an arena, or a stream of pjrt-arena brings it there: that stream copies it,
//!                and the copy is ready after that. So are copies from the GPU to its pinned_host memory and back; from
//!                one GPU to memory that was pinned for another one the engine copies
//!  otherwise     the engine copies, into memory of its own; its copy waits for a source that a program still writes
//! ```
//!
//! An array that a launch under way is donated is left to the engine as well: it knows whether its program comes
//! first.
//!
//! No caller waits for a program or a copy, except for a copy of an array in a layout of its own (`own_layout.rs`).

use std::sync::Arc;

use smallvec::smallvec;

use crate::{
    device::Carrier,
    engine::{Args, EngineBuffer, EngineError, Live, Outcome, Raw, order, views::ViewKind},
    error::Error,
    report::snapshot::OriginKind,
    runtime::{
        buffer::{Buffer, storage::Storage, usage::Life},
        client::{self, Client, MemorySpace},
        in_flight::Resources,
        transfer::{host::destination, own_layout, upload::Upload},
    },
    sys,
    units::{Address, Bytes},
};

/// Whether the bytes are defined.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, or the engine's.
fn is_ready(buffer: &Buffer) -> Outcome<bool> {
    let hold = buffer.hold_live()?;
    let event = hold.ready_event()?;
    let refused = |error: &EngineError| log::debug!("copying a buffer that holds an error: {}", error.message());
    // The engine's copy of an error is the same error.
    Ok(event.is_ready() && event.wait().inspect_err(refused).is_ok())
}

/// A copy of `buffer` in a block of `space`; `None` if only the engine can make it.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED.
fn copy_by_arena(client: &Client, buffer: &Arc<Buffer>, space: MemorySpace<'_>) -> Outcome<Option<Arc<Buffer>>> {
    match buffer.session.view_kind {
        ViewKind::Host => copy_defined(client, buffer, space),
        ViewKind::Device => copy_on_stream(client, buffer, space),
    }
}

/// A copy of `buffer` in the memory, or, if that is NULL, on the device, of `to`; `None` if it is left to the engine.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer or a place of another client's, RESOURCE_EXHAUSTED, or as
/// [`own_layout::copy`].
///
/// # Safety
/// The client must be alive, and device and memory its own.
pub unsafe fn copy_here(
    buffer: &Arc<Buffer>,
    to: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
) -> Outcome<Option<Arc<Buffer>>> {
    let client = &*client::of_buffer(buffer)?;
    // The engine would make it, and nobody could say whose it is.
    if client::is_of_another(client, to.0, to.1) {
        return Err(Error::invalid_argument(
            "the device or memory to copy to belongs to another client than the array; a copy goes by the host there",
        )
        .into());
    }
    let space = destination(client, to.0, to.1);
    let memory = client.device(to.0).filter(|_| to.1.is_null()).map_or(Raw(to.1), |device| device.memory());
    // SAFETY: the memory is the client's, which is alive, as this function asks.
    let memory = unsafe { Live::new(client.session.engine, memory.0) };
    if let Some(copy) = own_layout::copy(client, buffer, space, memory)? {
        return Ok(Some(copy));
    }
    match space {
        Some(space) => copy_by_arena(client, buffer, space),
        None => Ok(None),
    }
}

/// Copies defined bytes, at once.
///
/// # Errors
/// As [`copy_by_arena`].
fn copy_defined(client: &Client, buffer: &Buffer, space: MemorySpace<'_>) -> Outcome<Option<Arc<Buffer>>> {
    let (is_known, is_engine_s) = {
        let storage = &buffer.state().storage;
        (storage.dense_address().is_some(), matches!(storage, Storage::Engine(_)))
    };
    // An array in another layout than the default one was copied before.
    let is_dense = is_known
        || is_engine_s
            && buffer.session.can_view(buffer.shape.element_type, &buffer.shape.dims)
            && buffer.shape.is_without_gaps();
    if !is_dense || !is_ready(buffer)? {
        return Ok(None);
    }
    // The source is not in use during the allocation, so that it may be moved to make room.
    let upload = Upload::new(client, space, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    let reading = if is_engine_s { buffer.read_engine()? } else { buffer.read()? };
    let Some(reading) = reading else { return Ok(None) };
    let (from, bytes) = (Address::new(reading.address() as u64), Bytes::new(buffer.shape.size as u64));
    // SAFETY: source and block hold the array; the source neither changes, moves nor is freed while it is read; nothing
    // else uses the new block.
    let copied = upload.fill(&[], |carrier, to| unsafe { carrier.copy(from, to, bytes) }).map(Some);
    // The engine tells whoever lent the memory that it may be reused.
    order::given(reading.address() as *const u8);
    copied
}

/// Has a GPU copy bytes that are defined, or that the arena's stream brings already. A source that a program still
/// writes is left to the engine: the arena's stream waits for nothing of the engine's, so that arrays from the host
/// are not held up, and compactions, which wait for that stream, wait for no program.
///
/// # Errors
/// As [`copy_by_arena`].
fn copy_on_stream(client: &Client, buffer: &Arc<Buffer>, space: MemorySpace<'_>) -> Outcome<Option<Arc<Buffer>>> {
    let (is_ours, queued) = {
        let state = buffer.state();
        (state.storage.address().is_some(), state.queued)
    };
    if !is_ours || !queued && !is_ready(buffer)? {
        return Ok(None);
    }
    // Pinned memory is written by the GPU that it was pinned for.
    let Some(own) = space.device().memory_space() else { return Ok(None) };
    if own.memory().0 != space.memory().0 && is_on_another_device(client, buffer, space) {
        return Ok(None);
    }
    let upload = Upload::new(client, space, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    // Until later writers are ordered after the copy: a launch that is donated the source waits for that.
    let Some(reading) = buffer.read_block()? else { return Ok(None) };
    buffer.begin_use()?;
    let (from, bytes) = (Address::new(reading.address() as u64), Bytes::new(buffer.shape.size as u64));
    let copy = upload.fill_by_device(&[Arc::clone(buffer)], |carrier, to| {
        // SAFETY: the source's bytes are there before the arena's stream comes to this copy, which waits for the
        // source's device if that is another one; and the source is in use until the copy is done. The copy writes to
        // the block alone.
        unsafe { carrier.copy(from, to, bytes)? };
        order_writers_after(client, buffer, carrier);
        drop(reading);
        Ok(())
    });
    copy.map(Some)
}

/// Whether a buffer lies in the own memory of another device than that of `space`.
fn is_on_another_device(client: &Client, buffer: &Buffer, space: MemorySpace<'_>) -> bool {
    let source = client.device_of_memory(buffer.memory.0);
    source.is_some_and(|source| source.handle().0 != space.device().handle().0)
}

/// Orders programs that are donated `buffer` after the stream of `copying` has read it: the engine does not know that
/// the stream does. From here on the engine knows the buffer by a view that is ready only then.
///
/// If the copy goes to another device, the stream of the buffer's own device waits for it ([`Carrier::copy`]), and
/// the view for that stream. Copies from host memory to host memory are done when CUDA returns, so nothing could come
/// too early there; nothing depends on that.
///
/// The caller has two uses of it meanwhile: the reading, and the use that keeps it in place until the copy is done.
fn order_writers_after(client: &Client, buffer: &Buffer, copying: &dyn Carrier) {
    let address = buffer.state().storage.address();
    let source =
        client.memory_space_of(buffer.memory.0).and_then(|source| Some((source, source.device().memory_space()?)));
    let view = address.zip(source).and_then(|(at, (source, own))| {
        let (session, place) = (client.session, source.place());
        session.open().ok()?;
        // SAFETY: the client is open, and device and memory are its own; the carrier is the device's. The block is the
        // buffer's, aligned, as large as the array, and freed only after its views.
        unsafe { EngineBuffer::view_behind(session, place, &*own.arena().carrier, at, buffer.shape.array()) }.ok()
    });
    let unused = view.map(|view| {
        let mut state = buffer.state();
        // Every other user has the old view. None of them was donated it, but the next donation would be of that
        // view. A stream that brings the bytes has no view.
        let bringing = u32::from(state.queued && !state.is_defined());
        let alone = state.users() <= 2 + bringing && state.life() == Life::Live && state.storage.address() == address;
        if !alone {
            return (Some(view), false);
        }
        (state.replace_view(view), true)
    });
    if !unused.as_ref().is_some_and(|&(_, replaced)| replaced) {
        copying.finish();
    }
    // Nothing uses this view, it was not donated, and no lock is held.
    drop(unused);
}

/// Has the engine copy, into memory of its own.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// `args` must be the caller's call with the engine's handle, its contract satisfied, and `result` give the new buffer
/// in it.
pub unsafe fn copy_by_engine<A: Args>(
    buffer: &Arc<Buffer>,
    to: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    result: impl FnOnce(&A) -> *mut sys::PJRT_Buffer,
) -> Outcome<Arc<Buffer>> {
    let client = &*client::of_buffer(buffer)?;
    let admitted = client.admit_array(to, Bytes::new(buffer.shape.size as u64))?;
    let handle = buffer.begin_use()?;
    // SAFETY: the handle is alive while the buffer is in use; the rest of the struct satisfies the contract, as this
    // function asks. The copy is a new buffer of the client, with no other owner.
    let copied = unsafe {
        let called = client.session.engine.call(args(handle));
        called.map(|args| EngineBuffer::own(client.session, result(&args)))
    };
    let copied = copied.inspect_err(|_| buffer.end_use())?;
    // The source stays in use until the copy is made.
    match copied.ready_event().ok() {
        Some(event) if !event.is_ready() => {
            client.allocator.in_flight.track(
                &event,
                None,
                Resources { buffers: smallvec![Arc::clone(buffer)], ..Resources::default() },
            );
        }
        _ => buffer.end_use(),
    }
    client.adopt_admitted(copied, admitted)
}
