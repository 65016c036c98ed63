//! A client of the engine, and whether it is still there.

use std::{
    fmt,
    marker::PhantomData,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    engine::{
        Engine, Live, Raw,
        views::{AliasableTypes, ViewKind},
    },
    error::{Error, Result},
    fork, sys,
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
    /// The process that has it.
    generation: u32,
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
        let generation = fork::generation();
        Box::leak(Box::new(Self { engine, handle, view_kind, aliasable, orders_executions, open, generation }))
    }

    /// Whether an array can lie in an arena. One without elements has no bytes, and stays the engine's: on a GPU it has to
    /// have the address 0 (engine behaviour T42).
    pub fn can_view(&self, element_type: sys::PJRT_Buffer_Type, dims: &[i64]) -> bool {
        self.aliasable.contains(element_type) && !dims.contains(&0)
    }

    /// Whether this process has the client from its parent, where the engine's threads stayed.
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
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
            Ok(Open(self, PhantomData))
        } else {
            Err(Error::failed_precondition("the buffer's client has been destroyed"))
        }
    }
}

/// A client of the engine that is not destroyed before the present call of the C API returns. See [`Session::open`]. A
/// call is one thread's, so this does not leave the thread; nor is it kept for another call.
#[derive(Clone, Copy)]
pub struct Open(&'static Session, PhantomData<*const ()>);

impl std::ops::Deref for Open {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.0
    }
}

impl Open {
    /// The client.
    #[inline]
    pub fn client(&self) -> Live<'_, sys::PJRT_Client> {
        // SAFETY: the client is not destroyed before the present call of the C API returns, and this borrows from a
        // value of that call.
        unsafe { Live::new(self.engine, self.handle.0) }
    }
}
