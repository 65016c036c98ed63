//! A buffer that one call of the engine may consume.

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, EngineError, Live, asynchronous::Dependency, views},
    error::{Error, Result},
    runtime::buffer::{
        pjrt_buffer::Buffer,
        storage::{Storage, Successor, SuccessorUse},
        usage::User,
    },
    sys,
};

/// A buffer that one call of the engine may consume.
pub struct DonationHold<'a> {
    buffer: &'a Buffer,
    handle: *mut sys::PJRT_Buffer,
    ended: bool,
}

impl<'a> DonationHold<'a> {
    /// Begins a call that consumes `buffer`.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`]; FAILED_PRECONDITION while a program from a host callback reads it.
    pub fn new(buffer: &'a Buffer) -> Result<Self> {
        let (handle, _) = buffer.begin_donation(User::Transfer)?.ok_or_else(borrowed)?;
        Ok(Self { buffer, handle, ended: false })
    }

    /// The engine's buffer.
    pub fn handle(&self) -> *mut sys::PJRT_Buffer {
        self.handle
    }

    /// Whether the engine says that it has consumed the buffer.
    pub fn is_consumed(&self) -> bool {
        // SAFETY: the client is open, because the hold began in this call of the C API, and the hold keeps the handle
        // alive.
        views::is_consumed(unsafe { Live::new(self.buffer.session.engine, self.handle) }, false)
    }

    /// The engine has consumed the buffer, and `successor` has its memory from now on. Programs and transfers that
    /// still use the buffer use that memory. Gives the memory back if `successor` was donated meanwhile.
    pub fn consumed(mut self, successor: &Arc<Buffer>) -> Option<Storage> {
        // First, so that it cannot be freed between the two locks.
        successor.state().begin_use(User::Transfer);
        self.ended = true;
        let memory = self.buffer.end_donation(true, false).unwrap_or(Storage::Gone);
        let refused = successor.take_over(memory).err();
        // The last of these uses may be this hold's own, which ends next.
        self.buffer.state().storage = Storage::Successor(SuccessorUse::new(Arc::clone(successor) as _));
        refused
    }

    /// The engine has consumed the buffer, and nobody has the memory from now on: it goes with the last use.
    pub fn consumed_for_nobody(mut self) {
        self.ended = true;
        if let Some(memory) = self.buffer.end_donation(true, false) {
            self.buffer.state().storage = memory;
        }
    }
}

impl Buffer {
    /// For a call that is donated the buffer: has what is passed the handle that is given back wait for the dependency.
    /// `None` if anything but this call uses the bytes, which may have the old handle.
    pub fn wait_for(&self) -> Option<std::result::Result<(*mut sys::PJRT_Buffer, Dependency), EngineError>> {
        let old = self.usage().lock_alone(|body| body.view().map(EngineBuffer::raw))?;
        // SAFETY: the client is open during the call that began the donation. The handle is the buffer's own: it is
        // alive until it is replaced, and nobody else has it, because all others wait.
        let made = unsafe { EngineBuffer::waiting(self.session, Live::new(self.session.engine, old)) };
        let (old, outcome) = self.usage().unlock_after_move(|body| match made {
            Ok((view, dependency)) => {
                let handle = view.raw();
                (body.replace_view(view), Ok((handle, dependency)))
            }
            Err(error) => (None, Err(error)),
        });
        // Without the lock.
        drop(old);
        Some(outcome)
    }
}

impl Successor for Buffer {
    fn end_use_of_source(&self) {
        self.end_use();
    }
}

impl Drop for DonationHold<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.buffer.end_donation(false, true));
        }
        self.buffer.end_use();
    }
}

/// The error of a call that would consume a buffer which a program from a host callback reads.
pub fn borrowed() -> Error {
    Error::failed_precondition(
        "a program that a host callback runs reads the array, which can be neither donated nor copied meanwhile",
    )
}
