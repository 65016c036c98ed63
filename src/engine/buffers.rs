//! Buffers of the engine that we own.

use crate::{
    device::Carrier,
    engine::{
        EngineError, EngineEvent, Live, Outcome, Raw, Session,
        extensions::stream_of,
        views::{self, Array, ClientMemory, HostBytes, OwnedBuffer, ViewKind},
    },
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
    #[inline]
    pub unsafe fn own(session: &'static Session, handle: *mut sys::PJRT_Buffer) -> Self {
        Self { session, handle: Raw(handle) }
    }

    /// A view of a block whose bytes are there, or are written by nobody but programs that are donated the view.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The client must be alive, and the memory its own. The block is aligned, holds the array, and is freed only after
    /// the view, every output that a program wrote into it, and the programs that use them.
    pub unsafe fn view(
        session: &'static Session,
        memory: Raw<sys::PJRT_Memory>,
        address: usize,
        array: Array<'_>,
    ) -> Result<Self, EngineError> {
        // SAFETY: client, memory and block are as this function asks; the view is new.
        unsafe {
            let (engine, client) = (session.engine, session.handle);
            let place = ClientMemory { client: Live::new(engine, client.0), memory: Live::new(engine, memory.0) };
            let view = match session.view_kind {
                ViewKind::Host => views::from_host(place, address, array, HostBytes::Writable)?,
                ViewKind::Device => views::on_device(place, address, array, 0)?,
            };
            Ok(Self::own(session, view.into_raw()))
        }
    }

    /// As [`Self::view`], of a block in `memory` of the GPU `device` that `carrier` was told to bring bytes to: the
    /// view is ready when they are there.
    ///
    /// # Errors
    /// The engine's, or the device's.
    ///
    /// # Safety
    /// As [`Self::view`]; but the bytes need not be there. The device must be the client's.
    pub unsafe fn view_behind(
        session: &'static Session,
        (device, memory): (Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>),
        carrier: &dyn Carrier,
        address: usize,
        array: Array<'_>,
    ) -> Outcome<Self> {
        // Threads that do this at once make each other's views wait for more than they need, and never for less.
        // SAFETY: the stream is one of the device's own; client, device, memory and block are as this function asks of
        // its caller. The view is new.
        unsafe {
            let (engine, client) = (session.engine, session.handle);
            let stream = stream_of(Live::new(engine, device.0))?;
            carrier.order(stream)?;
            let place = ClientMemory { client: Live::new(engine, client.0), memory: Live::new(engine, memory.0) };
            let view = views::on_device(place, address, array, stream)?;
            Ok(Self::own(session, view.into_raw()))
        }
    }

    /// The session of the buffer's client.
    pub fn session(&self) -> &'static Session {
        self.session
    }

    /// The handle, which stays ours.
    #[inline]
    pub fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.handle.0
    }

    /// Hands the buffer over to the caller, who destroys it.
    pub fn into_raw(self) -> *mut sys::PJRT_Buffer {
        std::mem::ManuallyDrop::new(self).handle.0
    }

    /// The buffer, if its client is there: it can be asked during the present call of the C API.
    ///
    /// # Errors
    /// That the client is gone.
    pub fn live(&self) -> Result<Live<'_, sys::PJRT_Buffer>, EngineError> {
        self.session.open().map_err(EngineError::Own)?;
        // SAFETY: the buffer is ours, so it is alive while its client is open and this is not dropped.
        Ok(unsafe { Live::new(self.session.engine, self.handle.0) })
    }

    /// Whether a program that was donated the buffer has consumed it; also where the engine does not say. Asking does
    /// not block, even while the program runs.
    pub fn is_consumed(&self) -> bool {
        self.live().is_ok_and(|buffer| views::is_consumed(buffer, true))
    }

    /// Where the buffer's bytes are; 0 for a buffer without memory.
    ///
    /// # Errors
    /// The engine's: a consumed buffer, a device without addresses; or that the client is gone.
    pub fn address(&self) -> Result<usize, EngineError> {
        views::address(self.live()?)
    }

    /// The event of the bytes being there.
    ///
    /// # Errors
    /// The engine's, or that the client is gone.
    pub fn ready_event(&self) -> Result<EngineEvent, EngineError> {
        views::ready_event(self.live()?)
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
    #[inline]
    fn drop(&mut self) {
        if self.session.is_open() {
            // SAFETY: the client is there, so the buffer is alive; it is ours, and this is its end.
            drop(unsafe {
                let client = Live::new(self.session.engine, self.session.handle.0);
                OwnedBuffer::own(client, self.handle.0)
            });
        }
    }
}
