//! Copies between devices and memories.
//!
//! ```text
//!  host memory   the source is at rest, in an arena, in an outsider's memory or dense in the engine's: copied by us, into an arena
//!  a GPU         the source is at rest, in an arena, or is brought there by a stream of ours: copied by us, on our stream, and
//!                ready after that. So are copies from the GPU to its pinned_host memory and back; from one GPU to what another
//!                one has pinned the engine copies
//!  otherwise     the engine copies, into memory of its own; its copy waits for a source that a program still writes
//! ```
//!
//! An array that a launch under way is given is the engine's to copy as well: it knows whether its program comes first.
//!
//! Nobody who calls waits for a program or a copy, but for one of an array in a layout of its own (`copy/own_layout.rs`).

use std::sync::Arc;

use smallvec::smallvec;

use crate::{
    device::Carrier,
    engine::{
        Args, EngineEvent, Outcome, Raw,
        views::{self, ViewKind},
    },
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

/// Whether the bytes are written and good.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, or the engine's.
///
/// # Safety
/// The client must be alive.
unsafe fn is_ready(buffer: &Buffer) -> Outcome<bool> {
    let engine = buffer.session.engine;
    let handle = buffer.begin_use()?;
    let ready = (|| -> Outcome<bool> {
        // SAFETY: the handle is alive while the buffer is taken up; the event is ours.
        let ready = unsafe {
            let args = engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: handle, ..Default::default() })?;
            EngineEvent::own(engine, args.event)
        };
        if !ready.as_ref().is_none_or(EngineEvent::is_ready) {
            return Ok(false);
        }
        if let Some(Err(error)) = ready.map(|event| event.wait()) {
            // The engine's copy carries the source's error to whoever reads it.
            log::debug!("copying a buffer that holds an error: {}", error.message());
            return Ok(false);
        }
        Ok(true)
    })();
    buffer.land();
    ready
}

/// A copy of `buffer` in a block of `site`; `None` if we cannot make it.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED.
///
/// # Safety
/// The client must be alive.
unsafe fn copy_by_us(client: &Client, buffer: &Arc<Buffer>, site: MemorySpace<'_>) -> Outcome<Option<Arc<Buffer>>> {
    // SAFETY: the caller's promise.
    unsafe {
        match buffer.session.view_kind {
            ViewKind::Host => copy_at_rest(client, buffer, site),
            ViewKind::Device => copy_on_stream(client, buffer, site),
        }
    }
}

/// A copy of `buffer` in the memory, or where that is NULL on the device, of `to`, unless it is left to the engine.
///
/// # Errors
/// As [`copy_by_us`] and [`own_layout::copy`].
///
/// # Safety
/// The client must be alive, and device and memory its own.
pub unsafe fn copy_here(
    buffer: &Arc<Buffer>,
    to: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
) -> Outcome<Option<Arc<Buffer>>> {
    let client = &*client::of_buffer(buffer)?;
    let site = destination(client, to.0, to.1);
    let memory = client.device(to.0).filter(|_| to.1.is_null()).map_or(Raw(to.1), |device| device.memory);
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(copy) = own_layout::copy(client, buffer, site, memory)? {
            return Ok(Some(copy));
        }
        match site {
            Some(site) => copy_by_us(client, buffer, site),
            None => Ok(None),
        }
    }
}

/// Copies bytes that are there, at once.
///
/// # Errors
/// As [`copy_by_us`].
///
/// # Safety
/// As [`copy_by_us`].
unsafe fn copy_at_rest(client: &Client, buffer: &Buffer, site: MemorySpace<'_>) -> Outcome<Option<Arc<Buffer>>> {
    let (is_known, is_engine_s) = {
        let storage = &buffer.state().storage;
        (storage.dense_address().is_some(), matches!(storage, Storage::Engine(_)))
    };
    // What has another layout than the default one was copied before.
    let is_dense = is_known
        || is_engine_s
            && buffer.session.aliasable.contains(buffer.shape.element_type)
            && buffer.shape.is_without_gaps();
    // SAFETY: the caller's promise.
    if !is_dense || unsafe { !is_ready(buffer)? } {
        return Ok(None);
    }
    // The source is not in use while room is sought, so that it may move to make some.
    let arrival = Upload::new(client, site, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    // SAFETY: the caller's promise.
    let reading = if is_engine_s { unsafe { buffer.read_engine()? } } else { buffer.read()? };
    let Some(reading) = reading else { return Ok(None) };
    let (from, bytes) = (Address::new(reading.address() as u64), Bytes::new(buffer.shape.size as u64));
    // SAFETY: the client is alive. Both hold the array; the source neither changes, moves nor goes while it is read, the copy is
    // ours alone.
    unsafe { arrival.fill(&[], |carrier, to| carrier.copy(from, to, bytes)) }.map(Some)
}

/// Has a GPU copy bytes that are there, or that stand on a stream of ours already. What a program still writes is the engine's to
/// copy: our stream waits for nothing of the engine's, so that arrays from the host are not held up, and moves, which wait for our
/// stream, wait for no program.
///
/// # Errors
/// As [`copy_by_us`].
///
/// # Safety
/// As [`copy_by_us`].
unsafe fn copy_on_stream(client: &Client, buffer: &Arc<Buffer>, site: MemorySpace<'_>) -> Outcome<Option<Arc<Buffer>>> {
    let (is_ours, queued) = {
        let state = buffer.state();
        (state.storage.address().is_some(), state.queued)
    };
    // SAFETY: the caller's promise.
    if !is_ours || !queued && unsafe { !is_ready(buffer)? } {
        return Ok(None);
    }
    // What the host has pinned is written by the GPU that it was pinned for.
    let Some(own) = site.device.memory_space() else { return Ok(None) };
    if own.memory.0 != site.memory.0 && is_on_another_device(client, buffer, site) {
        return Ok(None);
    }
    let carrier = &*own.arena.carrier;
    let arrival = Upload::new(client, site, Arc::clone(&buffer.shape), OriginKind::Copy)?;
    // Until writers are held back: who launches a program that is given the source waits for that.
    let Some(reading) = buffer.read_block()? else { return Ok(None) };
    buffer.begin_use()?;
    let (from, bytes) = (Address::new(reading.address() as u64), Bytes::new(buffer.shape.size as u64));
    // SAFETY: the client is alive; the source's bytes are there before our stream comes to this copy, which waits for the source's
    // device where that is another one; and it is in use until the copy is there.
    unsafe {
        arrival.fill_by(carrier, &[Arc::clone(buffer)], |carrier, to| {
            carrier.copy(from, to, bytes)?;
            hold_writers_back(client, buffer, carrier);
            drop(reading);
            Ok(())
        })
    }
    .map(Some)
}

/// Whether a buffer lies in the own memory of another device than that of `site`.
fn is_on_another_device(client: &Client, buffer: &Buffer, site: MemorySpace<'_>) -> bool {
    let home = client.device_of_memory(buffer.memory.0);
    home.is_some_and(|home| home.handle.0 != site.device.handle.0)
}

/// Sees to it that no program writes to `buffer`, if it is donated to one, before the stream of `copying` has read it: the engine
/// does not know that it does. From here on it knows the buffer by a view that is ready only then.
///
/// Where the copy goes to another device, the own stream of this one waits for it ([`Carrier::copy`]), and the view for that stream.
/// From host memory to host memory CUDA has copied when it returns, so that there nothing could come too early; nothing depends on that.
///
/// The caller uses it twice, for as long as this takes: who reads it, and who keeps it in place until the copy is there.
///
/// # Safety
/// The client must be alive.
unsafe fn hold_writers_back(client: &Client, buffer: &Buffer, copying: &dyn Carrier) {
    let address = buffer.state().storage.address();
    let home = client.memory_space_of(buffer.memory.0).and_then(|home| Some((home, home.device.memory_space()?)));
    let view = address.zip(home).and_then(|(at, (home, own))| {
        // SAFETY: the client is alive; the block is the buffer's, as before.
        unsafe {
            client.session.view_behind((home.device.handle, home.memory), &*own.arena.carrier, at, buffer.shape.array())
        }
        .ok()
    });
    let unused = view.map(|view| {
        let mut state = buffer.state();
        // Whoever else uses it has the old view in hand. Nobody of them was given it, but who is given it next would be given that
        // view. What brings the bytes has no view in hand.
        let bringing = u32::from(state.queued && !state.is_defined());
        let alone = state.users() <= 2 + bringing && state.life() == Life::Live && state.storage.address() == address;
        if !alone {
            return (view, false);
        }
        let old = state.handle();
        state.set_handle(Raw(view));
        (old.0, true)
    });
    if !unused.is_some_and(|(_, replaced)| replaced) {
        copying.finish();
    }
    if let Some((view, _)) = unused {
        // SAFETY: nobody else knows it, or nobody any more; it was not donated.
        unsafe { views::destroy(client.session.engine, view) };
    }
}

/// Lets the engine copy, into memory of its own.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// `args` must be the call with the engine's handle in place of ours, its contract satisfied.
pub unsafe fn copy_by_engine<A: Args>(
    buffer: &Arc<Buffer>,
    to: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    result: impl FnOnce(&A) -> *mut sys::PJRT_Buffer,
) -> Outcome<Arc<Buffer>> {
    let client = &*client::of_buffer(buffer)?;
    let admitted = client.admit_array(to, Bytes::new(buffer.shape.size as u64))?;
    let handle = buffer.begin_use()?;
    // SAFETY: the handle is alive while the buffer is taken up; the rest is the caller's promise.
    let copied = unsafe { client.session.engine.call(args(handle)) };
    let copied = match copied {
        Ok(args) => result(&args),
        Err(error) => {
            buffer.land();
            return Err(error.into());
        }
    };
    // The source stays until the copy is made.
    // SAFETY: the copy was just made and is ours; so is its event.
    let ready = unsafe {
        let event =
            client.session.engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: copied, ..Default::default() });
        event.ok().and_then(|args| EngineEvent::own(client.session.engine, args.event))
    };
    match ready {
        Some(event) if !event.is_ready() => {
            client.allocator.in_flight.track(
                &event,
                None,
                Resources { buffers: smallvec![Arc::clone(buffer)], ..Resources::default() },
            );
        }
        _ => buffer.land(),
    }
    // SAFETY: as above.
    unsafe { client.adopt_admitted(copied, admitted) }
}
