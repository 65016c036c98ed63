//! A GPU's memory as regions.

use std::{fmt, sync::Arc};

use crate::{
    device::cuda::{
        chunks::Chunks,
        device::CudaDevice,
        driver::DriverError,
        owned::DeviceMemory,
        physical::PhysicalMemory,
        regions::{Held, Memory},
    },
    error::{Code, Error, Result},
    memory::{AddressRange, Backing, Region, budget::Budget},
    units::Bytes,
};

/// The most memory that comes and goes at once. The driver takes about 65 us for a chunk (an H100 makes and maps 1,900
/// of them, 59 GiB, in 123 ms) and keeps a handle of each: a GPU of 140 GiB has 4,500, and with chunks of 2 MiB it
/// would be 72,000.
pub const CHUNK: Bytes = Bytes::mib(32);

/// A limit is at least so many chunks, as far as the driver's unit allows.
///
/// What is discarded of a hole ends at chunks, so about one chunk of each hole stays, and a hole of two always gives
/// one: with 256 that is less than half a percent and less than one percent of the limit. To map so many takes about 26
/// ms, a small part of what an engine takes to start. Four times as many would discard a third of a percent more of the
/// limit for each hole, for four times that. From 8 GiB on chunks have their largest size, and there are more of them.
const CHUNKS_OF_A_LIMIT: u64 = 256;

/// The size of the chunks for a limit, a power of two, on a device that maps memory in units of `unit`.
pub(super) fn chunk_for(limit: Bytes, unit: Bytes) -> Bytes {
    let share = (limit.get() / CHUNKS_OF_A_LIMIT).max(1);
    Bytes::new(1 << share.ilog2()).min(CHUNK).max(unit)
}

/// What `cuMemAlloc` promises, and `hipMalloc` does (it gives whole pages): its allocations start at multiples of this.
const ALLOCATION_UNIT: Bytes = Bytes::new(256);

/// A GPU as a device for an arena. Clones are the same one: one gives regions to an arena while another moves blocks in
/// them.
#[derive(Clone)]
pub struct CudaBacking {
    pub(super) device: Arc<CudaDevice>,
    /// How regions are mapped, in chunks of which size; without it each one is an allocation of the driver's.
    chunks: Option<(Arc<PhysicalMemory>, Bytes)>,
    budget: Option<Arc<Budget>>,
}

impl CudaBacking {
    /// Regions whose memory can be discarded chunk by chunk while their addresses stay: the chunks are at most
    /// [`CHUNK`], and smaller where all regions together have no more than a `limit` of some GiB. A device that cannot
    /// do that has regions as [`Self::with_driver_allocations`].
    ///
    /// # Errors
    /// The driver's reason.
    pub fn new(device: Arc<CudaDevice>, limit: Bytes) -> Result<Self> {
        Self::chunked(device, |unit| chunk_for(limit, unit))
    }

    /// [`Self::new`] with chunks of one size.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where the driver does not map memory in such units; else its reason.
    pub fn with_chunks(device: Arc<CudaDevice>, chunk: Bytes) -> Result<Self> {
        Self::chunked(device, |_| chunk)
    }

    /// `size` says how large a chunk is where the driver's unit is the one that it is given.
    fn chunked(device: Arc<CudaDevice>, size: impl FnOnce(Bytes) -> Bytes) -> Result<Self> {
        let Some(physical) = PhysicalMemory::new(device.context(), device.ordinal(), device.peers())? else {
            log::info!("GPU {} maps no memory to chosen addresses: regions are allocations", device.ordinal());
            return Ok(Self::with_driver_allocations(device));
        };
        let unit = physical.granularity();
        let chunk = size(unit);
        if !(unit.get().is_power_of_two() && unit >= ALLOCATION_UNIT && chunk.is_multiple_of(unit) && !chunk.is_zero())
        {
            return Err(Error::invalid_argument(format!(
                "chunks of {chunk} on GPU {}: allowed are multiples of {unit}, the unit in which it maps memory",
                device.ordinal()
            )));
        }
        let physical = Arc::new(physical);
        if let Err(failure) = physical.prove(|| Chunks::reserve(&physical, unit, unit, &Arc::default())) {
            log::warn!("GPU {} maps no memory that it can use: {failure}; regions are allocations", device.ordinal());
            return Ok(Self::with_driver_allocations(device));
        }
        Ok(Self { device, chunks: Some((physical, chunk)), budget: None })
    }

    /// Regions that are allocations of the driver's, one each: `cuMemAlloc` and `cuMemFree`, `hipMalloc` and `hipFree`.
    pub fn with_driver_allocations(device: Arc<CudaDevice>) -> Self {
        Self { device, chunks: None, budget: None }
    }

    /// The same, bound by `budget`. To be called before the first clone, and before the first region.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where there is one already.
    pub fn bound_by(mut self, budget: &Arc<Budget>) -> Result<Self> {
        if let Some((physical, _)) = &mut self.chunks {
            let physical = Arc::get_mut(physical)
                .ok_or_else(|| Error::failed_precondition("a device's memory is bound by a budget too late"))?;
            physical.budget = Some(Arc::clone(budget));
        }
        self.budget = Some(Arc::clone(budget));
        Ok(self)
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }
}

impl fmt::Debug for CudaBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBacking")
            .field("device", &self.device)
            .field("chunks", &self.chunks.is_some())
            .finish_non_exhaustive()
    }
}

impl Backing for CudaBacking {
    /// All memory is there when it returns, as an arena that preallocates promises.
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let unit = self.granularity();
        if bytes.is_zero() || !bytes.is_multiple_of(unit) {
            return Err(Error::internal(format!("a region of {} bytes; allowed are multiples of {unit}", bytes.get())));
        }
        let refused = |failure| self.device.refusal(failure, bytes);
        let held = match &self.chunks {
            Some((physical, chunk)) => {
                let missing = &self.device.regions.missing;
                let chunks = Chunks::reserve(physical, bytes, *chunk, missing).map_err(refused)?;
                Held::new(chunks.region(), Memory::Chunks(chunks))
            }
            None => {
                let charge = self.budget.as_ref().map(|budget| budget.take(bytes)).transpose();
                let charge = charge.map_err(|over| refused(DriverError::over(over)))?;
                let memory = DeviceMemory::new(self.device.context(), bytes).map_err(refused)?.charged(charge);
                let region = AddressRange { address: memory.address(), bytes };
                Held::new(region, Memory::Allocation(Some(memory).into()))
            }
        };
        Ok(self.device.regions.insert(held))
    }

    /// Where the device has less free than that, the region has as much memory as leaves a tenth of what is free to
    /// others; the rest comes when it is used, if the device has it then. XLA's allocator takes a smaller region then,
    /// in steps of a tenth, for good (its `bfc_allocator.cc`, `kBackpedalFactor`).
    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        let Some((physical, chunk)) = &self.chunks else { return self.reserve(bytes) };
        let free = self.device.memory_info()?.free;
        if free >= bytes {
            match self.reserve(bytes) {
                // Another process, or the engine, took it meanwhile.
                Err(error) if error.code == Code::ResourceExhausted => {}
                done => return done,
            }
        }
        let missing = &self.device.regions.missing;
        let part = Bytes::new(free.get() / 10 * 9);
        let chunks = Chunks::reserve_part(physical, bytes, *chunk, missing, part)
            .map_err(|failure| self.device.refusal(failure, bytes))?;
        // Otherwise programs have what is missing, and it comes back when arrays want it.
        if free < bytes {
            log::warn!(
                "GPU {} has {free} free, less than the {bytes} of its arena, which has {} of them for now and takes more when it is used; \
                 PJRT_ARENA_LIMIT sets what it may have",
                self.device.ordinal(),
                chunks.filled()
            );
        }
        Ok(self.device.regions.insert(Held::new(chunks.region(), Memory::Chunks(chunks))))
    }

    /// Waits for work of our own stream on the region, and for what was put on the stream meanwhile.
    fn release(&self, region: Region) -> Result<()> {
        self.device.release(region)
    }

    fn granularity(&self) -> Bytes {
        self.chunks.as_ref().map_or(ALLOCATION_UNIT, |(physical, _)| physical.granularity())
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        None
    }
}
