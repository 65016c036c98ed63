//! `PJRT_Buffer`: an array, the memory it lies in, and what is known about both.
//!
//! ```text
//!  PJRT_Buffer* --> Buffer { shape, device, state }
//!                                            |
//!            life:    Live -> Deleted        the owner let go
//!                          -> Donated        a program took the memory over
//!            storage: Arena(block)           ours; movable unless in flight or referenced
//!                     Engine(bytes)          the engine's own memory, counted apart, never moved
//!                     Foreign                an outsider's, which programs mostly may only read
//!                     Gone                   moved on to an output, or freed
//!            handle:  the engine's buffer, a view of the block; lives as long as this one
//! ```
//!
//! A block is freed once its owner let go, nothing in flight uses it and nobody outside holds its address.

pub mod layout;
pub mod reading;
pub mod storage;
pub mod usage;

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::{
    engine::{EngineError, Outcome, Raw, failure::required, views},
    error::{Error, Result},
    runtime::{
        buffer::{
            storage::{Access, Foreign, Storage},
            usage::{Life, State, Usage, User, Writing},
        },
        client::Client,
        device_memory::Allocation,
        executable::output_cache::{CacheSlot, CachedOutput},
        shape::Shape,
    },
    sys,
};

/// XLA's words for using a buffer that is no more; JAX's users and tests know them.
pub const GONE: &str = "Invalid buffer passed: buffer has been deleted or donated.";

/// The engine's buffer and the memory behind it.
pub struct Body {
    /// The engine's buffer; NULL once destroyed.
    handle: Raw<sys::PJRT_Buffer>,
    /// Where the bytes are.
    pub storage: Storage,
    /// Its owner destroyed it while it was in use: block and handle wait for the end of that, to be used again.
    pub homing: bool,
    /// Its bytes were brought by us, by our stream of the device that it belongs to or before: what is put there from now on comes
    /// after them. Until the buffer is whole, that is one use of it.
    pub queued: bool,
}

impl Body {
    /// Of a buffer that its owner holds.
    fn new(handle: *mut sys::PJRT_Buffer, storage: Storage) -> Self {
        Self { handle: Raw(handle), storage, homing: false, queued: false }
    }

    /// The engine's buffer.
    pub fn handle(&self) -> Raw<sys::PJRT_Buffer> {
        self.handle
    }

    /// Puts another buffer of the engine in its place, which is not destroyed.
    pub fn set_handle(&mut self, handle: Raw<sys::PJRT_Buffer>) {
        self.handle = handle;
    }

    /// The block, if it is one of ours.
    pub fn held(&self) -> Option<&Allocation> {
        self.storage.held()
    }
}

impl State<Body> {
    /// Takes the memory of a buffer that nobody needs any more.
    pub fn settle(&mut self) -> Option<Storage> {
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
    /// What programs may do with the memory.
    pub access: Access,
    /// Where it goes when its owner destroys it: back to the program that it is a result of.
    nest: Option<CacheSlot>,
    usage: Usage<Body>,
}

impl Buffer {
    /// A live buffer over the engine's `handle`, which the buffer destroys.
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

    /// As [`Buffer::new`], over memory of an outsider.
    pub fn foreign(
        client: Arc<Client>,
        (device, memory): Place,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        access: Access,
        dense_at: Option<usize>,
    ) -> Arc<Self> {
        let storage = Storage::Foreign(Foreign::new(dense_at, client.foreign_bytes(device.0), shape.size));
        let usage = Usage::new(Body::new(handle, storage));
        Arc::new(Self { client, device, memory, shape, access, nest: None, usage })
    }

    /// As [`Buffer::new`], for a result that may become a destination again.
    pub fn nested(
        client: Arc<Client>,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        storage: Storage,
        nest: Option<CacheSlot>,
    ) -> Arc<Self> {
        let usage = Usage::new(Body::new(handle, storage));
        let access = Access::Full;
        let buffer = Arc::new(Self { client, device, memory, shape, access, nest, usage });
        buffer.move_in();
        buffer
    }

    /// Makes a spare's buffer that of the next result in the same block, over the engine's `handle`, which the buffer destroys.
    pub fn revive(&self, handle: *mut sys::PJRT_Buffer, held: Allocation, writing: Writing) {
        let mut state = self.state();
        state.revive(Body::new(handle, Storage::Arena(held)));
        state.is_result_of(writing);
    }

    /// Says how far the run is that writes the bytes; a use that begins here ends with the flight.
    pub fn is_result_of(&self, writing: Writing) {
        self.state().is_result_of(writing);
    }

    /// Says on the residents whose block it is; from then on a buffer whose contents are good may move.
    pub fn move_in(self: &Arc<Self>) {
        let state = self.usage.lock();
        if let Some(held) = state.held() {
            held.home().residents.enter(held.block().id, self);
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

    /// Where it goes when its owner destroys it.
    pub fn nest(&self) -> Option<&CacheSlot> {
        self.nest.as_ref()
    }

    /// Everything that changes.
    pub fn state(&self) -> MutexGuard<'_, State<Body>> {
        self.usage.lock()
    }

    /// Who uses and holds the bytes.
    pub fn usage(&self) -> &Usage<Body> {
        &self.usage
    }

    /// The engine's buffer, for a question about it: whether the buffer is alive or not, it stays in place meanwhile.
    ///
    /// # Errors
    /// FAILED_PRECONDITION once the client is destroyed.
    pub fn hold(&self) -> Result<Hold<'_>> {
        let mut state = self.state();
        let handle = self.open_handle(&state)?;
        state.begin_use(User::Transfer);
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
        self.take_up_for(User::Transfer)
    }

    /// As [`Buffer::take_up`], until [`Buffer::land_for`] the same user.
    ///
    /// # Errors
    /// As [`Buffer::take_up`].
    pub fn take_up_for(&self, user: User) -> Result<*mut sys::PJRT_Buffer> {
        let mut state = self.state();
        let handle = self.live_handle(&state)?;
        state.begin_use(user);
        Ok(handle)
    }

    /// The engine's buffer of one that was neither deleted nor donated.
    ///
    /// # Errors
    /// As [`Buffer::take_up`].
    pub fn live_handle(&self, state: &State<Body>) -> Result<*mut sys::PJRT_Buffer> {
        if state.life() != Life::Live {
            return Err(Error::invalid_argument(GONE));
        }
        self.open_handle(state)
    }

    /// Ends a use of the bytes. Only in calls from outside; flights end with [`Buffer::arrive`].
    pub fn land(&self) {
        self.land_for(User::Transfer);
    }

    /// Ends what [`Buffer::take_up_for`] began.
    pub fn land_for(&self, user: User) {
        let (freed, homing) = {
            let mut state = self.state();
            state.end_use(user);
            (state.settle(), state.homing && state.is_at_rest())
        };
        // The arena has a lock of its own: free after giving up ours.
        drop(freed);
        if homing {
            self.destroy_handle();
        }
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

    /// `PJRT_Buffer_Delete`: the owner lets go. What the engine still uses stays until it is done.
    ///
    /// # Errors
    /// The engine's.
    pub fn delete(&self) -> Outcome {
        let mut state = self.state();
        if !state.end(Life::Deleted) {
            return Ok(());
        }
        // Whoever copies the bytes sees to it afterwards.
        let handle = if state.is_copied() { Raw::NULL } else { state.handle };
        drop(state);
        let outcome = self.delete_handle(handle);
        self.let_go();
        Ok(outcome?)
    }

    /// Deletes the engine's buffer, if there is one. No lock may be held: an outsider may hear of it in this call.
    ///
    /// # Errors
    /// The engine's.
    pub fn delete_handle(&self, handle: Raw<sys::PJRT_Buffer>) -> Result<(), EngineError> {
        if handle.is_null() || !self.client.is_open() {
            return Ok(());
        }
        // SAFETY: the handle lives until we are destroyed; it was not donated, so this does not block.
        unsafe { self.client.engine.call(sys::PJRT_Buffer_Delete_Args { buffer: handle.0, ..Default::default() }) }
            .map(drop)
    }

    /// `PJRT_Buffer_Destroy`: ends the caller's share.
    pub fn destroy(self: Arc<Self>) {
        let mut state = self.state();
        let referenced = state.forget_references();
        if referenced && let Some(held) = state.held() {
            held.unpin();
        }
        // The engine still counts the references of a handle, and would answer its donation with a copy elsewhere.
        if !referenced && self.nest.is_some() && self.client.is_open() {
            // Asked in this order: a spare that nobody keeps would leave its view behind.
            if let Some((held, view)) = state.spare() {
                drop(state);
                CachedOutput { held, view, shell: self, retired: false }.keep();
                return;
            }
            if state.go_home() {
                drop(state);
                self.offer();
                return;
            }
        }
        let consumed = state.life() == Life::Donated && !state.is_at_rest();
        let was_live = state.end(Life::Deleted);
        drop(state);
        if consumed {
            // Its handle may only be destroyed once the program that consumed it is done.
            let client = Arc::clone(&self.client);
            client.in_flight.adopt_orphan(self);
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

/// A device and a memory of the engine.
pub type Place = (Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>);
