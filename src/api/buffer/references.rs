//! Addresses given to outsiders: external references, which are given back, and unsafe pointers, which never are.
//!
//! References are counted here and in the engine: XLA:CPU answers the donation of a referenced buffer with a copy, and
//! it must know of the reference to do so (engine behaviour T11).
//!
//! A block is pinned in its arena from the first outsider to the last. Before the first gets the address, a small block
//! that lies amid those that move goes out of their way.

use std::{ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    engine::{Outcome, views},
    error::Error,
    memory::MoveBarrier,
    runtime::{
        allocator::compaction,
        buffer::{Buffer, buffer_ref::BufferRef},
        client,
        device_memory::Resident,
    },
    sys,
};

/// Keeps the bytes in place while we talk to the engine about them.
struct Hold<'a> {
    buffer: &'a Buffer,
    handle: *mut sys::PJRT_Buffer,
}

/// Before the address of an idle buffer is given to an outsider: moves it out of the way, where live buffers are moved.
fn relocate_for_pin(buffer: &Arc<Buffer>) {
    let Some(client) = client::of_session(buffer.session).filter(|client| client.allocator.compacts()) else { return };
    if buffer.usage().move_barrier() == Some(MoveBarrier::InUse) {
        // Perhaps only by what is done.
        client.allocator.in_flight.reap_all(client.session.engine);
    }
    let home = buffer.usage().peek(|body| body.held().map(|held| Arc::clone(held.home())));
    if let Some(memory) = home {
        let resident: Arc<dyn Resident> = Arc::clone(buffer) as _;
        compaction::relocate_for_pin(&memory, &resident);
    }
}

impl<'a> Hold<'a> {
    /// # Safety
    /// As for [`Buffer::borrow`].
    unsafe fn new(buffer: *mut sys::PJRT_Buffer, function: &str) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let buffer = unsafe { BufferRef::borrow(buffer, function)? }.get();
        Ok(Self { buffer, handle: buffer.begin_use()? })
    }

    /// As [`Hold::new`], of bytes whose address is about to be given out.
    ///
    /// # Safety
    /// As for [`Buffer::borrow`].
    unsafe fn to_pin(buffer: *mut sys::PJRT_Buffer, function: &str) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let share = unsafe { BufferRef::borrow(buffer, function)?.share() };
        relocate_for_pin(&share);
        // SAFETY: the caller's promise.
        unsafe { Self::new(buffer, function) }
    }

    /// Where the bytes are.
    fn address(&self) -> Outcome<usize> {
        if let Some(address) = self.buffer.state().storage.address() {
            return Ok(address);
        }
        // SAFETY: the handle is alive while the buffer is taken up.
        Ok(unsafe { views::address(self.buffer.session.engine, self.handle)? })
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.buffer.land();
    }
}

impl Entry for sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive, and so is the engine's behind it.
        unsafe {
            let hold = Hold::to_pin(self.buffer, "PJRT_Buffer_IncreaseExternalReferenceCount")?;
            hold.buffer.session.engine.call(Self { buffer: hold.handle, ..*self })?;
            let mut state = hold.buffer.state();
            let first = state.add_reference();
            if let Some(held) = state.held().filter(|_| first) {
                held.pin(MoveBarrier::Referenced);
            }
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DecreaseExternalReferenceCount_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_DecreaseExternalReferenceCount")? };
        // Without the client there is no engine's buffer to tell.
        let hold = buffer.hold().ok();
        {
            let mut state = buffer.state();
            let last = state.drop_reference().ok_or_else(|| {
                Error::invalid_argument("Attempting to decrease reference on a buffer with zero reference count.")
            })?;
            if let Some(held) = state.held().filter(|_| last) {
                held.unpin();
            }
        }
        if let Some(hold) = &hold {
            // SAFETY: the engine's handle stays while it is held.
            unsafe { buffer.session.engine.call(Self { buffer: hold.handle(), ..*self })? };
        }
        drop(hold);
        buffer.release_if_unused();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_UnsafePointer_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let hold = unsafe { Hold::to_pin(self.buffer, "PJRT_Buffer_UnsafePointer")? };
        self.buffer_pointer = hold.address()?;
        let mut state = hold.buffer.state();
        let first = state.expose_address();
        if let Some(held) = state.held().filter(|_| first) {
            held.pin(MoveBarrier::AddressKnown);
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive. Whoever wants the address to stay holds a reference already.
        let hold = unsafe { Hold::new(self.buffer, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer")? };
        self.device_memory_ptr = ptr::with_exposed_provenance_mut(hold.address()?);
        Ok(())
    }
}
