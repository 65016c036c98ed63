//! The host's memory that a GPU reads and writes by itself, as regions.

use std::{ptr, sync::Arc};

use crate::{
    device::{
        Mover,
        cuda::{
            device::CudaDevice,
            driver::DriverError,
            owned::PinnedMemory,
            regions::{Held, Memory},
        },
        host::HostMemory,
    },
    error::{Error, Result},
    memory::{AddressRange, Backing, Region, budget::Budget, compaction::Costs},
    units::{Address, Bytes},
};

/// What an arena may pin in advance: no other process can have it then, and pinning a GiB takes 0.3 to 0.6 s (8 GiB in
/// 2.7 s by `cuMemHostAlloc` on a host of eight H100, ai-dynamo/dynamo issue 13710; 0.6 s on one with a single H100).
const IN_ADVANCE: Bytes = Bytes::gib(1);

/// Pinned memory of the host as a device for an arena; every GPU of the process may use it. Clones are the same one.
///
/// This process reads and writes it by its addresses, so its own copies are the processor's; a GPU's copies to and from
/// it are those of the GPU's [`super::CudaBacking`], in whose book of regions it stands. Blocks move by copying: pages
/// that a driver has pinned cannot be exchanged, nor can they be returned one by one.
#[derive(Clone, Debug)]
pub struct PinnedBacking {
    device: Arc<CudaDevice>,
    page: Bytes,
    budget: Option<Arc<Budget>>,
}

impl PinnedBacking {
    /// Memory that is pinned in the name of `device`.
    pub fn new(device: Arc<CudaDevice>) -> Self {
        Self { device, page: Bytes::new(rustix::param::page_size() as u64), budget: None }
    }

    /// The same, bound by `budget`.
    pub fn bound_by(self, budget: &Arc<Budget>) -> Self {
        Self { budget: Some(Arc::clone(budget)), ..self }
    }
}

impl Backing for PinnedBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        if bytes.is_zero() || !bytes.is_multiple_of(self.page) {
            let unit = self.page;
            return Err(Error::internal(format!("a region of {} bytes; allowed are multiples of {unit}", bytes.get())));
        }
        let what = || format!("{bytes} of the host, pinned for GPU {}", self.device.ordinal());
        let refused = |failure: DriverError| Error::from(failure).context(&what());
        let charge = self.budget.as_ref().map(|budget| budget.take(bytes)).transpose();
        let charge = charge.map_err(|over| refused(DriverError::over(over)))?;
        let memory = PinnedMemory::charged(self.device.context(), bytes, charge).map_err(refused)?;
        let region = AddressRange { address: memory.address(), bytes };
        Ok(self.device.regions.insert(Held::new(region, Memory::Pinned(Some(memory).into()))))
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        self.device.release(region)
    }

    fn granularity(&self) -> Bytes {
        self.page
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        Some(IN_ADVANCE)
    }
}

impl Mover for PinnedBacking {
    fn costs(&self) -> Costs {
        Costs::COPY
    }

    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let from = ptr::with_exposed_provenance::<u8>(from.get() as usize);
        let to = ptr::with_exposed_provenance_mut::<u8>(to.get() as usize);
        // SAFETY: by the contract both ranges lie in regions of this device, which are readable and writable, and
        // nothing else reads or writes them; `ptr::copy` allows them to overlap.
        unsafe { ptr::copy(from, to, bytes.get() as usize) };
        Ok(())
    }

    unsafe fn discard(&self, _: Address, _: Bytes) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }
}

impl HostMemory for PinnedBacking {}
