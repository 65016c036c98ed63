//! Arrays from the host and back.
//!
//! ```text
//!   an array that its owner keeps unchanged (kImmutableZeroCopy: what JAX says of NumPy arrays)
//!      64-byte aligned, dense, 64 KiB and more ---> the engine aliases it: no copy, no block
//!      any other ---------------------------------> copied into a block
//!   memory that may be written to (kMutableZeroCopy) -> the engine aliases it where it can
//!   sub-byte elements, host memories, layouts -------> by the engine, except a GPU's pinned_host: see pinned_host.rs
//! ```
//!
//! An aliased array's `done_with_host_buffer` happens when the engine has released it: after the buffer is deleted
//! and the last program that reads it is done. Until then JAX keeps the NumPy array alive. A caller that writes to
//! the NumPy array meanwhile changes what programs see, as on JAX's own CPU backend, whose rule for what is aliased
//! this is (XLA `AbstractCpuBuffer::BufferFromHostBufferSupportsZeroCopy`), the size apart.

use std::{ptr, sync::Arc};

use smallvec::smallvec;

use crate::{
    config::EngineKind,
    engine::{Args, EngineBuffer, EngineEvent, Outcome, process},
    runtime::{
        buffer::{
            Buffer,
            buffer_ref::BufferRef,
            storage::{Access, Foreign},
            usage::Life,
        },
        client::{self, Client, MemorySpace},
        in_flight::Resources,
        shape::Shape,
    },
    sys,
};

/// Smallest array in bytes that is aliased. Below it a copy is as cheap (a `device_put` takes 17 us either way up to
/// 32 KiB, 17 and 18 us at 64 KiB, 17 and 41 us at 1 MiB), and aliasing has a price: an owner that lives longer,
/// changes of the NumPy array that show later, and statistics that miss it.
pub const SMALLEST_ALIASED: u64 = 64 << 10;

/// The event of `buffer` being ready: it has happened for an array that is there, as far as is known here; else the
/// engine's.
///
/// # Errors
/// The engine's, or that the client is gone.
pub fn ready_event(buffer: &Buffer) -> Outcome<*mut sys::PJRT_Event> {
    let is_there = buffer.session.is_open() && {
        let mut state = buffer.state();
        state.note_use();
        state.life() == Life::Live && state.is_defined()
    };
    let event = if is_there { EngineEvent::happened(buffer.session.engine) } else { buffer.hold()?.ready_event()? };
    Ok(event.into_raw())
}

/// The memory that an array goes to: `memory`, or else the default one of `device`. `None` if that has no arena: a
/// memory of the host other than a GPU's `pinned_host`, or a device without an arena.
pub fn destination(
    client: &Client,
    device: *mut sys::PJRT_Device,
    memory: *mut sys::PJRT_Memory,
) -> Option<MemorySpace<'_>> {
    if memory.is_null() { client.device(device)?.memory_space() } else { client.memory_space_of(memory) }
}

/// Has the engine alias the array.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `args` must satisfy the function's contract; the array must be what the engine can alias, dense whatever its
/// strides.
pub unsafe fn alias(
    args: &mut sys::PJRT_Client_BufferFromHostBuffer_Args,
    client: &Arc<Client>,
    space: MemorySpace<'_>,
    shape: Arc<Shape>,
) -> Outcome {
    // Strides add nothing to a dense array, and one along a dimension of one element could mislead the engine.
    let dense = sys::PJRT_Client_BufferFromHostBuffer_Args {
        byte_strides: ptr::null(),
        num_byte_strides: 0,
        device_layout: ptr::null_mut(),
        ..*args
    };
    // SAFETY: the struct satisfies the function's contract, and the array is dense, as this function asks. Buffer and
    // event are new ones of the client, with no other owner.
    let (made, event) = unsafe {
        let done = client.session.engine.call(dense)?;
        let event = EngineEvent::own(client.session.engine, done.done_with_host_buffer);
        (EngineBuffer::own(client.session, done.buffer), event)
    };
    let at = args.data.expose_provenance();
    // An engine may have other rules: if it copied, the memory is its own.
    let buffer = match made.address() {
        Ok(there) if there != at => client.adopt(made)?,
        found => {
            let place = space.place();
            let foreign = Foreign::new(found.ok(), client.foreign_bytes(place.0.0), shape.size);
            Buffer::foreign(made, place, shape, Access::ReadOnly, foreign)
        }
    };
    args.done_with_host_buffer = event.map_or(ptr::null_mut(), EngineEvent::into_raw);
    args.buffer = buffer.into_raw();
    Ok(())
}

/// Has the engine take the array as it likes: host memories, sub-byte types, unusual layouts, memory that may be
/// written to.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `args` must satisfy the function's contract.
pub unsafe fn from_host_by_engine(
    args: &mut sys::PJRT_Client_BufferFromHostBuffer_Args,
    client: &Arc<Client>,
    dims: &[i64],
    plain: bool,
) -> Outcome {
    let admitted = client.admit_shape((args.device, args.memory), args.type_, dims)?;
    let access = match args.host_buffer_semantics {
        sys::PJRT_HostBufferSemantics_kImmutableZeroCopy => Some(Access::ReadOnly),
        sys::PJRT_HostBufferSemantics_kMutableZeroCopy => Some(Access::Full),
        _ => None,
    }
    // Other platforms copy, whatever the semantics.
    .filter(|_| process::kind() == Some(EngineKind::Cpu));
    let at = args.data.expose_provenance();
    // SAFETY: the struct satisfies the function's contract, as this function asks; buffer and event are new ones of the
    // client, with no other owner, and if the buffer aliases the array, this process can read it there.
    unsafe {
        let done = client.session.engine.call(*args)?;
        let event = EngineEvent::own(client.session.engine, done.done_with_host_buffer);
        let made = EngineBuffer::own(client.session, done.buffer);
        let there = made.address().ok();
        let aliased = access.filter(|_| at != 0 && there.is_none_or(|there| there == at));
        let buffer = match aliased {
            Some(access) => {
                let readable = plain && client.session.aliasable.contains(args.type_);
                client.adopt_foreign(made, access, there.filter(|_| readable))?
            }
            None => client.adopt_admitted(made, admitted)?,
        };
        args.done_with_host_buffer = event.map_or(ptr::null_mut(), EngineEvent::into_raw);
        args.buffer = buffer.into_raw();
    }
    Ok(())
}

/// Ends the use of `buffer` when `event` has happened.
fn end_use_after(buffer: Arc<Buffer>, event: Option<&EngineEvent>) {
    match event {
        Some(event) if !event.is_ready() => {
            if let Some(client) = client::of_session(buffer.session) {
                let resources = Resources { buffers: smallvec![buffer], ..Resources::default() };
                client.allocator.in_flight.track(event, None, resources);
            } else {
                // A client that is gone has no operations under way.
                buffer.end_use();
            }
        }
        _ => buffer.end_use(),
    }
}

/// Calls a function of the engine that reads a buffer's bytes, with the engine's handle, and keeps the buffer in use
/// until the event that it returns.
///
/// # Errors
/// INVALID_ARGUMENT for a buffer that was deleted or donated, or the engine's.
///
/// # Safety
/// `buffer` must be as for [`BufferRef::borrow`]; `args` must return a struct that satisfies the function's contract,
/// and `event` the event that the engine has put into it, or NULL.
pub unsafe fn read<A: Args>(
    buffer: *mut sys::PJRT_Buffer,
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    event: impl FnOnce(&A) -> *mut sys::PJRT_Event,
) -> Outcome<A> {
    // SAFETY: the handle is NULL or alive during the call, as this function asks.
    let buffer = unsafe { BufferRef::borrow(buffer, A::FUNCTION)?.share() };
    let handle = buffer.begin_use()?;
    let engine = buffer.session.engine;
    // SAFETY: the engine's handle is alive and its bytes stay while the buffer is in use; the rest of the struct
    // satisfies the contract, as this function asks. The event is NULL or a new one of the engine.
    let called = unsafe { engine.call(args(handle)).map(|args| (args, EngineEvent::own(engine, event(&args)))) };
    match called {
        Ok((args, event)) => {
            end_use_after(buffer, event.as_ref());
            // The caller's.
            _ = event.map(EngineEvent::into_raw);
            Ok(args)
        }
        Err(error) => {
            buffer.end_use();
            Err(error.into())
        }
    }
}
