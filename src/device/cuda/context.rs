//! The primary context of a device, and how a thread enters it.
//!
//! ```text
//!  the thread's stack of contexts:   | the engine's, or none |
//!  Context::enter                    | the engine's, or none | ours |
//!  the guard is dropped              | the engine's, or none |
//! ```
//!
//! In there the thread may allocate and wait while another thread captures a stream into a graph. By default the driver
//! forbids both to the thread that captures, and to all others where the capture is a global one, as PyTorch's are: an
//! array of JAX's that is dropped at such a moment would fail, and spoil the capture. Nothing that we call touches a
//! stream that others capture.
//!
//! HIP's contexts are devices under another name, and its stack of them does not give back the device that a thread had
//! (`hip_context.cpp`: to pop sets none). So on AMD's GPUs a thread's device is set, as the engine does, and set back.

use std::{
    ffi::{c_int, c_uint},
    marker::PhantomData,
    ptr,
    sync::Arc,
};

use cudarc::driver::sys::{CUctx_st, CUdevice, CUstream, CUstreamCaptureMode};

use crate::{
    device::cuda::{
        driver::{Driver, DriverError, out, out_pointer},
        handle::Handle,
        vendor::{COPY_BY_ADDRESS, Vendor},
    },
    units::{Address, Bytes},
};

/// The primary context of a device, which the engine uses too. Held until this is dropped.
#[derive(Debug)]
pub(super) struct Context {
    driver: &'static Driver,
    device: CUdevice,
    /// Null where the device stands for it.
    handle: Handle<CUctx_st>,
}

impl Context {
    /// Makes the context if there is none yet, which takes some hundred megabytes of the device, and holds it.
    pub(super) fn retain(driver: &'static Driver, ordinal: c_int) -> Result<Arc<Self>, DriverError> {
        let device = driver.device_at(ordinal)?;
        let handle = match driver.vendor() {
            Vendor::Nvidia => out_pointer(|context| driver.primary_context_retain(context, device))?,
            Vendor::Amd => ptr::null_mut(),
        };
        Ok(Arc::new(Self { driver, device, handle: Handle::new(handle) }))
    }

    /// Makes the context the calling thread's, until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Current<'_>, DriverError> {
        let before = match self.driver.vendor() {
            Vendor::Nvidia => {
                // SAFETY: the handle is that of a context which this value has retained and not released.
                unsafe { self.driver.context_push(self.handle.get()) }?;
                None
            }
            Vendor::Amd => {
                let before: c_int = out(|device| self.driver.current_device(device))?;
                if before != self.device {
                    self.driver.set_device(self.device)?;
                }
                Some(before)
            }
        };
        let mut current = Current { context: self, before, mode: None, thread: PhantomData };
        current.mode = Some(self.exchange_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint)?);
        Ok(current)
    }

    /// Sets which captures of streams keep the calling thread from unsafe calls, and gives what was set before.
    fn exchange_mode(&self, mut mode: c_uint) -> Result<c_uint, DriverError> {
        self.driver.thread_capture_mode(&mut mode)?;
        Ok(mode)
    }

    /// Puts a copy between two ranges that do not overlap on a stream of this context.
    ///
    /// # Safety
    /// The context is current on this thread and the stream alive. Until the copy is done, both ranges stay allocated
    /// by this driver, where the route says, the source is not written, and the destination is neither read nor written
    /// by others.
    pub(super) unsafe fn copy(
        &self,
        route: Route<'_>,
        (from, to): (Address, Address),
        bytes: Bytes,
        stream: CUstream,
    ) -> Result<(), DriverError> {
        let (from, to, bytes, driver) = (from.get(), to.get(), bytes.get() as usize, self.driver);
        // SAFETY: each function asks for a live stream of the current context and for two ranges of the driver's memory
        // that stay valid and unshared until the copy is done, which is this function's own contract. The contexts, or
        // devices, that the ranges belong to are `other` and this one, which are both held; HIP's kind is one that it
        // knows.
        unsafe {
            match (route, driver.vendor()) {
                (Route::Device, _) => driver.copy_on_device(to, from, bytes, stream),
                (Route::Anywhere, Vendor::Nvidia) => driver.copy_by_address(to, from, bytes, stream),
                (Route::Anywhere, Vendor::Amd) => driver.copy_of_kind(to, from, bytes, COPY_BY_ADDRESS, stream),
                (Route::From(other), Vendor::Nvidia) => {
                    driver.copy_between_contexts(to, self.handle.get(), from, other.handle.get(), bytes, stream)
                }
                (Route::From(other), Vendor::Amd) => {
                    driver.copy_between_devices(to, self.device, from, other.device, bytes, stream)
                }
            }
        }
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.handle.get().is_null() {
            return;
        }
        // SAFETY: `retain` retained it once and this releases it once, because only one value has the handle (it is not
        // `Clone`). No thread is in it through us: each guard borrows this value.
        if let Err(failure) = unsafe { self.driver.primary_context_release(self.device) }
            && !failure.is_over()
        {
            log::error!("the context of GPU {} could not be released: {failure}", self.device);
        }
    }
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route<'a> {
    /// Within the memory of the stream's own device.
    Device,
    /// Between any two of the driver's memories: it tells by the addresses whose they are.
    Anywhere,
    /// From memory of another device, by way of the host if need be. By the addresses alone the driver does not do that
    /// for mapped memory.
    From(&'a Context),
}

/// The thread is in a context. Guards are dropped in the reverse order of their making, as scopes do it.
#[derive(Debug)]
pub(super) struct Current<'a> {
    context: &'a Context,
    /// The device that the thread had, where the driver keeps no stack.
    before: Option<c_int>,
    /// Which captures kept the thread from unsafe calls, once that was changed.
    mode: Option<c_uint>,
    /// Not to be sent: another thread has another stack.
    thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let Context { driver, device, handle } = self.context;
        if let Some(mode) = self.mode
            && let Err(failure) = self.context.exchange_mode(mode)
            && !failure.is_over()
        {
            log::error!("a thread did not get its mode for captures on GPU {device} back: {failure}");
        }
        let left = match self.before {
            // What is popped is what `enter` pushed: guards are not `Send`, and are dropped in reverse order.
            None => out_pointer(|context| driver.context_pop(context)),
            Some(before) if before == *device => return,
            Some(before) => driver.set_device(before).map(|()| handle.get()),
        };
        match left {
            Ok(popped) if popped == handle.get() => {}
            Ok(popped) => log::error!("a thread left {popped:?}, not the context {handle:?} that it was in"),
            Err(failure) if failure.is_over() => {}
            Err(failure) => log::error!("a thread could not leave the context of GPU {device}: {failure}"),
        }
    }
}
