//! A client of the engine, and how it is shown memory of ours.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    device::Carrier,
    engine::{
        Engine, EngineError, Outcome, Raw,
        extensions::stream_of,
        fence::ExecutionQueue,
        views::{self, AliasableTypes, Array, ViewKind},
    },
    error::{Error, Result},
    sys,
};

/// A client of the engine.
///
/// A session is never freed (it has some 50 bytes), because buffers may outlive the client (engine behaviour T22) and
/// each of them asks whether it is still there.
pub struct Session {
    /// The engine behind it.
    pub engine: &'static Engine,
    /// The engine's client.
    pub handle: Raw<sys::PJRT_Client>,
    /// How the engine is shown memory of the arenas.
    pub view_kind: ViewKind,
    /// Element types whose arrays can lie in an arena.
    pub aliasable: AliasableTypes,
    /// Whether the engine does the executions of a device one after another.
    pub orders_executions: bool,
    open: AtomicBool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:p})", self.handle.0)
    }
}

impl Session {
    /// The session of the client `handle`, which was just created.
    pub fn new(
        engine: &'static Engine,
        handle: Raw<sys::PJRT_Client>,
        (view_kind, aliasable): (ViewKind, AliasableTypes),
        orders_executions: bool,
    ) -> &'static Self {
        let open = AtomicBool::new(true);
        Box::leak(Box::new(Self { engine, handle, view_kind, aliasable, orders_executions, open }))
    }

    /// Whether the engine's client is still there.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Says that the engine's client is about to be destroyed.
    pub fn close(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// The engine's client, for one call of the C API. Its callers promise that no client is destroyed while a call
    /// with it, or with anything that belongs to it, is under way; so what was open when the call began stays so until
    /// it returns.
    ///
    /// # Errors
    /// FAILED_PRECONDITION once the client is destroyed.
    pub fn open(&'static self) -> Result<Open> {
        if self.is_open() {
            Ok(Open(self))
        } else {
            Err(Error::failed_precondition("the buffer's client has been destroyed"))
        }
    }

    /// The queue of `device`, if the engine does its executions one after another.
    pub fn queue(&self, device: Raw<sys::PJRT_Device>) -> Option<ExecutionQueue> {
        self.orders_executions.then_some(ExecutionQueue { client: self.handle, device })
    }
}

/// A client of the engine that is not destroyed before the present call of the C API returns. See [`Session::open`].
#[derive(Clone, Copy)]
pub struct Open(&'static Session);

impl std::ops::Deref for Open {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.0
    }
}

impl Session {
    /// A view of a block whose bytes are there, or are written by nobody but programs that are donated the view.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The client and the memory must be alive. The block is aligned, holds the array, and is freed only after the
    /// view, every output that a program wrote into it, and the programs that use them.
    pub unsafe fn view(
        &self,
        memory: Raw<sys::PJRT_Memory>,
        address: usize,
        array: Array<'_>,
    ) -> Result<*mut sys::PJRT_Buffer, EngineError> {
        let place = (self.handle.0, memory.0);
        // SAFETY: client, memory and block are as this function asks of its caller.
        unsafe {
            match self.view_kind {
                ViewKind::Host => views::view(self.engine, place, address, array),
                ViewKind::Device => views::view_on_device(self.engine, place, address, array, 0),
            }
        }
    }

    /// As [`Self::view`], of a block in `memory` of the GPU `device` that `carrier` was told to bring bytes to: the
    /// view is ready when they are there.
    ///
    /// # Errors
    /// The engine's, or the device's.
    ///
    /// # Safety
    /// As [`Self::view`]; but the bytes need not be there. The device must be alive.
    pub unsafe fn view_behind(
        &self,
        (device, memory): (Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>),
        carrier: &dyn Carrier,
        address: usize,
        array: Array<'_>,
    ) -> Outcome<*mut sys::PJRT_Buffer> {
        let place = (self.handle.0, memory.0);
        // Threads that do this at once make each other's views wait for more than they need, and never for less.
        // SAFETY: the stream is one of the device's own; device, memory and block are as this function asks of its
        // caller.
        unsafe {
            let stream = stream_of(device.0)?;
            carrier.order(stream)?;
            Ok(views::view_on_device(self.engine, place, address, array, stream)?)
        }
    }

    /// Destroys a view, or another buffer of the engine's; nothing is done once the client is gone. Blocks while a
    /// program that was donated the buffer still runs (engine behaviour T3).
    ///
    /// # Safety
    /// `buffer` must be NULL, or a buffer of this client that nobody uses again.
    pub unsafe fn destroy(&self, buffer: Raw<sys::PJRT_Buffer>) {
        if !buffer.is_null() && self.is_open() {
            // SAFETY: the client is there, so the buffer is alive; nobody uses it again, as this function asks.
            unsafe { views::destroy(self.engine, buffer.0) };
        }
    }
}
