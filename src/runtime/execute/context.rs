//! `PJRT_ExecuteContext`: pjrt-arena's, and the engine's behind it where a program can read it.
//!
//! A context carries user data for the handlers of custom calls, and jaxlib makes one with data in it for every call
//! of every function. A program without custom calls never reads it, so the engine's context is made when the first
//! program needs it: as a rule never.
//!
//! ```text
//!   Create, UserData_Add -------> kept here
//!   Execute, custom calls ------> the engine's is made and given all that was kept; it gets later data at once
//!   Execute, no custom call ----> NULL
//! ```
//!
//! jaxlib destroys the context as soon as Execute returns, while the engine may look up the user data in it later, on
//! a thread of its own: a use after free in jaxlib 0.10.2 with any asynchronous C-API plugin. So the engine's context
//! lives until every execution that was passed it is done.

use std::{ops::Deref, sync::Arc};

use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    engine::{Engine, Live, Outcome, Raw, extensions, failure::discard},
    sys,
};

/// An execute context.
pub struct Context {
    engine: &'static Engine,
    /// The engine's context, once a program needs it. It is set under the lock of `kept`.
    made: OnceCell<EngineContext>,
    /// Data that was added before the engine's context.
    kept: Mutex<SmallVec<[UserData; 2]>>,
}

/// A context of the engine.
struct EngineContext(Live<'static, sys::PJRT_ExecuteContext>);

impl EngineContext {
    /// A new one.
    ///
    /// # Errors
    /// The engine's.
    fn new(engine: &'static Engine) -> Outcome<Self> {
        // SAFETY: the struct has only an out field. The context is new, and alive until this is dropped.
        unsafe {
            let made = engine.call(sys::PJRT_ExecuteContext_Create_Args::default())?;
            Ok(Self(Live::new(engine, made.context)))
        }
    }

    /// # Errors
    /// The engine's: there is data of that type already, or the pointer is NULL.
    fn add(&self, UserData { kind, data }: UserData) -> Outcome {
        // SAFETY: the context is alive, and the data lives as long as its executions, as `UserData` has it.
        unsafe { extensions::add_user_data(self.0.raw(), kind, data.0) }
    }
}

impl Drop for EngineContext {
    fn drop(&mut self) {
        let args = sys::PJRT_ExecuteContext_Destroy_Args { context: self.0.raw(), ..Default::default() };
        // SAFETY: the context is owned here, and this is its end.
        discard(unsafe { self.0.engine().call(args) }, "destroy an execute context");
    }
}

/// One pointer of the caller's, under the id of its type. It lives until the executions that are given it are done.
#[derive(Clone, Copy)]
struct UserData {
    kind: i64,
    data: Raw<std::ffi::c_void>,
}

impl Context {
    /// A context without data.
    pub fn new(engine: &'static Engine) -> Self {
        Self { engine, made: OnceCell::new(), kept: Mutex::default() }
    }

    /// The engine's context, made now if there is none yet.
    ///
    /// # Errors
    /// The engine's.
    pub fn handle(&self) -> Outcome<*mut sys::PJRT_ExecuteContext> {
        Ok(self.made()?.0.raw())
    }

    fn made(&self) -> Outcome<&EngineContext> {
        if let Some(known) = self.made.get() {
            return Ok(known);
        }
        // No lock is held while the engine is called, nor when this one is dropped because another thread was faster.
        let made = EngineContext::new(self.engine)?;
        let mut passed_on = 0;
        loop {
            let next = {
                let kept = self.kept.lock();
                match (self.made.get(), kept.get(passed_on)) {
                    (Some(faster), _) => return Ok(faster),
                    (None, Some(&next)) => next,
                    (None, None) => return Ok(self.made.get_or_init(|| made)),
                }
            };
            made.add(next)?;
            passed_on += 1;
        }
    }

    /// Adds user data.
    ///
    /// # Errors
    /// The engine's: there is data of that type already, or the pointer is NULL.
    ///
    /// # Safety
    /// As the C API says: the data lives until the executions that are given the context are done.
    pub unsafe fn add(&self, kind: i64, data: *mut std::ffi::c_void) -> Outcome {
        let user_data = UserData { kind, data: Raw(data) };
        {
            let mut kept = self.kept.lock();
            // Data that the engine would refuse goes to the engine, which says why.
            let good = !data.is_null() && kept.iter().all(|known| known.kind != kind);
            if good && self.made.get().is_none() {
                kept.push(user_data);
                return Ok(());
            }
        }
        self.made()?.add(user_data)
    }
}

/// The context behind a caller's handle, for the time of a call.
#[derive(Clone, Copy)]
pub struct ContextRef<'a>(&'a Context);

impl<'a> ContextRef<'a> {
    /// The context behind a caller's handle; `None` for NULL.
    ///
    /// # Safety
    /// `handle` must be NULL, or come from an `Arc` of a [`Context`] and not be destroyed while the result is used.
    pub unsafe fn of(handle: *mut sys::PJRT_ExecuteContext) -> Option<Self> {
        // SAFETY: a handle that is not NULL points to a context that is not destroyed during `'a`.
        unsafe { handle.cast::<Context>().as_ref() }.map(Self)
    }

    /// Shares ownership of the context.
    pub fn share(self) -> Arc<Context> {
        // SAFETY: the pointer is that of an `Arc`, which the caller's handle keeps alive during `'a`; the strong count
        // that is added here is the result's.
        unsafe {
            Arc::increment_strong_count(self.0);
            Arc::from_raw(self.0)
        }
    }
}

impl Deref for ContextRef<'_> {
    type Target = Context;

    fn deref(&self) -> &Context {
        self.0
    }
}
