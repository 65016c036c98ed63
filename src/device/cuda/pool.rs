//! The memory pool that the engine takes programs' scratch from: the driver's default pool of the device.
//!
//! ```text
//!  |      used       |        kept for the next          |
//!  |<----------------- reserved ------------------------>|      trimmed: what is kept is returned to the device
//! ```
//!
//! It belongs to the device, not to a context: every use of `cudaMallocAsync` in the process counts too. At each
//! synchronisation the driver releases what is reserved beyond the *release threshold* and not used.
//!
//! What was freed in a stream is released only once the host knows of that, by older drivers only once a call of the
//! host has synchronised with it (CUDA's reference of `cuMemPoolTrimTo`; measured for pytorch/executorch pull request
//! 22312; driver 580 takes a function of the host in the stream for that, too). XLA learns of ends by such functions,
//! and the streams are its own, so that may not have been done when the memory is needed: we do it for all of the
//! device's.

use std::{ffi::c_void, sync::Arc};

use cudarc::driver::sys::{CUmemPool_attribute, CUmemPoolHandle_st, CUresult};

use crate::{
    device::{
        ScratchPool,
        cuda::{device::CudaDevice, handle::Handle},
    },
    error::Result,
    units::Bytes,
};

/// The default pool of a device.
#[derive(Clone, Debug)]
pub struct EnginePool {
    device: Arc<CudaDevice>,
    handle: Handle<CUmemPoolHandle_st>,
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// What its users hold.
    pub used: Bytes,
    /// The most that they held.
    pub used_high: Bytes,
    /// What it holds of the device.
    pub reserved: Bytes,
    /// The most that it held.
    pub reserved_high: Bytes,
}

impl EnginePool {
    /// The pool of a device; `None` where the driver or the device has no pools.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn of(device: &Arc<CudaDevice>) -> Result<Option<Self>> {
        let context = device.context();
        match context.driver().pool_of(context.device()) {
            Ok(handle) => Ok(Some(Self { device: Arc::clone(device), handle: Handle::new(handle) })),
            Err(failure) if failure.is(CUresult::CUDA_ERROR_NOT_SUPPORTED) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// What it holds now and at most held since the process began.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn usage(&self) -> Result<PoolUsage> {
        use CUmemPool_attribute::*;
        Ok(PoolUsage {
            used: self.attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_high: self.attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved: self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_high: self.attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
        })
    }

    /// What the pool keeps of the device though it is unused.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn release_threshold(&self) -> Result<Bytes> {
        self.attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    }

    /// Lets the pool keep so much. An engine sets it when it starts: this is for afterwards.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn set_release_threshold(&self, keep: Bytes) -> Result<()> {
        let mut value = keep.get();
        let which = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value: *mut c_void = (&raw mut value).cast();
        let _current = self.device.context().enter()?;
        // SAFETY: a device's default pool lives as long as the driver; the pointer is to a local number of 64 bits,
        // which is what this attribute is, and the driver only reads it.
        Ok(unsafe { self.device.context().driver().pool_set(self.handle.get(), which, value) }?)
    }

    /// Returns to the device what is unused, down to `keep`. Memory that a stream is yet to free is used.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn trim_to(&self, keep: Bytes) -> Result<()> {
        let keep = usize::try_from(keep.get()).unwrap_or(usize::MAX);
        let _current = self.device.context().enter()?;
        // SAFETY: a device's default pool lives as long as the driver, and any number may be asked for.
        Ok(unsafe { self.device.context().driver().pool_trim(self.handle.get(), keep) }?)
    }

    /// Waits for all that was put on the device so far, in whatever stream.
    ///
    /// # Errors
    /// The driver's reason: another thread may be capturing a stream, which cannot be waited for.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.device.context().enter()?;
        Ok(self.device.context().driver().context_synchronize()?)
    }

    fn attribute(&self, which: CUmemPool_attribute) -> Result<Bytes> {
        let mut value = 0_u64;
        let out: *mut c_void = (&raw mut value).cast();
        let _current = self.device.context().enter()?;
        // SAFETY: a device's default pool lives as long as the driver; the pointer is to a local number of 64 bits,
        // which is what each attribute that is asked for in this file is, and the driver writes it.
        unsafe { self.device.context().driver().pool_get(self.handle.get(), which, out) }?;
        Ok(Bytes::new(value))
    }
}

/// A pool that keeps up to a threshold, until this is dropped: then it has its own threshold again, and keeps nothing
/// for programs that do not come.
#[derive(Debug)]
pub struct KeptPool {
    pool: EnginePool,
    before: Bytes,
}

impl KeptPool {
    /// Lets `pool` keep so much.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn new(pool: EnginePool, keep: Bytes) -> Result<Self> {
        let before = pool.release_threshold()?;
        pool.set_release_threshold(keep)?;
        Ok(Self { pool, before })
    }
}

impl Drop for KeptPool {
    fn drop(&mut self) {
        let synchronized = self.pool.synchronize();
        let done = self.pool.set_release_threshold(self.before).and_then(|()| self.pool.trim_to(Bytes::ZERO));
        if let Err(error) = synchronized.and(done) {
            // At the end of a process the driver has ended before.
            log::debug!("the pool of GPU {} stays as it is: {error}", self.pool.device.ordinal());
        }
    }
}

/// What the engine keeps of a device for good, where it has no pool: nothing is released.
#[derive(Clone, Debug)]
pub struct FixedShare {
    device: Arc<CudaDevice>,
    bytes: Bytes,
}

impl FixedShare {
    /// The engine keeps `bytes` of `device`, or takes them when the first program needs scratch (its `bfc`, PJRT 0.112
    /// and 0.116).
    pub fn new(device: &Arc<CudaDevice>, bytes: Bytes) -> Self {
        Self { device: Arc::clone(device), bytes }
    }
}

impl ScratchPool for FixedShare {
    fn reserved(&self) -> Result<Bytes> {
        Ok(self.bytes)
    }

    fn trim(&self, _keep: Bytes) -> Result<Bytes> {
        Ok(self.bytes)
    }

    fn unused(&self) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn free_on_device(&self) -> Result<Bytes> {
        Ok(self.device.memory_info()?.free)
    }
}

impl ScratchPool for KeptPool {
    fn reserved(&self) -> Result<Bytes> {
        Ok(self.pool.usage()?.reserved)
    }

    fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.pool.trim_to(keep)?;
        self.reserved()
    }

    fn unused(&self) -> Result<Bytes> {
        let PoolUsage { used, reserved, .. } = self.pool.usage()?;
        Ok(reserved.saturating_sub(used))
    }

    fn synchronize(&self) -> Result<()> {
        self.pool.synchronize()
    }

    fn free_on_device(&self) -> Result<Bytes> {
        Ok(self.pool.device.memory_info()?.free)
    }
}
