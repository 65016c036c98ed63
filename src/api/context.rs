//! `PJRT_ExecuteContext`: ours around the engine's.
//!
//! jaxlib destroys the context as soon as Execute returns, while the engine may look up the user data in it later, on a
//! thread of its own: a use after free in jaxlib 0.10.2 with any asynchronous C-API plugin. So the engine's context
//! lives until every execution that was given it is done.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    callbacks::CALLABLES,
    entry::{Entry, Outcome, required},
    plugin,
};
use crate::{
    engine::{Engine, Raw},
    sys,
};

/// An execute context.
pub struct Context {
    engine: &'static Engine,
    handle: Raw<sys::PJRT_ExecuteContext>,
    /// Where the run's Python callables are, if it has any.
    callables: AtomicUsize,
}

impl Context {
    /// The engine's context.
    pub fn handle(&self) -> *mut sys::PJRT_ExecuteContext {
        self.handle.0
    }

    /// Notes user data that was added.
    pub fn note(&self, data: &sys::PJRT_FFI_UserData) {
        if data.type_id == CALLABLES {
            self.callables.store(data.data.addr(), Ordering::Relaxed);
        }
    }

    /// Where the run's Python callables are; 0 if it has none.
    pub fn callables(&self) -> usize {
        self.callables.load(Ordering::Relaxed)
    }

    /// A share of the context behind a caller's handle; `None` for NULL.
    ///
    /// # Safety
    /// `context` must be NULL or a live context of ours.
    pub unsafe fn share(context: *mut sys::PJRT_ExecuteContext) -> Option<Arc<Self>> {
        if context.is_null() {
            return None;
        }
        // SAFETY: the handle is one share of the `Arc`, alive during the call.
        unsafe {
            Arc::increment_strong_count(context.cast::<Self>());
            Some(Arc::from_raw(context.cast()))
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let args = sys::PJRT_ExecuteContext_Destroy_Args { context: self.handle.0, ..Default::default() };
        // SAFETY: the engine's context is ours, and this is the only time that it is destroyed.
        if let Err(error) = unsafe { self.engine.call(args) } {
            log::warn!("the engine could not destroy an execute context: {}", error.message());
        }
    }
}

impl Entry for sys::PJRT_ExecuteContext_Create_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = plugin::engine()?;
        // SAFETY: the struct has only an out field.
        let args = unsafe { engine.call(Self { context: ptr::null_mut(), ..*self })? };
        let context = Arc::new(Context { engine, handle: Raw(args.context), callables: AtomicUsize::new(0) });
        self.context = Arc::into_raw(context).cast_mut().cast();
        Ok(())
    }
}

impl Entry for sys::PJRT_ExecuteContext_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        let context = required(self.context, "PJRT_ExecuteContext_Destroy", "context")?;
        // SAFETY: the handle is one share, which the caller gives up.
        drop(unsafe { Arc::from_raw(context.cast::<Context>()) });
        Ok(())
    }
}
