//! Addresses given to outsiders: external references, which are released again, and pointers, which never are.
//!
//! References are counted here. The engine is told of them where it has to know (`runtime/buffer/pjrt_buffer/
//! referring.rs`), by one thread at a time: two at once would break its list of references, which has no lock (engine
//! behaviour T41).
//!
//! An outsider of a GPU's array reads it on the GPU: one that is spilled comes back first, if there is room.
//!
//! A block is pinned in its arena from the first outsider to the last. Before the first outsider gets the address, a
//! small block that lies among blocks that move is moved out of their way.

use std::{ptr, sync::Arc};

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Outcome, views::ViewKind},
    error::{Code, Error},
    memory::MoveBarrier,
    runtime::{
        allocator::{
            allocate::{allocate, footprint},
            call_needs::CallNeeds,
            compaction,
            reclaim::WaitPolicy,
            spill,
        },
        buffer::{Buffer, BufferRef, Hold},
        client,
        device_memory::Resident,
    },
    sys,
};

/// Moves an unused buffer out of the way before its address is given to an outsider, if live buffers are moved.
fn relocate_for_pin(buffer: &Arc<Buffer>) {
    let Some(client) = client::of_session(buffer.session).filter(|client| client.allocator.compacts()) else { return };
    if buffer.usage().move_barrier() == Some(MoveBarrier::InUse) {
        // Perhaps only operations that are done use it.
        client.allocator.in_flight.reap_all();
    }
    let memory = buffer.usage().peek(|body| body.allocation().map(|allocation| Arc::clone(allocation.memory())));
    if let Some(memory) = memory {
        let resident: Arc<dyn Resident> = Arc::clone(buffer) as _;
        compaction::relocate_for_pin(&memory, &resident);
    }
}

/// Keeps a buffer from being spilled.
struct Wanted<'a>(BufferRef<'a>);

impl<'a> Wanted<'a> {
    fn new(buffer: BufferRef<'a>) -> Self {
        buffer.state().wanted += 1;
        Self(buffer)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.wanted = state.wanted.saturating_sub(1);
    }
}

/// Brings a GPU's array back from its tier, unless there is no room for it: the GPU reads it there, too, but slowly.
///
/// # Errors
/// The device's or the engine's; the array is where it was then.
#[cold]
fn bring_to_device(buffer: &Arc<Buffer>) -> Outcome {
    let client = client::of_buffer(buffer)?;
    let Some(space) = client.memory_space_of(buffer.memory.0) else { return Ok(()) };
    let (memory, resident) = (space.arena(), Arc::clone(buffer) as Arc<dyn Resident>);
    let came = spill::bring_back::<Error>(memory, &resident, None, |shape, provenance| {
        let needs = || CallNeeds::of(footprint(&client.allocator, shape));
        allocate(&client.allocator, memory, (shape, provenance), WaitPolicy::Waits, &needs)
            .map_err(|shortage| Error::new(Code::ResourceExhausted, shortage.found.numbers.to_string()))
    });
    match came {
        Err(error) if error.code == Code::ResourceExhausted => {
            log::info!(
                "an outsider reads a spilled array of {} bytes in the host's memory: {error}",
                buffer.shape.size
            );
            Ok(())
        }
        came => Ok(came.map(drop)?),
    }
}

/// Holds a buffer whose address is about to be given to an outsider.
///
/// # Errors
/// As [`Buffer::begin_use`], or as [`bring_to_device`].
fn hold_to_pin(buffer: BufferRef<'_>) -> Outcome<Hold<'_>> {
    let is_away = || buffer.usage().peek(|body| body.storage.is_spilled());
    let _wanted = if buffer.session.view_kind == ViewKind::Device && is_away() {
        let wanted = Wanted::new(buffer);
        bring_to_device(&buffer.share())?;
        Some(wanted)
    } else {
        None
    };
    relocate_for_pin(&buffer.share());
    Ok(buffer.get().hold_live()?)
}

/// The address of a buffer's bytes.
///
/// # Errors
/// The engine's.
fn address(hold: &Hold<'_>) -> Outcome<usize> {
    if let Some(address) = hold.buffer().state().storage.address() {
        return Ok(address);
    }
    Ok(hold.address()?)
}

/// Notes that an outsider knows the address for good, and may write there.
fn expose_address(buffer: &Buffer) {
    let mut state = buffer.state();
    let first = state.expose_address();
    let copy = state.storage.forget_copy();
    if let Some(allocation) = state.allocation().filter(|_| first) {
        allocation.pin(MoveBarrier::AddressKnown);
    }
    drop(state);
    drop(copy);
}

impl Entry for sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        let hold = hold_to_pin(buffer)?;
        let copy = hold.buffer().add_outsider(|state| {
            let first = state.add_reference();
            if let Some(allocation) = state.allocation().filter(|_| first) {
                allocation.pin(MoveBarrier::Referenced);
            }
            // An outsider may write to the bytes.
            state.storage.forget_copy()
        })?;
        // Without the lock.
        drop(copy);
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DecreaseExternalReferenceCount_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        // Without the client there is no buffer of the engine to tell.
        let hold = buffer.hold().ok();
        let mut state = buffer.usage().lock_to_refer();
        let last = state.drop_reference().ok_or_else(|| {
            Error::invalid_argument("Attempting to decrease reference on a buffer with zero reference count.")
        })?;
        if let Some(allocation) = state.allocation().filter(|_| last) {
            allocation.unpin();
        }
        if hold.is_some() {
            buffer.get().tell_of_last(state)?;
        } else {
            drop(state);
        }
        drop(hold);
        buffer.release_if_unused();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_UnsafePointer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        let hold = hold_to_pin(buffer)?;
        call.out().buffer_pointer = address(&hold)?;
        expose_address(buffer.get());
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        call.out().device_memory_ptr = ptr::with_exposed_provenance_mut(address(&buffer.get().hold_live()?)?);
        // Who wants the address to stay holds a reference. But the CUDA array interface lets go of its own at once, and
        // its caller goes on with the address for as long as the array lives.
        if buffer.session.view_kind == ViewKind::Device {
            expose_address(buffer.get());
        }
        Ok(())
    }
}
