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

use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;

use crate::{
    engine::{EngineError, Outcome, Raw, Session},
    error::{Error, Result},
    memory::Provenance,
    runtime::{
        buffer::{
            body::Body,
            storage::{Access, Foreign, Storage},
            usage::{Definition, Life, State, Usage, User},
        },
        device_memory::{Allocation, Resident},
        shape::Shape,
    },
    sys,
};

/// XLA's words for using a buffer that is no more; JAX's users and tests know them.
pub const GONE: &str = "Invalid buffer passed: buffer has been deleted or donated.";

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
    /// The engine's client.
    pub session: &'static Session,
    /// The engine's device.
    pub device: Raw<sys::PJRT_Device>,
    /// The engine's memory.
    pub memory: Raw<sys::PJRT_Memory>,
    /// What it holds.
    pub shape: Arc<Shape>,
    /// What programs may do with the memory.
    pub access: Access,
    /// Where it goes when its owner destroys it: back to the program that it is a result of.
    cache_slot: Option<CacheSlot>,
    usage: Usage<Body>,
}

impl Buffer {
    /// A live buffer over the engine's `handle`, which the buffer destroys.
    pub fn new(
        session: &'static Session,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        storage: Storage,
    ) -> Arc<Self> {
        Self::nested(session, device, memory, shape, handle, storage, None)
    }

    /// As [`Buffer::new`], over memory of an outsider.
    pub fn foreign(
        session: &'static Session,
        (device, memory): Place,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        access: Access,
        foreign: Foreign,
    ) -> Arc<Self> {
        let storage = Storage::Foreign(foreign);
        let usage = Usage::new(Body::new(handle, storage));
        Arc::new(Self { session, device, memory, shape, access, cache_slot: None, usage })
    }

    /// As [`Buffer::new`], for a result that may become a destination again.
    pub fn nested(
        session: &'static Session,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        shape: Arc<Shape>,
        handle: *mut sys::PJRT_Buffer,
        storage: Storage,
        cache_slot: Option<CacheSlot>,
    ) -> Arc<Self> {
        let usage = Usage::new(Body::new(handle, storage));
        let access = Access::Full;
        let buffer = Arc::new(Self { session, device, memory, shape, access, cache_slot, usage });
        buffer.enter_residents();
        buffer
    }

    /// Makes a spare's buffer that of the next result in the same block, over the engine's `handle`, which the buffer destroys.
    pub fn reuse(&self, handle: *mut sys::PJRT_Buffer, held: Allocation, writing: Definition) {
        let mut state = self.state();
        state.reuse(Body::new(handle, Storage::Arena(held)));
        state.define_by(writing);
    }

    /// Says how far the run is that writes the bytes; a use that begins here ends with the flight.
    pub fn define_by(&self, writing: Definition) {
        self.state().define_by(writing);
    }

    /// Says on the residents whose block it is; from then on a buffer whose contents are good may move.
    pub fn enter_residents(self: &Arc<Self>) {
        let state = self.usage.lock();
        if let Some(held) = state.held() {
            held.home().residents.enter(held.block().id, self.as_resident());
        }
    }

    /// The buffer as the mover knows it.
    pub fn as_resident(self: &Arc<Self>) -> Weak<dyn Resident> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Gives the buffer to the caller of the C API, who ends it with `PJRT_Buffer_Destroy`.
    pub fn into_raw(self: Arc<Self>) -> *mut sys::PJRT_Buffer {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// Where it goes when its owner destroys it.
    pub fn cache_slot(&self) -> Option<&CacheSlot> {
        self.cache_slot.as_ref()
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
        if body.handle().is_null() || !self.session.is_open() {
            return Err(Error::failed_precondition("the buffer's client has been destroyed"));
        }
        Ok(body.handle().0)
    }

    /// Begins a use of the bytes by the engine: until [`Buffer::land`] they neither move nor go back to the arena.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the buffer was deleted or donated.
    pub fn begin_use(&self) -> Result<*mut sys::PJRT_Buffer> {
        self.begin_use_for(User::Transfer)
    }

    /// As [`Buffer::begin_use`], until [`Buffer::end_use_for`] the same user.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn begin_use_for(&self, user: User) -> Result<*mut sys::PJRT_Buffer> {
        let mut state = self.state();
        let handle = self.live_handle(&state)?;
        state.begin_use(user);
        Ok(handle)
    }

    /// The engine's buffer of one that was neither deleted nor donated.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn live_handle(&self, state: &State<Body>) -> Result<*mut sys::PJRT_Buffer> {
        if state.life() != Life::Live {
            return Err(Error::invalid_argument(GONE));
        }
        self.open_handle(state)
    }

    /// As [`Buffer::begin_use_for`], for a call that may consume the buffer: until [`Buffer::end_donation`] nobody but the engine
    /// begins to read the bytes, and who read them has done so. `None` if a program of another client reads them.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn begin_donation(&self, user: User) -> Result<Option<*mut sys::PJRT_Buffer>> {
        let Some(mut state) = self.usage().lock_for_donation() else { return Ok(None) };
        let handle = self.live_handle(&state).inspect_err(|_| state.end_donation())?;
        state.begin_use(user);
        Ok(Some(handle))
    }

    /// Ends a call that may have `consumed` the buffer. Gives the memory then, unless the call `failed` and another that is under
    /// way was given the buffer too: it is that one which has consumed it, or they both failed, and the last gives the memory.
    pub fn end_donation(&self, consumed: bool, failed: bool) -> Option<Storage> {
        let mut state = self.state();
        state.end_donation();
        if !consumed || failed && state.has_pending_donation() {
            return None;
        }
        state.donate();
        Some(std::mem::replace(&mut state.storage, Storage::Gone))
    }

    /// Ends a use of the bytes. Only in calls from outside; flights end with [`Buffer::end_operation_use`].
    pub fn land(&self) {
        self.end_use_for(User::Transfer);
    }

    /// Ends what [`Buffer::begin_use_for`] began.
    pub fn end_use_for(&self, user: User) {
        let (freed, recycling) = {
            let mut state = self.state();
            state.end_use(user);
            (state.settle(), state.recycling && state.is_unused())
        };
        // The arena has a lock of its own: free after giving up ours.
        drop(freed);
        if recycling {
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
    pub fn mark_defined(&self) {
        self.state().mark_defined();
    }

    /// Whether nothing of the engine uses the bytes.
    pub fn is_unused(&self) -> bool {
        self.state().is_unused()
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
        let handle = if state.is_copied() { Raw::NULL } else { state.handle() };
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
        if handle.is_null() || !self.session.is_open() {
            return Ok(());
        }
        // SAFETY: the handle lives until we are destroyed; it was not donated, so this does not block.
        unsafe { self.session.engine.call(sys::PJRT_Buffer_Delete_Args { buffer: handle.0, ..Default::default() }) }
            .map(drop)
    }

    /// `PJRT_Buffer_Destroy`: ends the caller's share. Gives a buffer whose handle may only be destroyed once the program that
    /// consumed it is done: the operations under way keep it until then.
    #[must_use]
    pub fn destroy(self: Arc<Self>) -> Option<Arc<Self>> {
        let mut state = self.state();
        let referenced = state.forget_references();
        if referenced && let Some(held) = state.held() {
            held.unpin();
        }
        // The engine still counts the references of a handle, and would answer its donation with a copy elsewhere.
        if !referenced && self.cache_slot.is_some() && self.session.is_open() {
            // Asked in this order: a spare that nobody keeps would leave its view behind.
            if let Some((held, view)) = state.spare() {
                drop(state);
                CachedOutput { held, view, shell: self, retired: false }.keep();
                return None;
            }
            if state.begin_recycling() {
                drop(state);
                self.offer();
                return None;
            }
        }
        let consumed = state.life() == Life::Donated && !state.is_unused();
        let was_live = state.end(Life::Deleted);
        drop(state);
        if consumed {
            return Some(self);
        }
        self.destroy_handle();
        // Who deleted the buffer has let go of the block before; it is retired once.
        if was_live {
            self.let_go();
        } else {
            self.release_if_unused();
        }
        None
    }

    /// Destroys the engine's buffer, if there still is one.
    pub fn destroy_handle(&self) {
        let handle = self.state().take_handle();
        // SAFETY: the handle was ours, and was taken out under the lock: nobody destroys it twice.
        unsafe { self.session.destroy(handle) };
    }

    /// Lets the next run have the block of a buffer that is recycling, where the engine does one run after another.
    pub fn offer(self: Arc<Self>) {
        if let Some(cache_slot) = self.cache_slot()
            && cache_slot.cache.has_early(cache_slot.destination)
        {
            let (cache, destination) = (Arc::clone(&cache_slot.cache), cache_slot.destination);
            cache.offer(destination, self);
        }
    }

    /// Takes the block back that `OutputCache::take_recycling` gave away, for those who use it still.
    pub fn take_back(&self, held: Allocation) {
        held.retire();
        self.put_back(held);
    }

    /// Puts a block back that was taken out, or frees it if nothing needs it any more.
    pub fn put_back(&self, held: Allocation) {
        let freed = {
            let mut state = self.state();
            state.storage = Storage::Arena(held);
            state.settle()
        };
        drop(freed);
    }

    /// Ends a flight's use of the bytes, on any thread; `wrote` says that the flight wrote them, and well. What is to be
    /// used again, or to be destroyed, where this was the last use, is the caller's.
    pub fn end_operation_use(self: Arc<Self>, wrote: bool, user: User) -> Option<Recycled> {
        let mut state = self.state();
        if wrote {
            state.mark_defined();
        }
        state.end_use(user);
        if state.recycling && state.is_free() {
            let whole = state.is_defined();
            let (held, view) = state.take_out()?;
            state.recycling = false;
            drop(state);
            return Some(Recycled { spare: CachedOutput { held, view, shell: self, retired: true }, whole });
        }
        let freed = state.settle();
        drop(state);
        // The arena has a lock of its own: free after giving up ours.
        drop(freed);
        None
    }
}

/// A block with a view of it that a program may be donated.
pub struct CachedOutput {
    /// The block.
    pub held: Allocation,
    /// The engine's buffer over it.
    pub view: Raw<sys::PJRT_Buffer>,
    /// What its owner had: the next result in the block is this one again.
    pub shell: Arc<Buffer>,
    /// Whether the arena knows that the owner let go.
    pub retired: bool,
}

impl CachedOutput {
    /// Waits for the next run, if there may be one; otherwise block and view go back. Only in calls from outside.
    pub fn keep(self) {
        let Some((cache, destination)) =
            self.shell.cache_slot().map(|cache_slot| (Arc::clone(&cache_slot.cache), cache_slot.destination))
        else {
            return self.discard();
        };
        if let Err(spare) = cache.put(destination, self) {
            spare.discard();
        }
    }

    /// Gives block and view back. Only in calls from outside.
    pub fn discard(self) {
        // SAFETY: the view is ours and nothing uses it.
        unsafe { self.shell.session.destroy(self.view) };
    }

    /// Makes the block one that `maker` is about to write.
    pub fn renew(&mut self, maker: Provenance) -> Result<()> {
        if !std::mem::take(&mut self.retired) {
            self.held.made_by(maker.origin, Some(maker.run));
        } else if self.held.renew(maker)? {
            self.held.home().residents.enter(self.held.block().id, self.shell.as_resident());
        }
        Ok(())
    }
}

/// What keeps the memory of a program's results for its next run.
pub trait Recycle: Send + Sync {
    /// Keeps `output` for the next run of the program, as its `destination`.
    ///
    /// # Errors
    /// Gives it back if there are enough, or no next run, or if a thread waits for memory.
    fn put(&self, destination: usize, output: CachedOutput) -> std::result::Result<(), CachedOutput>;

    /// Notes a buffer that waits for the end of its last use, whose block the next run may have before that.
    fn offer(&self, destination: usize, buffer: Arc<Buffer>);

    /// Whether the next run may have the block of `destination` while executions still use it.
    fn has_early(&self, destination: usize) -> bool;
}

/// Where a buffer goes when its owner destroys it.
pub struct CacheSlot {
    /// The cache of the program and device that it came from.
    pub cache: Arc<dyn Recycle>,
    /// The destination that it was.
    pub destination: usize,
}

/// A buffer that its owner destroyed while it was in use, now that nothing uses it.
pub struct Recycled {
    spare: CachedOutput,
    /// Whether no error clings to the handle.
    whole: bool,
}

impl Recycled {
    /// Makes it a spare, if it is fit for that and there may be a next run. Only in calls from outside.
    pub fn keep(self) {
        if self.whole && !self.spare.view.is_null() { self.spare.keep() } else { self.spare.discard() }
    }

    /// Gives the block back, on any thread. The handle, if there still is one, is the caller's to destroy.
    pub fn free(self) -> Option<Raw<sys::PJRT_Buffer>> {
        Some(self.spare.view).filter(|view| !view.is_null())
    }
}

/// A device and a memory of the engine.
pub type Place = (Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>);
