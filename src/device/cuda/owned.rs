//! Owners of single allocations of the driver, on the device or pinned on the host.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr};

use crate::{
    device::cuda::{
        context::Context,
        driver::{DriverError, out, out_pointer},
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
    pub(super) fn new(context: &Arc<Context>, bytes: Bytes) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let address = out(|address| context.driver().mem_alloc(address, bytes.get() as usize))?;
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

    /// Frees it. The driver waits for all work of the device first.
    pub(super) fn free(mut self) -> Result<(), DriverError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), DriverError> {
        let address = std::mem::take(&mut self.address);
        if address == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: the address is one that `mem_alloc` returned and that was not freed: it was taken out of this value,
        // its only owner, just now. The driver waits for all work of the device before it frees.
        let freed = unsafe { self.context.driver().mem_free(address) };
        let is_there = freed.as_ref().is_err_and(|failure| !failure.is_over());
        if let Some(charge) = self.charge.take_if(|_| is_there) {
            charge.keep_for_good();
        }
        freed
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

/// The host's memory that the driver keeps in place, so that devices read and write it by themselves: `cuMemHostAlloc`
/// or `hipHostMalloc`. The host's address is the devices' too.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    context: Arc<Context>,
    /// Zero once it was freed.
    start: Address,
    _charge: Option<Charge>,
}

impl PinnedMemory {
    pub(super) fn new(context: &Arc<Context>, bytes: Bytes) -> Result<Self, DriverError> {
        Self::charged(context, bytes, None)
    }

    /// As [`Self::new`], charged to a budget for as long as it lives.
    pub(super) fn charged(context: &Arc<Context>, bytes: Bytes, charge: Option<Charge>) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let flags = CU_MEMHOSTALLOC_PORTABLE;
        let start: *mut c_void =
            out_pointer(|start| context.driver().mem_host_alloc(start, bytes.get() as usize, flags))?;
        let start = Address::new(start.expose_provenance() as u64);
        Ok(Self { context: Arc::clone(context), start, _charge: charge })
    }

    pub(super) fn start(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.start.get() as usize)
    }

    pub(super) fn address(&self) -> Address {
        self.start
    }

    /// Frees it. No work of any device may use it any more.
    pub(super) fn free(mut self) -> Result<(), DriverError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), DriverError> {
        let start = self.start();
        self.start = Address::default();
        if start.is_null() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: the pointer is one that `mem_host_alloc` returned and that was not freed: it was taken out of this
        // value, its only owner, just now. Work on it is done: a region's owner waits for its last use, a staging
        // buffer's stream is drained.
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
