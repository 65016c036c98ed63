//! `PJRT_Buffer`: an array, the memory it lies in, and what is known about both.
//!
//! ```text
//!  PJRT_Buffer* --> Buffer { shape, device, state }
//!                                            |
//!            life:    Live -> Deleted        the owner let go
//!                          -> Donated        a program took the memory over
//!            storage: Arena(block)           ours; movable unless in flight or referenced
//!                     Engine(bytes)          the engine's own memory, counted apart, never moved
//!                     Foreign                an outsider's
//!                     Gone                   moved on to an output, or freed
//!            handle:  the engine's buffer, a view of the block; lives as long as this one
//! ```
//!
//! A block is freed once its owner let go, nothing in flight uses it and nobody outside holds its address.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use parking_lot::MutexGuard;

use super::{
    custody::{Custody, Life, State},
    device_memory::Held,
    entry::{Outcome, required},
    shape::Shape,
    spares::{Nest, Spare},
    state::Client,
};
use crate::{
    engine::{EngineError, Raw, views},
    error::{Error, Result},
    sys,
};

/// XLA's words for using a buffer that is no more; JAX's users and tests know them.
const GONE: &str = "Invalid buffer passed: buffer has been deleted or donated.";

/// Bytes that the engine holds for one buffer, counted on its device for as long as this lives.
pub struct EngineBytes {
    total: Arc<AtomicI64>,
    bytes: i64,
}

impl EngineBytes {
    /// Counts `bytes` on `total`.
    pub fn new(total: Arc<AtomicI64>, bytes: usize) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        total.fetch_add(bytes, Ordering::Relaxed);
        Self { total, bytes }
    }
}

impl Drop for EngineBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where the bytes of a buffer are.
pub enum Storage {
    /// A block of ours.
    Arena(Held),
    /// Memory that the engine took from its own allocator.
    Engine(EngineBytes),
    /// Memory of an outsider, who is told when we are done with it.
    Foreign,
    /// Moved on to an output, or freed.
    Gone,
}

impl Storage {
    /// The block's address, if it is one of ours.
    pub fn address(&self) -> Option<usize> {
        match self {
            Self::Arena(held) => Some(held.address()),
            Self::Engine(_) | Self::Foreign | Self::Gone => None,
        }
    }
}

/// The engine's buffer and the memory behind it.
pub struct Body {
    /// The engine's buffer; NULL once destroyed.
    handle: Raw<sys::PJRT_Buffer>,
    /// Where the bytes are.
    pub storage: Storage,
}

impl Body {
    /// The engine's buffer.
    pub fn handle(&self) -> Raw<sys::PJRT_Buffer> {
        self.handle
    }

    /// Puts another buffer of the engine in its place, which is not destroyed.
    pub fn set_handle(&mut self, handle: Raw<sys::PJRT_Buffer>) {
        self.handle = handle;
    }

    /// The block, if it is one of ours.
    pub fn held(&self) -> Option<&Held> {
        match &self.storage {
            Storage::Arena(held) => Some(held),
            Storage::Engine(_) | Storage::Foreign | Storage::Gone => None,
        }
    }
}

impl State<Body> {
    /// Takes block and handle of a buffer that its owner destroys, if they are fit to be written again: nobody uses the
    /// bytes, nobody was promised that their address stays, and no error clings to the handle.
    fn spare(&mut self) -> Option<Spare> {
        if self.stay().is_some() || self.handle.is_null() || !matches!(self.storage, Storage::Arena(_)) {
            return None;
        }
        self.end(Life::Deleted);
        let view = std::mem::replace(&mut self.handle, Raw::NULL);
        match std::mem::replace(&mut self.storage, Storage::Gone) {
            Storage::Arena(held) => Some(Spare { held, view }),
            Storage::Engine(_) | Storage::Foreign | Storage::Gone => None,
        }
    }

    /// Takes the memory of a buffer that nobody needs any more.
    fn settle(&mut self) -> Option<Storage> {
        (self.is_free() && !matches!(self.storage, Storage::Gone))
            .then(|| std::mem::replace(&mut self.storage, Storage::Gone))
    }
}

/// Keeps a buffer's handle and bytes in place while we talk to the engine about them.
pub struct Hold<'a> {
    buffer: &'a Buffer,
    handle: *mut sys::PJRT_Buffer,
}

impl Hold<'_> {
    /// The engine's buffer.
    pub fn handle(&self) -> *mut sys::PJRT_Buffer {
        self.handle
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.buffer.land();
    }
}

/// Our `PJRT_Buffer`.
pub struct Buffer {
    /// Whose buffer it is.
    pub client: Arc<Client>,
    /// The engine's device.
    pub device: Raw<sys::PJRT_Device>,
    /// The engine's memory.
    pub memory: Raw<sys::PJRT_Memory>,
    /// What it holds.
    pub shape: Arc<Shape>,
    /// Where it goes when its owner destroys it: back to the program that it is a result of.
    nest: Option<Nest>,
    custody: Custody<Body>,
}

impl Buffer {
    /// A live buffer over the engine's `handle`, which it destroys.
    pub fn new(
        client: Arc<Client>,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        storage: Storage,
    ) -> Arc<Self> {
        Self::nested(client, device, memory, shape, handle, storage, None)
    }

    /// As [`Buffer::new`], for a result that may become a destination again.
    pub fn nested(
        client: Arc<Client>,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        storage: Storage,
        nest: Option<Nest>,
    ) -> Arc<Self> {
        let custody = Custody::new(Body { handle: Raw(handle), storage });
        let buffer = Arc::new(Self { client, device, memory, shape, nest, custody });
        buffer.move_in();
        buffer
    }

    /// Says on the roster whose block it is; from then on a buffer whose contents are good may move.
    pub fn move_in(self: &Arc<Self>) {
        let state = self.custody.lock();
        if let Some(held) = state.held() {
            held.home().roster.enter(held.block().id, self);
        }
    }

    /// Wraps a buffer that the engine made in memory of its own, or over an outsider's.
    ///
    /// # Errors
    /// The engine's, if it cannot say what the buffer is; the handle is destroyed then.
    ///
    /// # Safety
    /// `handle` must be a live buffer of the client's engine that nobody else destroys.
    pub unsafe fn adopt(client: &Arc<Client>, handle: *mut sys::PJRT_Buffer, foreign: bool) -> Outcome<Arc<Self>> {
        let engine = client.engine;
        let look = || -> Result<_, EngineError> {
            // SAFETY: the handle is alive; what the getters point to lives as long as it does.
            unsafe {
                let kind = engine.call(sys::PJRT_Buffer_ElementType_Args { buffer: handle, ..Default::default() })?;
                let dims = engine.call(sys::PJRT_Buffer_Dimensions_Args { buffer: handle, ..Default::default() })?;
                let size =
                    engine.call(sys::PJRT_Buffer_OnDeviceSizeInBytes_Args { buffer: handle, ..Default::default() })?;
                let dims = super::entry::slice(dims.dims, dims.num_dims);
                let shape = Arc::new(Shape::new(kind.type_, dims, size.on_device_size_in_bytes));
                let (device, memory) = place(client, handle)?;
                Ok((shape, device, memory))
            }
        };
        match look() {
            Ok((shape, device, memory)) => {
                let storage = if foreign {
                    Storage::Foreign
                } else {
                    Storage::Engine(EngineBytes::new(client.engine_bytes(device.0), shape.size))
                };
                Ok(Self::new(Arc::clone(client), device, memory, shape, handle, storage))
            }
            Err(error) => {
                // SAFETY: the handle is ours and unused.
                unsafe { views::destroy(engine, handle) };
                Err(error.into())
            }
        }
    }

    /// Gives the buffer to the caller of the C API, who ends it with `PJRT_Buffer_Destroy`.
    pub fn into_raw(self: Arc<Self>) -> *mut sys::PJRT_Buffer {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// The buffer behind a caller's handle.
    ///
    /// # Errors
    /// INVALID_ARGUMENT naming `function` if it is NULL.
    ///
    /// # Safety
    /// `buffer` must be NULL or come from [`Buffer::into_raw`] and not be destroyed while the result is used.
    pub unsafe fn borrow<'a>(buffer: *mut sys::PJRT_Buffer, function: &str) -> Outcome<&'a Self> {
        let buffer = required(buffer, function, "buffer")?;
        // SAFETY: the caller's promise.
        Ok(unsafe { &*buffer.cast::<Self>() })
    }

    /// As [`Buffer::borrow`], with a share of the ownership.
    ///
    /// # Errors
    /// As [`Buffer::borrow`].
    ///
    /// # Safety
    /// As [`Buffer::borrow`].
    pub unsafe fn share(buffer: *mut sys::PJRT_Buffer, function: &str) -> Outcome<Arc<Self>> {
        let buffer = required(buffer, function, "buffer")?.cast::<Self>().cast_const();
        // SAFETY: the handle is one share of the `Arc`, alive during the call.
        unsafe {
            Arc::increment_strong_count(buffer);
            Ok(Arc::from_raw(buffer))
        }
    }

    /// Everything that changes.
    pub fn state(&self) -> MutexGuard<'_, State<Body>> {
        self.custody.lock()
    }

    /// Who uses and holds the bytes.
    pub fn custody(&self) -> &Custody<Body> {
        &self.custody
    }

    /// The engine's buffer, for a question about it: whether the buffer is alive or not, it stays in place meanwhile.
    ///
    /// # Errors
    /// FAILED_PRECONDITION once the client is destroyed.
    pub fn hold(&self) -> Result<Hold<'_>> {
        let mut state = self.state();
        let handle = self.open_handle(&state)?;
        state.begin_use();
        Ok(Hold { buffer: self, handle })
    }

    fn open_handle(&self, body: &Body) -> Result<*mut sys::PJRT_Buffer> {
        if body.handle.is_null() || !self.client.is_open() {
            return Err(Error::failed_precondition("the buffer's client has been destroyed"));
        }
        Ok(body.handle.0)
    }

    /// Begins a use of the bytes by the engine: until [`Buffer::land`] they neither move nor go back to the arena.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the buffer was deleted or donated.
    pub fn take_up(&self) -> Result<*mut sys::PJRT_Buffer> {
        let mut state = self.state();
        if state.life() != Life::Live {
            return Err(Error::invalid_argument(GONE));
        }
        let handle = self.open_handle(&state)?;
        state.begin_use();
        Ok(handle)
    }

    /// Ends a use of the bytes.
    pub fn land(&self) {
        let freed = {
            let mut state = self.state();
            state.end_use();
            state.settle()
        };
        // The arena has a lock of its own: free after giving up ours.
        drop(freed);
    }

    /// After the owner let go: frees the memory, or says that it is pending.
    fn let_go(&self) {
        let freed = {
            let mut state = self.state();
            let freed = state.settle();
            if let Some(held) = state.held() {
                held.retire();
            }
            freed
        };
        drop(freed);
    }

    /// Frees the memory of a buffer that its owner let go, if nothing needs it any more.
    pub fn release_if_unused(&self) {
        let freed = self.state().settle();
        drop(freed);
    }

    /// Says that the run which wrote the bytes is done and went well.
    pub fn mark_whole(&self) {
        self.state().mark_whole();
    }

    /// Whether nothing of the engine uses the bytes.
    pub fn is_at_rest(&self) -> bool {
        self.state().is_at_rest()
    }

    /// A program consumed the handle and took the memory over: gives the memory up.
    pub fn donate(&self) -> Storage {
        let mut state = self.state();
        state.donate();
        std::mem::replace(&mut state.storage, Storage::Gone)
    }

    /// `PJRT_Buffer_Delete`: the owner lets go. What the engine still uses stays until it is done.
    ///
    /// # Errors
    /// The engine's.
    pub fn delete(&self) -> Outcome {
        let mut state = self.state();
        if !state.end(Life::Deleted) {
            return Ok(());
        }
        let handle = state.handle;
        drop(state);
        let outcome = if handle.is_null() || !self.client.is_open() {
            Ok(())
        } else {
            // SAFETY: the handle lives until we are destroyed; it was not donated, so this does not block.
            unsafe { self.client.engine.call(sys::PJRT_Buffer_Delete_Args { buffer: handle.0, ..Default::default() }) }
                .map(drop)
        };
        self.let_go();
        Ok(outcome?)
    }

    /// `PJRT_Buffer_Destroy`: ends the caller's share.
    pub fn destroy(self: Arc<Self>) {
        let mut state = self.state();
        if state.forget_references()
            && let Some(held) = state.held()
        {
            held.unpin();
        }
        // Asked in this order: a spare that nobody keeps would leave its view behind.
        if let Some(nest) = &self.nest
            && let Some(spare) = state.spare()
        {
            drop(state);
            if self.client.is_open()
                && let Err(spare) = nest.spares.put(nest.destination, spare)
            {
                spare.discard(&self.client);
            }
            return;
        }
        let consumed = state.life() == Life::Donated && !state.is_at_rest();
        let was_live = state.end(Life::Deleted);
        drop(state);
        if consumed {
            // Its handle may only be destroyed once the program that consumed it is done.
            let client = Arc::clone(&self.client);
            client.traffic.adopt_orphan(self);
            return;
        }
        self.destroy_handle();
        // Who deleted the buffer has let go of the block before; it is retired once.
        if was_live {
            self.let_go();
        } else {
            self.release_if_unused();
        }
    }

    /// Destroys the engine's buffer, if there still is one.
    pub fn destroy_handle(&self) {
        let handle = std::mem::replace(&mut self.state().handle, Raw::NULL);
        if !handle.is_null() && self.client.is_open() {
            // SAFETY: the handle was ours, and was taken out under the lock: nobody destroys it twice.
            unsafe { views::destroy(self.client.engine, handle.0) };
        }
    }
}

/// The device and the memory of a buffer of the engine.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `handle` must be alive.
pub unsafe fn place(
    client: &Client,
    handle: *mut sys::PJRT_Buffer,
) -> Result<(Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>), EngineError> {
    // SAFETY: the caller's promise.
    unsafe {
        let device = client.engine.call(sys::PJRT_Buffer_Device_Args { buffer: handle, ..Default::default() })?;
        let memory = client.engine.call(sys::PJRT_Buffer_Memory_Args { buffer: handle, ..Default::default() });
        Ok((Raw(device.device), Raw(memory.map_or(ptr::null_mut(), |m| m.memory))))
    }
}
