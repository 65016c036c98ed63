//! A device's regions: which there are, what they are made of, and which work of our stream touched them last.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::{
    device::cuda::{
        chunks::Chunks,
        driver::DriverError,
        owned::{DeviceMemory, PinnedMemory},
        stream::Ticket,
    },
    error::{Error, Result},
    memory::{AddressRange, Region},
    units::{Address, Bytes},
};

/// What a region is made of.
#[derive(Debug)]
pub(super) enum Memory {
    /// Addresses with memory mapped in chunks.
    Chunks(Chunks),
    /// An allocation of the driver. Empty once it was freed.
    Allocation(Mutex<Option<DeviceMemory>>),
    /// Memory of the host. Empty once it was freed.
    Pinned(Mutex<Option<PinnedMemory>>),
}

/// A region of this device.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) region: AddressRange,
    pub(super) memory: Memory,
    last_use: AtomicU64,
}

impl Held {
    pub(super) fn new(region: AddressRange, memory: Memory) -> Self {
        Self { region, memory, last_use: AtomicU64::new(0) }
    }

    /// Notes that work of our stream touches the region.
    pub(super) fn used_by(&self, ticket: Ticket) {
        self.last_use.fetch_max(ticket, Ordering::AcqRel);
    }

    /// The last work of our stream that touches it.
    pub(super) fn last_use(&self) -> Ticket {
        self.last_use.load(Ordering::Acquire)
    }

    /// The chunks that it is made of, if it is.
    pub(super) fn chunks(&self) -> Option<&Chunks> {
        match &self.memory {
            Memory::Chunks(chunks) => Some(chunks),
            Memory::Allocation(_) | Memory::Pinned(_) => None,
        }
    }

    /// Whether a copy by addresses alone reaches it from the device of this ordinal: the driver finds a way between its
    /// own allocations, but mapped memory has to be open.
    pub(super) fn is_open_to(&self, ordinal: c_int) -> bool {
        self.chunks().is_none_or(|chunks| chunks.is_open_to(ordinal))
    }

    /// Whether it is memory of the host.
    pub(super) fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// Releases the memory. All work on it is done, but for an allocation of the driver's, which the driver waits for.
    pub(super) fn release(&self) -> Result<(), DriverError> {
        match &self.memory {
            Memory::Chunks(chunks) => chunks.release(),
            Memory::Allocation(memory) => memory.lock().take().map_or(Ok(()), DeviceMemory::free),
            Memory::Pinned(memory) => memory.lock().take().map_or(Ok(()), PinnedMemory::free),
        }
    }
}

/// All regions of a device, those of the host's memory that it pinned among them.
#[derive(Debug, Default)]
pub(super) struct Regions {
    by_address: RwLock<BTreeMap<Address, Arc<Held>>>,
    /// How many chunks have no memory. While it is zero no search for one is needed.
    pub(super) missing: Arc<AtomicUsize>,
}

impl Regions {
    /// Whether every region has all of its memory.
    pub(super) fn are_whole(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }

    /// Enters a region, and makes its token.
    pub(super) fn insert(&self, held: Held) -> Region {
        let region = held.region;
        self.by_address.write().insert(region.address, Arc::new(held));
        // SAFETY: `held` owns the allocation at `region`, so there is no other one at these addresses and no other
        // token; `remove`, by which the device releases it, finds it under exactly this range.
        unsafe { Region::new(region) }
    }

    /// Takes a region out.
    pub(super) fn remove(&self, region: Region) -> Result<Arc<Held>> {
        let mut regions = self.by_address.write();
        if regions.get(&region.address).is_some_and(|held| held.region == *region)
            && let Some(held) = regions.remove(&region.address)
        {
            return Ok(held);
        }
        Err(Error::internal(format!("{} at {} is no region of this GPU", region.bytes, region.address)))
    }

    /// The region in which all of a range lies. O(log n).
    pub(super) fn find(&self, address: Address, bytes: Bytes) -> Option<Arc<Held>> {
        let regions = self.by_address.read();
        let (_, held) = regions.range(..=address).next_back()?;
        let end = (address - held.region.address).checked_add(bytes)?;
        (end <= held.region.bytes).then(|| Arc::clone(held))
    }

    /// [`Self::find`], or an error that names the range.
    pub(super) fn holding(&self, address: Address, bytes: Bytes) -> Result<Arc<Held>> {
        self.find(address, bytes)
            .ok_or_else(|| Error::internal(format!("{} bytes at {address} lie in no region of this GPU", bytes.get())))
    }

    /// Forgets all regions, which releases what is left of them.
    pub(super) fn clear(&self) {
        let regions = std::mem::take(&mut *self.by_address.write());
        drop(regions);
    }
}
