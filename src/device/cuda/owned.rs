//! Owners of memory that the driver gave in one piece, on the device or pinned on the host.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr};

use crate::{
    device::cuda::{
        context::Context,
        driver::{Failure, out, out_pointer},
    },
    memory::budget::Charge,
    units::{Address, Bytes},
};

/// The driver's own allocation on a device: `cuMemAlloc` or `hipMalloc`, aligned to 256 bytes.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    address: CUdeviceptr,
    charge: Option<Charge>,
}

impl DeviceMemory {
    pub(super) fn new(context: &Arc<Context>, bytes: Bytes) -> Result<Self, Failure> {
        let _current = context.enter()?;
        // SAFETY: the context is current, and one value is written.
        let address = out(|address| unsafe { context.driver().mem_alloc(address, bytes.get() as usize) })?;
        Ok(Self { context: Arc::clone(context), address, charge: None })
    }

    /// The same, charged to a budget for as long as it lives.
    pub(super) fn charged(self, charge: Option<Charge>) -> Self {
        // What has a drop of its own cannot be taken apart.
        let mut this = self;
        this.charge = charge;
        this
    }

    pub(super) fn address(&self) -> Address {
        Address::new(self.address)
    }

    /// Gives it back. The driver waits for all work of the device first.
    pub(super) fn free(mut self) -> Result<(), Failure> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Failure> {
        let address = std::mem::take(&mut self.address);
        if address == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: allocated once, freed once; no work of ours uses it, for the driver waits for that.
        unsafe { self.context.driver().mem_free(address) }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Err(failure) = self.release()
            && !failure.is_over()
        {
            log::error!("memory of GPU {} could not be freed: {failure}", self.context.device());
        }
    }
}

/// The host's memory that the driver keeps in place, so that devices read and write it by themselves: `cuMemHostAlloc` or
/// `hipHostMalloc`. The host's address is the devices' too.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    context: Arc<Context>,
    start: *mut c_void,
    _charge: Option<Charge>,
}

// SAFETY: it owns the memory and reads nothing of it; who does says why.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn new(context: &Arc<Context>, bytes: Bytes) -> Result<Self, Failure> {
        Self::charged(context, bytes, None)
    }

    /// As [`Self::new`], charged to a budget for as long as it lives.
    pub(super) fn charged(context: &Arc<Context>, bytes: Bytes, charge: Option<Charge>) -> Result<Self, Failure> {
        let _current = context.enter()?;
        let flags = CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current, and one value is written.
        let start =
            out_pointer(|start| unsafe { context.driver().mem_host_alloc(start, bytes.get() as usize, flags) })?;
        Ok(Self { context: Arc::clone(context), start, _charge: charge })
    }

    pub(super) fn start(&self) -> *mut c_void {
        self.start
    }

    /// Gives it back. No work of any device may use it any more.
    pub(super) fn free(mut self) -> Result<(), Failure> {
        self.release()
    }

    fn release(&mut self) -> Result<(), Failure> {
        let start = std::mem::replace(&mut self.start, std::ptr::null_mut());
        if start.is_null() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: allocated once, freed once; its owner waited for the work that uses it.
        unsafe { self.context.driver().mem_free_host(start) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Err(failure) = self.release()
            && !failure.is_over()
        {
            log::error!("pinned memory of the host could not be freed: {failure}");
        }
    }
}
