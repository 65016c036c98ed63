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

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    engine::{Engine, Outcome, Raw, extensions, failure::discard},
    sys,
};

/// An execute context.
pub struct Context {
    engine: &'static Engine,
    inside: Mutex<Inside>,
}

struct Inside {
    /// The engine's context; NULL before a program needs it.
    handle: Raw<sys::PJRT_ExecuteContext>,
    /// Data that was added before the engine's context.
    kept: SmallVec<[UserData; 2]>,
}

/// One pointer of the caller's, under the id of its type.
#[derive(Clone, Copy)]
struct UserData {
    kind: i64,
    data: Raw<std::ffi::c_void>,
}

impl Context {
    /// A context without data.
    pub fn new(engine: &'static Engine) -> Self {
        Self { engine, inside: Mutex::new(Inside { handle: Raw::NULL, kept: SmallVec::new() }) }
    }

    /// The engine's context, made now if there is none yet.
    ///
    /// # Errors
    /// The engine's.
    pub fn handle(&self) -> Outcome<*mut sys::PJRT_ExecuteContext> {
        let known = self.inside.lock().handle;
        if !known.is_null() {
            return Ok(known.0);
        }
        // SAFETY: the struct has only an out field.
        let made = unsafe { self.engine.call(sys::PJRT_ExecuteContext_Create_Args::default())? }.context;
        let mut passed_on = 0;
        loop {
            // No lock is held while the engine is called.
            let next = {
                let mut inside = self.inside.lock();
                match inside.kept.get(passed_on).copied() {
                    _ if !inside.handle.is_null() => break,
                    Some(next) => next,
                    None => {
                        inside.handle = Raw(made);
                        return Ok(made);
                    }
                }
            };
            // SAFETY: the context was just made; the data lives as long as the executions, as `add` asks of its
            // caller.
            if let Err(failure) = unsafe { extensions::add_user_data(made, next.kind, next.data.0) } {
                self.destroy(made);
                return Err(failure);
            }
            passed_on += 1;
        }
        // Another thread was faster.
        self.destroy(made);
        Ok(self.inside.lock().handle.0)
    }

    /// Adds user data.
    ///
    /// # Errors
    /// The engine's: there is data of that type already, or the pointer is NULL.
    ///
    /// # Safety
    /// As the C API says: the data lives until the executions that are given the context are done.
    pub unsafe fn add(&self, kind: i64, data: *mut std::ffi::c_void) -> Outcome {
        let keeps = {
            let mut inside = self.inside.lock();
            // Data that the engine would refuse goes to the engine, which says why.
            let good = !data.is_null() && inside.kept.iter().all(|kept| kept.kind != kind);
            let keeps = good && inside.handle.is_null();
            if keeps {
                inside.kept.push(UserData { kind, data: Raw(data) });
            }
            keeps
        };
        if !keeps {
            // SAFETY: the engine's context is alive while this one is; the data lives as long as the executions, as
            // this function asks.
            unsafe { extensions::add_user_data(self.handle()?, kind, data)? };
        }
        Ok(())
    }

    /// Shares ownership of a caller's context.
    ///
    /// # Safety
    /// This must be what a handle of the caller points to that is still alive.
    pub unsafe fn share(&self) -> Arc<Self> {
        // SAFETY: the pointer is that of an `Arc` which a live handle keeps alive, as this function asks; the strong
        // count that is added here is the result's.
        unsafe {
            Arc::increment_strong_count(self);
            Arc::from_raw(self)
        }
    }

    fn destroy(&self, context: *mut sys::PJRT_ExecuteContext) {
        let args = sys::PJRT_ExecuteContext_Destroy_Args { context, ..Default::default() };
        // SAFETY: the context is alive, this object's alone, and destroyed once.
        discard(unsafe { self.engine.call(args) }, "destroy an execute context");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let handle = self.inside.get_mut().handle;
        if !handle.is_null() {
            self.destroy(handle.0);
        }
    }
}
