//! A GPU as this process uses it: what all arenas of the device share.

use std::{
    ffi::c_int,
    fmt,
    sync::{Arc, Weak},
};

use cudarc::driver::sys::CUdevice_attribute;
use parking_lot::Mutex;

use crate::{
    device::cuda::{
        context::Context,
        driver::{Driver, DriverError, out},
        owned::DeviceMemory,
        regions::{Held, Regions},
        staging::Staging,
        stream::Stream,
    },
    error::{Code, Error, Result},
    memory::Region,
    units::{Address, Bytes},
};

/// The devices that are open, so that one finds the other whose memory it is to copy.
static OPEN: Mutex<Vec<Weak<CudaDevice>>> = Mutex::new(Vec::new());

/// Where a block is kept while it moves by less than its own size.
const BOUNCE: Bytes = Bytes::mib(16);

/// A GPU of this process.
pub struct CudaDevice {
    ordinal: c_int,
    peers: Vec<c_int>,
    /// How fast its memory is, in bytes a second, both ways together; `None` if the driver does not tell.
    bandwidth: Option<u64>,
    // In this order these go: what is later is needed by what is before it.
    pub(super) regions: Regions,
    pub(super) staging: Staging,
    pub(super) bounce: Mutex<Option<Bounce>>,
    pub(super) stream: Stream,
    context: Arc<Context>,
}

/// Memory of the device that a move may pass through.
#[derive(Debug)]
pub(super) struct Bounce {
    memory: DeviceMemory,
    pub(super) bytes: Bytes,
}

impl Bounce {
    pub(super) fn address(&self) -> Address {
        self.memory.address()
    }
}

/// A device's memory, all processes taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What no process holds.
    pub free: Bytes,
    /// What there is.
    pub total: Bytes,
}

impl CudaDevice {
    /// Opens GPU `ordinal`, in the driver's order. Its memory will be open to those of the GPUs `peers` that can reach
    /// it.
    ///
    /// It enters the primary context. An engine that is to use it under settings of its own is started first.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where there is no such GPU; else the driver's reason.
    pub fn open(driver: &'static Driver, ordinal: i32, peers: &[i32]) -> Result<Arc<Self>> {
        driver.start()?;
        let count = driver.devices()?;
        if let Some(&other) = std::iter::once(&ordinal).chain(peers).find(|&&other| !(0..count).contains(&other)) {
            return Err(Error::invalid_argument(match count {
                0 => format!("GPU {other}: the driver shows none"),
                _ => format!("GPU {other}: allowed are 0 to {}, which the driver shows", count - 1),
            }));
        }
        let said = |failure: DriverError| Error::from(failure).context(&format!("GPU {ordinal}"));
        let context = Context::retain(driver, ordinal).map_err(said)?;
        let reaches = |peer: c_int| {
            let can = driver
                .device_at(peer)
                .and_then(|peer| out(|can: &mut c_int| driver.device_can_access_peer(can, peer, context.device())));
            can.is_ok_and(|can| can != 0)
        };
        let peers = peers.iter().copied().filter(|&peer| peer != ordinal && reaches(peer)).collect();
        let stream = Stream::new(&context).map_err(said)?;
        let device = Arc::new(Self {
            ordinal,
            peers,
            bandwidth: bandwidth(&context),
            regions: Regions::default(),
            staging: Staging::new(&context),
            bounce: Mutex::new(None),
            stream,
            context,
        });
        let mut open = OPEN.lock();
        open.retain(|device| device.strong_count() != 0);
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// Its place in the driver's order.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// How much memory the device has, and how much of it is free: held by no arena, engine or other process.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _current = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        self.context.driver().mem_info(&mut free, &mut total)?;
        Ok(MemoryInfo { free: Bytes::new(free as u64), total: Bytes::new(total as u64) })
    }

    /// The stream that copies run on, as a number: other streams can wait for it, and it for them.
    pub fn stream_handle(&self) -> isize {
        self.stream.handle().expose_provenance() as isize
    }

    /// Waits until all that was put on our stream is done.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.context.enter()?;
        Ok(self.stream.drain()?)
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The GPUs beside this one that its memory is open to.
    pub(super) fn peers(&self) -> &[c_int] {
        &self.peers
    }

    /// How fast its memory is, in bytes a second, both ways together, if that is known.
    pub(super) fn bandwidth(&self) -> Option<u64> {
        self.bandwidth
    }

    /// The region that a range lies in, and the device that it is on: this one or another one that is open.
    pub(super) fn whose(self: &Arc<Self>, address: Address, bytes: Bytes) -> Option<(Arc<Self>, Arc<Held>)> {
        if let Some(held) = self.regions.find(address, bytes) {
            return Some((Arc::clone(self), held));
        }
        // Not asked under the lock: to drop the last reference to a device takes long, and the lock is not needed for
        // it.
        let others: Vec<Arc<Self>> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
        others.into_iter().find_map(|device| device.regions.find(address, bytes).map(|held| (device, held)))
    }

    /// Releases a region when our stream has no work on it any more.
    pub(super) fn release(&self, region: Region) -> Result<()> {
        let held = self.regions.remove(region)?;
        let _current = self.context.enter()?;
        // Though the wait has failed: a context in which that happens runs nothing any more.
        let waited = self.stream.finish(held.last_use());
        let released = held.release();
        Ok(waited.and(released)?)
    }

    /// A bounce buffer of [`BOUNCE`], made once; a smaller one where memory is short, and none where there is none.
    pub(super) fn make_bounce(&self) -> Option<Bounce> {
        let sizes = std::iter::successors(Some(BOUNCE.get()), |bytes| Some(bytes / 2)).take(4).map(Bytes::new);
        sizes.into_iter().find_map(|bytes| {
            let memory = DeviceMemory::new(&self.context, bytes).ok()?;
            Some(Bounce { memory, bytes })
        })
    }

    /// A failure to get `bytes`, with the numbers.
    pub(super) fn refusal(&self, failure: DriverError, bytes: Bytes) -> Error {
        let mut error = Error::from(failure).context(&format!("{bytes} of GPU {}", self.ordinal));
        if error.code == Code::ResourceExhausted
            && let Ok(MemoryInfo { free, total }) = self.memory_info()
        {
            error.message = format!("{}; {free} of {total} are free", error.message);
        }
        error
    }
}

/// What the clock and the width of the bus of the memory allow.
fn bandwidth(context: &Context) -> Option<u64> {
    let attribute = |which| {
        let value = context.driver().attribute(context.device(), which).ok()?;
        u64::try_from(value).ok().filter(|&value| value != 0)
    };
    let kilohertz = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
    let bits = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
    // Two transfers a cycle.
    kilohertz.checked_mul(1000)?.checked_mul(2)?.checked_mul(bits / 8)
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("ordinal", &self.ordinal)
            .field("peers", &self.peers)
            .field("stream", &self.stream.handle())
            .finish_non_exhaustive()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Copies that still run end before what they use goes.
        match self.context.enter().and_then(|_current| self.stream.drain()) {
            Err(failure) if !failure.is_over() => log::error!("GPU {}: {failure}", self.ordinal),
            _ => {}
        }
        self.regions.clear();
    }
}
