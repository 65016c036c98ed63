//! Buffers of the engine that we own.

use crate::{
    engine::{EngineError, EngineEvent, Raw, Session, views},
    error::Error,
    sys,
};

/// A buffer of the engine that we own. It is destroyed when it is dropped, unless its client is gone, which has
/// destroyed it then. That blocks while a program that was donated the buffer still runs (engine behaviour T3), so it
/// is not dropped under a lock.
pub struct EngineBuffer {
    session: &'static Session,
    handle: Raw<sys::PJRT_Buffer>,
}

impl EngineBuffer {
    /// Owns `handle`.
    ///
    /// # Safety
    /// `handle` must be a buffer of the session's engine that lives no longer than the session's client, and nobody
    /// else may destroy it.
    pub unsafe fn own(session: &'static Session, handle: *mut sys::PJRT_Buffer) -> Self {
        Self { session, handle: Raw(handle) }
    }

    /// The session of the buffer's client.
    pub fn session(&self) -> &'static Session {
        self.session
    }

    /// The handle, which stays ours.
    pub fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.handle.0
    }

    /// Hands the buffer over to the caller, who destroys it.
    pub fn release(self) -> Raw<sys::PJRT_Buffer> {
        std::mem::ManuallyDrop::new(self).handle
    }

    /// Whether a program has consumed the buffer. Asking does not block, even while the program runs.
    pub fn is_consumed(&self) -> bool {
        // SAFETY: the buffer is ours, so it is alive while its client is open.
        self.session.is_open() && unsafe { is_consumed(self.session, self.handle.0) }
    }

    /// Where the buffer's bytes are; 0 for a buffer without memory.
    ///
    /// # Errors
    /// The engine's: a consumed buffer, a device without addresses; or that the client is gone.
    pub fn address(&self) -> Result<usize, EngineError> {
        self.session.open().map_err(EngineError::Own)?;
        // SAFETY: the buffer is ours, so it is alive while its client is open.
        unsafe { views::address(self.session.engine, self.handle.0) }
    }

    /// The event of the bytes being there.
    ///
    /// # Errors
    /// The engine's, or that the client is gone.
    pub fn ready_event(&self) -> Result<EngineEvent, EngineError> {
        self.session.open().map_err(EngineError::Own)?;
        // SAFETY: the buffer is ours, so it is alive while its client is open.
        unsafe { ready_event(self.session, self.handle.0) }
    }

    /// Waits until the bytes are there.
    ///
    /// # Errors
    /// The error that the buffer holds.
    pub fn wait(&self) -> Result<(), EngineError> {
        self.ready_event()?.wait()
    }
}

impl Drop for EngineBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is ours, and this is its end.
        unsafe { self.session.destroy(self.handle) };
    }
}

/// The event that happens when the bytes of a buffer are there.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `buffer` must be a live buffer of the session's engine.
pub unsafe fn ready_event(session: &Session, buffer: *mut sys::PJRT_Buffer) -> Result<EngineEvent, EngineError> {
    // SAFETY: the buffer is alive; the event is ours from here on.
    unsafe {
        let ready = session.engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer, ..Default::default() })?;
        EngineEvent::own(session.engine, ready.event)
            .ok_or_else(|| EngineError::Own(Error::internal("a buffer without an event")))
    }
}

/// Whether a program has consumed a buffer. Asking does not block, even while the program runs.
///
/// # Safety
/// `buffer` must be a live buffer of the session's engine.
pub unsafe fn is_consumed(session: &Session, buffer: *mut sys::PJRT_Buffer) -> bool {
    // SAFETY: the buffer is alive.
    let gone = unsafe { session.engine.call(sys::PJRT_Buffer_IsDeleted_Args { buffer, ..Default::default() }) };
    gone.is_ok_and(|args| args.is_deleted)
}
