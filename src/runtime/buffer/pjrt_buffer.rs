//! `PJRT_Buffer`: an array, the memory it lies in, and what is known about both.
//!
//! ```text
//!   PJRT_Buffer* --> Buffer { shape, device, state }
//!                                             |
//!             life:    Live -> Deleted        the caller deleted or destroyed it
//!                           -> Donated        a program consumed it
//!             storage: Arena(block)           movable unless in use or referenced
//!                      Engine(bytes)          the engine's own memory, counted apart, never moved
//!                      Foreign                an outsider's memory, which programs mostly may only read
//!                      Gone                   passed on to a result, or freed
//!             handle:  the engine's buffer, a view of the block; lives as long as this one
//! ```
//!
//! A block is freed once its buffer is deleted or donated, no operation uses it and no outsider holds its address.

use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;

use crate::{
    engine::{EngineBuffer, EngineError, EngineEvent, Live, Outcome, Raw, Session, views},
    error::{Error, Result},
    memory::Execution,
    runtime::{
        buffer::{
            body::{Body, Vacated},
            number::ArrayNumber,
            storage::{Access, Foreign, Storage},
            usage::{Definition, Life, State, Undonated, Usage, User},
        },
        device_memory::Resident,
        shape::Shape,
    },
    sys,
    units::Bytes,
};

mod ending;
mod referring;

/// XLA's words for using a buffer that was deleted or donated; JAX's users and tests know them.
pub const GONE: &str = "Invalid buffer passed: buffer has been deleted or donated.";

/// Keeps a buffer's handle alive and its bytes in place during calls of the engine about them.
pub struct Hold<'a> {
    buffer: &'a Buffer,
    handle: *mut sys::PJRT_Buffer,
}

impl<'a> Hold<'a> {
    /// The buffer.
    pub fn buffer(&self) -> &'a Buffer {
        self.buffer
    }

    /// The engine's buffer.
    pub fn handle(&self) -> *mut sys::PJRT_Buffer {
        self.handle
    }

    /// The same, to be asked.
    pub fn live(&self) -> Live<'_, sys::PJRT_Buffer> {
        // SAFETY: the client was open when the hold began, in this call of the C API, and the hold keeps the handle
        // alive.
        unsafe { Live::new(self.buffer.session.engine, self.handle) }
    }

    /// The event of the bytes being there.
    ///
    /// # Errors
    /// The engine's.
    pub fn ready_event(&self) -> std::result::Result<EngineEvent, EngineError> {
        views::ready_event(self.live())
    }

    /// The address of the bytes; 0 for a buffer without memory.
    ///
    /// # Errors
    /// The engine's.
    pub fn address(&self) -> std::result::Result<usize, EngineError> {
        views::address(self.live())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.buffer.end_use();
    }
}

/// What a caller's `PJRT_Buffer` is.
pub struct Buffer {
    /// The engine's client.
    pub session: &'static Session,
    /// The engine's device.
    pub device: Raw<sys::PJRT_Device>,
    /// The engine's memory.
    pub memory: Raw<sys::PJRT_Memory>,
    /// What array it is.
    pub shape: Arc<Shape>,
    /// What programs may do with the memory.
    pub access: Access,
    /// The cache that keeps block and handle when the owner destroys the buffer.
    cache_slot: Option<CacheSlot>,
    /// What the past of launches knows it by, where no program made it.
    pub(super) number: ArrayNumber,
    usage: Usage<Body>,
}

impl Buffer {
    /// A live buffer over `view`, the engine's.
    pub fn new(view: EngineBuffer, place: Place, shape: Arc<Shape>, storage: Storage) -> Arc<Self> {
        Self::with_cache_slot(view, place, shape, storage, None)
    }

    /// As [`Buffer::new`], over memory of an outsider.
    pub fn foreign(view: EngineBuffer, place: Place, shape: Arc<Shape>, access: Access, foreign: Foreign) -> Arc<Self> {
        Self::with_body(view.session(), Body::new(view, Storage::Foreign(foreign)), place, shape, access, None)
    }

    /// As [`Buffer::new`], for a result that may become a destination again.
    pub fn with_cache_slot(
        view: EngineBuffer,
        place: Place,
        shape: Arc<Shape>,
        storage: Storage,
        cache_slot: Option<CacheSlot>,
    ) -> Arc<Self> {
        let session = view.session();
        let buffer = Self::with_body(session, Body::new(view, storage), place, shape, Access::Full, cache_slot);
        buffer.enter_residents();
        buffer
    }

    /// A buffer that no resident list knows.
    pub(super) fn with_body(
        session: &'static Session,
        body: Body,
        (device, memory): Place,
        shape: Arc<Shape>,
        access: Access,
        cache_slot: Option<CacheSlot>,
    ) -> Arc<Self> {
        let number = ArrayNumber::default();
        Arc::new(Self { session, device, memory, shape, access, cache_slot, number, usage: Usage::new(body) })
    }

    /// Records how far the execution is that writes the bytes; a use that begins here ends with its operation.
    pub fn define_by(&self, writing: Definition) {
        self.state().define_by(writing);
    }

    /// Enters the buffer among the residents of its memory; from then on it may move once it is defined.
    pub fn enter_residents(self: &Arc<Self>) {
        let state = self.usage.lock();
        if let Some(allocation) = state.allocation() {
            allocation.memory().residents.enter(allocation.block().id, self.as_resident());
        }
    }

    /// The buffer as compaction knows it.
    pub fn as_resident(self: &Arc<Self>) -> Weak<dyn Resident> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Passes the buffer to the caller of the C API, who ends it with `PJRT_Buffer_Destroy`.
    pub fn into_raw(self: Arc<Self>) -> *mut sys::PJRT_Buffer {
        Arc::into_raw(self).cast_mut().cast()
    }

    /// Where it goes when its owner destroys it.
    pub fn cache_slot(&self) -> Option<&CacheSlot> {
        self.cache_slot.as_ref()
    }

    /// The state, locked. Waits while the bytes are being moved.
    pub fn state(&self) -> MutexGuard<'_, State<Body>> {
        self.usage.lock()
    }

    /// What uses and references the bytes.
    pub fn usage(&self) -> &Usage<Body> {
        &self.usage
    }

    /// The engine's buffer, for a query: it stays alive and its bytes in place meanwhile, whether the buffer is live
    /// or not.
    ///
    /// # Errors
    /// FAILED_PRECONDITION once the client is destroyed, or in a child of a fork whose parent was moving the bytes.
    pub fn hold(&self) -> Result<Hold<'_>> {
        self.check_at_rest()?;
        let mut state = self.state();
        let handle = self.open_handle(&state)?;
        state.begin_use(User::Transfer);
        Ok(Hold { buffer: self, handle })
    }

    /// As [`Buffer::hold`], of a buffer that was neither deleted nor donated.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`], or FAILED_PRECONDITION in a child of a fork whose parent was moving the bytes.
    pub fn hold_live(&self) -> Result<Hold<'_>> {
        self.check_at_rest()?;
        Ok(Hold { buffer: self, handle: self.begin_use()? })
    }

    /// In a child after a fork: whether the bytes of a parent's array are in one place.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where a thread of the parent's was moving or lending them when it forked: that never ends.
    #[inline]
    fn check_at_rest(&self) -> Result<()> {
        if self.session.is_inherited() && self.usage().lock_at_rest().is_none() {
            return Err(Error::failed_precondition(
                "the parent of this process was moving the array, or lending it, when it forked",
            ));
        }
        Ok(())
    }

    /// Waits until the array is defined.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated, or the error that it holds.
    pub fn wait(&self) -> Outcome {
        Ok(self.hold_live()?.ready_event()?.wait()?)
    }

    fn open_handle(&self, body: &Body) -> Result<*mut sys::PJRT_Buffer> {
        match body.view() {
            Some(view) if self.session.is_open() => Ok(view.raw()),
            _ => Err(Error::failed_precondition("the buffer's client has been destroyed")),
        }
    }

    /// Begins a use of the bytes by the engine: until [`Buffer::end_use`] they are neither moved nor freed.
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
        self.begin_use_and_tell(user).map(|(handle, _)| handle)
    }

    /// As [`Buffer::begin_use_for`]; tells, too, what is known of the execution that writes the bytes.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn begin_use_and_tell(&self, user: User) -> Result<(*mut sys::PJRT_Buffer, Definition)> {
        self.begin_use_by(user, |state| state.begin_use(user))
    }

    /// As [`Buffer::begin_use_and_tell`], for a launch that could have been donated the buffer, as `argument`.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn begin_undonated_use(
        &self,
        argument: &Arc<Undonated>,
        launch: Execution,
    ) -> Result<(*mut sys::PJRT_Buffer, Definition)> {
        self.begin_use_by(User::Execution, |state| {
            let replaceable = self.is_replaceable(state);
            state.begin_undonated_use(argument, launch.step, replaceable);
        })
    }

    /// Whether the result of a program that is donated the buffer takes its place: it lies in a block, and no outsider
    /// looks at it.
    pub fn is_replaceable(&self, state: &State<Body>) -> bool {
        self.access == Access::Full
            && state.allocation().is_some()
            && !(state.is_referenced() || state.is_address_known())
    }

    #[inline]
    fn begin_use_by(
        &self,
        user: User,
        begin: impl FnOnce(&mut State<Body>),
    ) -> Result<(*mut sys::PJRT_Buffer, Definition)> {
        let mut state = self.state();
        let handle = self.live_handle(&state)?;
        begin(&mut state);
        let definition = state.definition();
        if state.storage.is_spilled() {
            drop(state);
            self.check_readable().inspect_err(|_| self.end_use_for(user))?;
        }
        Ok((handle, definition))
    }

    /// Whether the bytes can be read in the tier, where they stay because they are in use.
    ///
    /// # Errors
    /// DATA_LOSS if the disk that they are on does not read them.
    #[cold]
    pub(super) fn check_readable(&self) -> Result<()> {
        let at = self.state().storage.block().map(|block| (Arc::clone(block.memory()), block.block().address));
        let Some((memory, address)) = at else { return Ok(()) };
        memory.carrier.check_readable(address, Bytes::new(self.shape.size as u64))
    }

    /// The engine's buffer, if this one is live.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn live_handle(&self, state: &State<Body>) -> Result<*mut sys::PJRT_Buffer> {
        if state.life() != Life::Live {
            return Err(Error::invalid_argument(GONE));
        }
        self.open_handle(state)
    }

    /// As [`Buffer::begin_use_and_tell`], for a call that may consume the buffer: until [`Buffer::end_donation`]
    /// nothing but the engine begins to read the bytes, and other readings have ended. `None` if a program on another
    /// client reads them.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn begin_donation(&self, user: User) -> Result<Option<(*mut sys::PJRT_Buffer, Definition)>> {
        let Some(mut state) = self.usage().lock_for_donation() else { return Ok(None) };
        let handle = self.live_handle(&state).inspect_err(|_| state.end_donation())?;
        state.begin_use(user);
        let (definition, has_outsiders) = (state.definition(), state.is_referenced());
        drop(state);
        if has_outsiders && let Err(error) = self.tell_before_donation() {
            drop(self.end_donation(false, true));
            self.end_use_for(user);
            return Err(error.into());
        }
        Ok(Some((handle, definition)))
    }

    /// Ends a call that may have `consumed` the buffer. Gives the memory then, unless the call `failed` and another
    /// call under way was donated the buffer too: either that one has consumed it, or both failed, and the last gives
    /// the memory.
    pub fn end_donation(&self, consumed: bool, failed: bool) -> Option<Storage> {
        let mut state = self.state();
        state.end_donation();
        if !consumed || failed && state.has_pending_donation() {
            // Its owner has deleted it meanwhile.
            if state.life() == Life::Deleted && !state.has_pending_donation() {
                state.retire();
            }
            return None;
        }
        state.donate();
        Some(state.give_up())
    }

    /// Ends a use of the bytes. Only in calls of the C API; operations end with [`Buffer::end_operation_use`].
    pub fn end_use(&self) {
        self.end_use_for(User::Transfer);
    }

    /// Ends what [`Buffer::begin_use_for`] began.
    pub fn end_use_for(&self, user: User) {
        let (freed, recycling) = {
            let mut state = self.state();
            state.end_use(user);
            (state.take_unneeded(), state.recycling && state.is_unused())
        };
        // The arena has a lock of its own: freed after the buffer's is released.
        drop(freed);
        if recycling {
            self.destroy_handle();
        }
    }

    /// After the owner has deleted the buffer: frees the memory, or retires it while it is in use.
    fn retire_or_free(&self) {
        let freed = {
            let mut state = self.state();
            let freed = state.take_unneeded();
            // A launch under way may yet make it a result's, which is live.
            if !state.has_pending_donation() {
                state.retire();
            }
            freed
        };
        drop(freed);
    }

    /// Frees the memory of a deleted or donated buffer, if nothing uses it.
    pub fn release_if_unused(&self) {
        let freed = self.state().take_unneeded();
        drop(freed);
    }

    /// Records that the execution which wrote the bytes is done and succeeded.
    pub fn mark_defined(&self) {
        self.state().mark_defined();
    }

    /// Whether nothing of the engine uses the bytes.
    pub fn is_unused(&self) -> bool {
        self.state().is_unused()
    }
}

/// Results up to this many bytes are cached.
pub const LARGEST_CACHED: usize = 64 << 10;

/// Keeps the memory of a program's results for its next execution.
pub trait Recycle: Send + Sync {
    /// Keeps a buffer that was vacated for the next execution of the program, as its `destination`, or ends it if there
    /// are enough, if there is no next execution, or if a thread waits for memory. Only in calls of the C API.
    fn put(&self, destination: usize, buffer: Arc<Buffer>, vacated: Vacated);
}

/// Where a buffer's block and handle go when its owner destroys it.
pub struct CacheSlot {
    /// The cache of the buffer's program and device.
    pub cache: Arc<dyn Recycle>,
    /// The destination that the buffer was.
    pub destination: usize,
}

/// A device and a memory of the engine.
pub type Place = (Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>);
