//! Copies between devices and memories.
//!
//! A copy into an arena is made by us when the source is at rest, in an arena or in an outsider's memory; a source that a
//! program still writes is left to the engine, whose copy waits for it without blocking the caller, and lies in memory of
//! the engine.

use std::sync::Arc;

use smallvec::smallvec;

use super::{
    buffer::Buffer,
    entry::{Entry, Outcome, required},
    flight::Cargo,
    host::{destination, fresh},
    state::Device,
};
use crate::{
    device::strided,
    engine::{Args, EngineEvent},
    error::Error,
    report::snapshot::OriginKind,
    sys,
};

/// Whether the bytes lie where we can read them, written and good.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, or the engine's.
///
/// # Safety
/// The client must be alive.
unsafe fn is_at_rest(buffer: &Buffer) -> Outcome<bool> {
    let client = &buffer.client;
    let handle = buffer.take_up()?;
    let ready = (|| -> Outcome<bool> {
        if buffer.state().storage.dense_address().is_none() {
            return Ok(false);
        }
        // SAFETY: the handle is alive while the buffer is taken up; the event is ours.
        let ready = unsafe {
            let args = client.engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: handle, ..Default::default() })?;
            client.engine.own_event(args.event)
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

/// A copy of `buffer` in a block of `device`; `None` if it cannot be made here and now.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, RESOURCE_EXHAUSTED.
///
/// # Safety
/// The client must be alive.
unsafe fn copy_at_rest(buffer: &Buffer, device: &Device) -> Outcome<Option<Arc<Buffer>>> {
    // SAFETY: the caller's promise.
    if unsafe { !is_at_rest(buffer)? } {
        return Ok(None);
    }
    // A view is dense in the default layout; whatever the engine laid out otherwise is its own to copy. The source is not
    // in use while room is sought, so that it may move to make some.
    // SAFETY: the client is alive; the source's type was viewable.
    let copy = unsafe { fresh(&buffer.client, device, Arc::clone(&buffer.shape), OriginKind::Copy)? };
    let to = copy.state().storage.address().ok_or_else(|| Error::internal("a fresh buffer has no block"))?;
    let reading = buffer.read();
    if let Ok(Some(reading)) = &reading {
        // SAFETY: both hold the array; the source neither moves nor goes while it is read, the copy is ours alone.
        unsafe {
            strided::copy(
                std::ptr::with_exposed_provenance(reading.address()),
                std::ptr::with_exposed_provenance_mut(to),
                buffer.shape.size,
            );
        }
        copy.mark_whole();
        return Ok(Some(copy));
    }
    copy.destroy();
    reading?;
    Ok(None)
}

/// Lets the engine copy, into memory of its own.
///
/// # Safety
/// `args` must be the call with the engine's handle in place of ours, its contract satisfied.
unsafe fn copy_by_engine<A: Args>(
    buffer: &Arc<Buffer>,
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    result: impl FnOnce(&A) -> *mut sys::PJRT_Buffer,
) -> Outcome<Arc<Buffer>> {
    let client = &buffer.client;
    let handle = buffer.take_up()?;
    // SAFETY: the handle is alive while the buffer is taken up; the rest is the caller's promise.
    let copied = unsafe { client.engine.call(args(handle)) };
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
        let event = client.engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: copied, ..Default::default() });
        event.ok().and_then(|args| client.engine.own_event(args.event))
    };
    match ready {
        Some(event) if !event.is_ready() => {
            client.traffic.launch(&event, None, Cargo { buffers: smallvec![Arc::clone(buffer)], ..Cargo::default() });
        }
        _ => buffer.land(),
    }
    // SAFETY: as above.
    unsafe { Buffer::adopt(client, copied) }
}

impl Entry for sys::PJRT_Buffer_CopyToDevice_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Buffer_CopyToDevice";
        // SAFETY: the caller's handles are alive.
        let buffer = unsafe { Buffer::share(self.buffer, NAME)? };
        let to = required(self.dst_device, NAME, "dst_device")?;
        let home = destination(&buffer.client, to, std::ptr::null_mut());
        // SAFETY: the client is alive while its buffers are used.
        let ours = match home {
            // SAFETY: as above.
            Some(device) => unsafe { copy_at_rest(&buffer, device)? },
            None => None,
        };
        self.dst_buffer = match ours {
            Some(copy) => copy,
            // SAFETY: as above.
            None => unsafe {
                copy_by_engine(&buffer, |handle| Self { buffer: handle, ..*self }, |args| args.dst_buffer)?
            },
        }
        .into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyToMemory_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_Buffer_CopyToMemory";
        // SAFETY: the caller's handles are alive.
        let buffer = unsafe { Buffer::share(self.buffer, NAME)? };
        let to = required(self.dst_memory, NAME, "dst_memory")?;
        let ours = match destination(&buffer.client, std::ptr::null_mut(), to) {
            // SAFETY: the client is alive while its buffers are used.
            Some(device) => unsafe { copy_at_rest(&buffer, device)? },
            None => None,
        };
        self.dst_buffer = match ours {
            Some(copy) => copy,
            // SAFETY: as above.
            None => unsafe {
                copy_by_engine(&buffer, |handle| Self { buffer: handle, ..*self }, |args| args.dst_buffer)?
            },
        }
        .into_raw();
        Ok(())
    }
}
