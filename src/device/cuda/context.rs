//! The primary context of a device, and how a thread enters it.
//!
//! ```text
//!  the thread's stack of contexts:   | the engine's, or none |
//!  Context::enter                    | the engine's, or none | ours |
//!  the guard is dropped              | the engine's, or none |
//! ```

use std::{ffi::c_int, marker::PhantomData, sync::Arc};

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::driver::{Driver, Failure, out_pointer};

/// The primary context of a device, which the engine uses too. Held until this is dropped.
#[derive(Debug)]
pub(super) struct Context {
    driver: &'static Driver,
    device: CUdevice,
    handle: CUcontext,
}

// SAFETY: the handle is a name that the driver's functions take from any thread; nothing here reads behind it.
unsafe impl Send for Context {}
// SAFETY: as above; entering changes the calling thread's stack only.
unsafe impl Sync for Context {}

impl Context {
    /// Makes the context if nobody has, which takes some hundred megabytes of the device, and holds it.
    pub(super) fn retain(driver: &'static Driver, ordinal: c_int) -> Result<Arc<Self>, Failure> {
        let device = driver.device_at(ordinal)?;
        // SAFETY: the device is one of the driver's, and one value is written.
        let handle = out_pointer(|context| unsafe { driver.primary_context_retain(context, device) })?;
        Ok(Arc::new(Self { driver, device, handle }))
    }

    /// Makes the context the calling thread's, until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Current<'_>, Failure> {
        // SAFETY: the context is held.
        unsafe { self.driver.context_push(self.handle) }?;
        Ok(Current { context: self, thread: PhantomData })
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    pub(super) fn handle(&self) -> CUcontext {
        self.handle
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; no guard is alive, for each one borrows this.
        if let Err(failure) = unsafe { self.driver.primary_context_release(self.device) }
            && !failure.is_over()
        {
            log::error!("the context of GPU {} could not be released: {failure}", self.device);
        }
    }
}

/// The thread is in a context. Guards are dropped in the reverse order of their making, as scopes do it.
#[derive(Debug)]
pub(super) struct Current<'a> {
    context: &'a Context,
    /// Not to be sent: another thread has another stack.
    thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: one value is written, and what `enter` put on the thread's stack is taken.
        match out_pointer(|context| unsafe { self.context.driver.context_pop(context) }) {
            Ok(popped) if popped == self.context.handle => {}
            Ok(popped) => {
                log::error!("a thread left {popped:?}, not the context {:?} that it was in", self.context.handle)
            }
            Err(failure) if failure.is_over() => {}
            Err(failure) => {
                log::error!("a thread could not leave the context of GPU {}: {failure}", self.context.device)
            }
        }
    }
}
