//! Physical memory of a device, and which devices reach it.
//!
//! The memory has the properties of the engine's own (XLA's allocator of device addresses): pinned on the device, to be
//! exported as a file descriptor and to be read by other devices (RDMA) where the driver offers that, open to the
//! device and to its peers. So kernels, copies and collectives find the same kind of memory. A property that the driver
//! refuses is left out from then on.

use std::{
    ffi::c_int,
    iter, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cudarc::driver::sys::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};
use parking_lot::RwLock;

use crate::{
    device::cuda::{
        context::Context,
        driver::{DriverError, out},
    },
    memory::budget::{Budget, Charge},
    units::{Address, Bytes},
};

/// How physical memory of a device is made, and which devices reach it.
#[derive(Debug)]
pub(super) struct PhysicalMemory {
    context: Arc<Context>,
    /// This device's ordinal.
    ordinal: c_int,
    /// What is still asked for.
    exportable: AtomicBool,
    remote: AtomicBool,
    /// The devices that memory is opened to, beside its own.
    peers: RwLock<Vec<c_int>>,
    granularity: Bytes,
    /// How much there may be.
    pub(super) budget: Option<Arc<Budget>>,
}

impl PhysicalMemory {
    /// `None` where the device cannot map memory to addresses of our choice.
    pub(super) fn new(context: &Arc<Context>, ordinal: c_int, peers: &[c_int]) -> Result<Option<Self>, DriverError> {
        use CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED as REMOTE,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as EXPORTABLE,
            CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as MAPPING,
        };
        let driver = context.driver();
        // An attribute that the driver does not know is one that the device has not.
        let has = |which| driver.attribute(context.device(), which).is_ok_and(|value| value != 0);
        if !has(MAPPING) {
            return Ok(None);
        }
        let mut physical = Self {
            context: Arc::clone(context),
            ordinal,
            exportable: AtomicBool::new(has(EXPORTABLE)),
            remote: AtomicBool::new(has(REMOTE)),
            peers: RwLock::new(peers.to_vec()),
            granularity: Bytes::ZERO,
            budget: None,
        };
        let _current = context.enter()?;
        let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        let granularity =
            physical.insisting(|properties| out(|bytes| driver.mem_granularity(bytes, properties, recommended)))?;
        physical.granularity = Bytes::new(granularity as u64);
        Ok(Some(physical))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The unit of memory that the driver recommends: 2 MiB on all GPUs so far.
    pub(super) fn granularity(&self) -> Bytes {
        self.granularity
    }

    fn properties(&self) -> CUmemAllocationProp {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: if self.exportable.load(Ordering::Relaxed) { kind } else { none },
            location: place(self.ordinal),
            win32HandleMetaData: ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: self.remote.load(Ordering::Relaxed).into(),
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    /// Calls the driver with our properties; with fewer where it refuses them, whatever reason it gives: drivers have
    /// answered with 1, 800, 801 and 999. A lack of memory, and a context that is over, are not about properties.
    fn insisting<T>(&self, call: impl Fn(&CUmemAllocationProp) -> Result<T, DriverError>) -> Result<T, DriverError> {
        loop {
            let failure = match call(&self.properties()) {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if failure.is_out_of_memory() || failure.is_over() || !self.ask_for_less(&failure) {
                return Err(failure);
            }
        }
    }

    /// Drops one of the properties from now on, because of `failure`; whether there was one left.
    fn ask_for_less(&self, failure: &DriverError) -> bool {
        let dropped = if self.remote.swap(false, Ordering::Relaxed) {
            "RDMA"
        } else if self.exportable.swap(false, Ordering::Relaxed) {
            "export to other processes"
        } else {
            return false;
        };
        log::warn!("memory of GPU {} is made without {dropped}: {failure}", self.ordinal);
        true
    }

    /// Makes one unit of memory usable, by `make`, to see with which properties that goes: drivers make and map memory
    /// that they then refuse to open (pytorch/pytorch issue 192330: with RDMA, `cuMemSetAccess` gives 999).
    ///
    /// # Errors
    /// The driver's, if it goes with none of them. A lack of memory says nothing, so it is none.
    pub(super) fn prove<T>(&self, make: impl Fn() -> Result<T, DriverError>) -> Result<(), DriverError> {
        loop {
            match make() {
                Err(failure) if failure.is_out_of_memory() => return Ok(()),
                Err(failure) if self.ask_for_less(&failure) => {}
                done => return done.map(drop),
            }
        }
    }

    /// The right to `bytes` of memory, where a budget bounds it.
    pub(super) fn charge(&self, bytes: Bytes) -> Result<Option<Charge>, DriverError> {
        self.budget.as_ref().map(|budget| budget.take(bytes)).transpose().map_err(DriverError::over)
    }

    /// Memory without an address, to which `charge` is the right.
    pub(super) fn create(&self, bytes: Bytes, charge: Option<Charge>) -> Result<PhysicalChunk, DriverError> {
        let handle = self.insisting(|properties| {
            out(|handle| self.context.driver().mem_create(handle, bytes.get() as usize, properties, 0))
        })?;
        Ok(PhysicalChunk { context: Arc::clone(&self.context), handle, charge, is_stuck: AtomicBool::new(false) })
    }

    /// Whether all memory is open to the device of this ordinal.
    pub(super) fn is_open_to(&self, ordinal: c_int) -> bool {
        ordinal == self.ordinal || self.peers.read().contains(&ordinal)
    }

    /// Opens mapped addresses to the device and its peers. One that the driver refuses is asked for no more.
    pub(super) fn open(&self, address: Address, bytes: Bytes) -> Result<(), DriverError> {
        let access: Vec<_> =
            iter::once(&self.ordinal).chain(self.peers.read().iter()).map(|&ordinal| access(ordinal)).collect();
        let set = |access: &[CUmemAccessDesc]| {
            // SAFETY: the pointer and the count are of one slice, which the driver only reads. It refuses a range that
            // is not mapped, and access to a device that it does not know.
            unsafe {
                let driver = self.context.driver();
                driver.mem_set_access(address.get(), bytes.get() as usize, access.as_ptr(), access.len())
            }
        };
        match set(&access) {
            Err(failure) if is_refusal(&failure) && access.len() > 1 => {
                set(&access[..1])?;
                for peer in &access[1..] {
                    if let Err(failure) = set(std::slice::from_ref(peer)) {
                        self.peers.write().retain(|&ordinal| ordinal != peer.location.id);
                        log::warn!("memory of GPU {} is not open to GPU {}: {failure}", self.ordinal, peer.location.id);
                    }
                }
                Ok(())
            }
            done => done,
        }
    }
}

/// Whether the driver did not want what it was asked for, and might take less.
fn is_refusal(failure: &DriverError) -> bool {
    [
        CUresult::CUDA_ERROR_INVALID_VALUE,
        CUresult::CUDA_ERROR_INVALID_DEVICE,
        CUresult::CUDA_ERROR_NOT_PERMITTED,
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
    ]
    .into_iter()
    .any(|code| failure.is(code))
}

fn place(ordinal: c_int) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

fn access(ordinal: c_int) -> CUmemAccessDesc {
    CUmemAccessDesc { location: place(ordinal), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

/// Memory without an address. It is freed when this is dropped and no mapping of it is left.
#[derive(Debug)]
pub(super) struct PhysicalChunk {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
    charge: Option<Charge>,
    /// Whether it stays mapped somewhere, because the driver did not unmap it.
    is_stuck: AtomicBool,
}

impl PhysicalChunk {
    pub(super) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    /// A mapping of it could not be ended: what it takes of the budget is not free again.
    pub(super) fn stays(&self) {
        self.is_stuck.store(true, Ordering::Relaxed);
    }
}

impl Drop for PhysicalChunk {
    fn drop(&mut self) {
        // SAFETY: `create` made the handle, and only this value has it, so it is released once. Mappings of the memory
        // keep it until they end, which the driver sees to.
        let released = unsafe { self.context.driver().mem_release(self.handle) };
        if let Err(failure) = &released
            && !failure.is_over()
        {
            log::error!("memory of GPU {} could not be released: {failure}", self.context.device());
        }
        let is_there = *self.is_stuck.get_mut() || released.is_err_and(|failure| !failure.is_over());
        if let Some(charge) = self.charge.take_if(|_| is_there) {
            charge.keep_for_good();
        }
    }
}
