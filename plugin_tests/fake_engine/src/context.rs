//! `PJRT_ExecuteContext`: the CPU engine's, kept alive while a program runs that was given it.
//!
//! Callers end a context when Execute returns, and here programs run later.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;

use crate::{
    cpu::{self, Raw},
    entry::Entry,
    error::{Error, Result},
    sys,
};

/// A share of a context.
pub struct Context(Raw<sys::PJRT_ExecuteContext>);

static CONTEXTS: LazyLock<Mutex<HashMap<usize, Arc<Context>>>> = LazyLock::new(Mutex::default);

impl Context {
    /// A share of the context with this handle; `None` for NULL.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a handle that is none.
    pub fn share(handle: *mut sys::PJRT_ExecuteContext) -> Result<Option<Arc<Self>>> {
        if handle.is_null() {
            return Ok(None);
        }
        let found = CONTEXTS.lock().get(&handle.addr()).cloned();
        found.map(Some).ok_or_else(|| Error::invalid(format!("{handle:p} is no execute context of this engine")))
    }

    /// The CPU engine's handle.
    pub fn handle(&self) -> *mut sys::PJRT_ExecuteContext {
        self.0.0
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(cpu) = cpu::engine() {
            let args = sys::PJRT_ExecuteContext_Destroy_Args { context: self.0.0, ..Default::default() };
            // SAFETY: the context is ours, and nothing names it any more.
            drop(unsafe { cpu.call(args) });
        }
    }
}

impl Entry for sys::PJRT_ExecuteContext_Create_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's struct, handed on.
        unsafe { cpu::engine()?.pass(self)? };
        CONTEXTS.lock().insert(self.context.addr(), Arc::new(Context(Raw(self.context))));
        Ok(())
    }
}

impl Entry for sys::PJRT_ExecuteContext_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        let removed = CONTEXTS.lock().remove(&self.context.addr());
        drop(removed);
        Ok(())
    }
}
