//! What the engine is told of outsiders that hold the address of the bytes.
//!
//! ```text
//!   an outsider comes ----> counted here                        the engine is told first:
//!                                                               of bytes that are its own, which it would free;
//!                                                               while a call is donated them
//!   a call is donated the bytes ----> the engine is told, if there are outsiders
//!   the last outsider goes ----> the engine is told, if it was before
//! ```
//!
//! All that an engine does with a reference to a view is to refuse its donation, or to answer it with a copy (engine
//! behaviour T11). So it hears of one when it is donated the view, and of most never.

use parking_lot::MutexGuard;

use crate::{
    engine::{EngineError, Live, views::set_referenced},
    runtime::buffer::{body::Body, pjrt_buffer::Buffer, usage::State},
};

/// The engine has been told; other outsiders wait until this is dropped.
pub struct Referring<'a>(&'a Buffer);

impl Drop for Referring<'_> {
    fn drop(&mut self) {
        drop(self.0.usage().end_referring());
    }
}

impl Buffer {
    /// Lets an outsider come: `add` counts it. The engine is told before, if it has to know. The buffer's handle must
    /// be in use.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the buffer was deleted or donated, or the engine's; nobody came then.
    pub fn add_outsider<R>(&self, add: impl FnOnce(&mut State<Body>) -> R) -> Result<R, EngineError> {
        let mut state = self.usage().lock_to_refer();
        self.live_handle(&state).map_err(EngineError::Own)?;
        let is_theirs = state.storage.block().is_none();
        if state.is_told() || !(is_theirs || state.has_pending_donation()) {
            // A call that is donated the bytes from here on finds the outsider.
            return Ok(add(&mut state));
        }
        let told = self.tell(state, true)?;
        let added = add(&mut self.state());
        drop(told);
        Ok(added)
    }

    /// Tells the engine that there are outsiders, if there are some of which it does not know: a call is about to be
    /// donated the buffer, which is in use.
    ///
    /// # Errors
    /// The engine's.
    #[cold]
    pub(super) fn tell_before_donation(&self) -> Result<(), EngineError> {
        let state = self.usage().lock_to_refer();
        if state.is_told() || !state.is_referenced() {
            return Ok(());
        }
        self.tell(state, true).map(drop)
    }

    /// Tells the engine that the last outsider has gone, if it knew that there were any. The buffer's handle must be in
    /// use, and the state have been locked for an outsider.
    ///
    /// # Errors
    /// The engine's.
    pub fn tell_of_last(&self, state: MutexGuard<'_, State<Body>>) -> Result<(), EngineError> {
        if state.is_told() && !state.is_referenced() {
            self.tell(state, false)?;
        }
        Ok(())
    }

    /// Tells the engine whether there are outsiders, without the lock, and notes what it knows then.
    fn tell(&self, mut state: MutexGuard<'_, State<Body>>, are_there: bool) -> Result<Referring<'_>, EngineError> {
        let handle = self.open_handle(&state).map_err(EngineError::Own)?;
        state.begin_referring();
        let referring = Referring(self);
        drop(state);
        // SAFETY: the client is open, and the handle is in use, as the callers ask. Others wait until `referring` is
        // dropped.
        unsafe { set_referenced(Live::new(self.session.engine, handle), are_there)? };
        self.state().end_telling(are_there);
        Ok(referring)
    }
}
