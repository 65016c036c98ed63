//! One fake GPU as XLA uses it: its streams, its pool, its kernels.
//!
//! ```text
//!  compute     programs, in order; allocations and frees of the pool are ordered by it
//!  in, out     copies from and to the host
//!  across      copies between arrays
//!  external x4 what outsiders' arrays become ready on
//!  callback    waits for marks of the others and then tells the host, so that none of them is held up
//! ```

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use cudarc::driver::sys::{CUevent, CUmemPool_attribute, CUmemoryPool, CUstream};
use parking_lot::{Condvar, Mutex};

use crate::{
    bfc::{Bfc, Region},
    driver::{Context, Functions, Range, driver},
    error::{Error, Result},
    milestone::{Mark, Milestone},
    options::Options,
    sys,
};

/// Streams on which arrays of outsiders become ready.
const EXTERNAL: usize = 4;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;

/// Executions that may be under way on one device, as in XLA; the next one waits for one of them.
const IN_FLIGHT: usize = 32;

/// Something to do after a mark, on the thread that tells the host.
type Errand = Box<dyn FnOnce() + Send>;

/// For the thread that tells the host.
pub enum Message {
    /// Something to do.
    Errand(Errand),
    /// A GPU to look after when nothing happens.
    Watch(Weak<Gpu>),
}

/// How long an allocation of `bfc` waits for what another one frees, as in XLA (`bfc_allocator.cc`,
/// `kMaxMillisToWait`).
const RETRY: Duration = Duration::from_secs(10);

/// How long nothing may happen before the GPUs are looked after.
const AT_MOST: Duration = Duration::from_millis(200);

/// Where memory for arrays and scratch comes from.
enum Store {
    /// The driver's pool.
    Pool(CUmemoryPool),
    /// A region of our own.
    Region(Region),
}

/// What a GPU's memory for arrays and scratch comes to, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Given out.
    pub in_use: u64,
    /// At most so far.
    pub peak_in_use: u64,
    /// Taken from the device.
    pub reserved: u64,
    /// At most so far.
    pub peak_reserved: u64,
}

/// See the module.
pub struct Gpu {
    driver: &'static Functions,
    context: Context,
    store: Store,
    /// Its place in the driver's order.
    pub ordinal: i32,
    /// Its product name.
    pub name: String,
    /// All of its memory.
    pub memory: u64,
    /// Programs.
    pub compute: CUstream,
    /// Copies from the host.
    pub inward: CUstream,
    /// Copies to the host.
    pub outward: CUstream,
    /// Copies between arrays.
    pub across: CUstream,
    callback: CUstream,
    external: [CUstream; EXTERNAL],
    next_external: AtomicUsize,
    errands: Sender<Message>,
    /// How often the pool gave memory.
    pub allocations: AtomicU64,
    /// The largest allocation so far.
    pub largest: AtomicU64,
    in_flight: Mutex<usize>,
    landed: Condvar,
    /// What has yet to be told.
    outstanding: Mutex<Vec<Weak<Milestone>>>,
}

/// An execution under way on a device, until it is dropped.
pub struct Seat(Arc<Gpu>);

impl Drop for Seat {
    fn drop(&mut self) {
        *self.0.in_flight.lock() -= 1;
        self.0.landed.notify_one();
    }
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// How many GPUs the driver shows.
    ///
    /// # Errors
    /// The driver's.
    pub fn count() -> Result<i32> {
        let driver = driver()?;
        // SAFETY: the driver is initialised.
        driver.out("cuDeviceGetCount", 0, |count| unsafe { (driver.cuDeviceGetCount)(count) })
    }

    /// The GPU with this place in the driver's order, its memory as `options` say.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(ordinal: c_int, options: &Options, errands: Sender<Message>) -> Result<Arc<Self>> {
        let driver = driver()?;
        // SAFETY: the driver is initialised and says itself what it does not know.
        let device = driver.out("cuDeviceGet", 0, |device| unsafe { (driver.cuDeviceGet)(device, ordinal) })?;
        let mut name = [0_u8; 128];
        // SAFETY: the device is the driver's; one byte less than there are is offered, so that the last stays NUL.
        driver.check("cuDeviceGetName", unsafe {
            (driver.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int - 1, device)
        })?;
        let name = name.split(|&byte| byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        // SAFETY: the device is the driver's, as the driver just said.
        let memory =
            driver.out("cuDeviceTotalMem", 0, |bytes| unsafe { (driver.cuDeviceTotalMem_v2)(bytes, device) })?;
        let memory = memory as u64;
        let context = Context::retain(driver, device)?;
        let store = match options.region(memory) {
            Some(bytes) => {
                let _entered = context.enter()?;
                // SAFETY: the context is current.
                let start = driver.out("cuMemAlloc", 0, |at| unsafe { (driver.cuMemAlloc_v2)(at, bytes as usize) })?;
                Store::Region(Region::new(start, bytes))
            }
            // XLA ends the process where there is none.
            // SAFETY: as above.
            None => Store::Pool(driver.out("cuDeviceGetDefaultMemPool", ptr::null_mut(), |pool| unsafe {
                (driver.cuDeviceGetDefaultMemPool)(pool, device)
            })?),
        };
        let mut gpu = Self {
            driver,
            context,
            store,
            ordinal,
            name,
            memory,
            compute: ptr::null_mut(),
            inward: ptr::null_mut(),
            outward: ptr::null_mut(),
            across: ptr::null_mut(),
            callback: ptr::null_mut(),
            external: [ptr::null_mut(); EXTERNAL],
            next_external: AtomicUsize::new(0),
            errands,
            allocations: AtomicU64::new(0),
            largest: AtomicU64::new(0),
            in_flight: Mutex::new(0),
            landed: Condvar::new(),
            outstanding: Mutex::default(),
        };
        for stream in 0..5 + EXTERNAL {
            let made = {
                let _entered = context.enter()?;
                // SAFETY: the context is current.
                driver.out("cuStreamCreate", ptr::null_mut(), |made| unsafe {
                    (driver.cuStreamCreate)(made, NON_BLOCKING)
                })?
            };
            *gpu.streams().nth(stream).ok_or_else(|| Error::internal("more streams than places"))? = made;
        }
        if let Store::Pool(pool) = gpu.store {
            let mut threshold = options.threshold(gpu.memory);
            let _entered = context.enter()?;
            // SAFETY: the attribute is a u64.
            driver.check("cuMemPoolSetAttribute", unsafe {
                (driver.cuMemPoolSetAttribute)(
                    pool,
                    CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    (&raw mut threshold).cast(),
                )
            })?;
        }
        let gpu = Arc::new(gpu);
        // The thread lives as long as there are senders.
        let _ = gpu.errands.send(Message::Watch(Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    fn streams(&mut self) -> impl Iterator<Item = &mut CUstream> {
        let own = [&mut self.compute, &mut self.inward, &mut self.outward, &mut self.across, &mut self.callback];
        own.into_iter().chain(&mut self.external)
    }

    /// A place among the executions under way; blocks until there is one.
    pub fn board(self: &Arc<Self>) -> Seat {
        let mut in_flight = self.in_flight.lock();
        while *in_flight >= IN_FLIGHT {
            self.landed.wait(&mut in_flight);
        }
        *in_flight += 1;
        Seat(Arc::clone(self))
    }

    /// One of the streams for outsiders, each in turn.
    pub fn external(&self) -> CUstream {
        self.external[self.next_external.fetch_add(1, Ordering::Relaxed) % EXTERNAL]
    }

    /// Whether `stream` is one of the streams for outsiders.
    pub fn is_external(&self, stream: CUstream) -> bool {
        self.external.contains(&stream)
    }

    /// Memory of the pool, for the compute stream; 0 for no bytes. When there is none, what the compute stream still
    /// frees is waited for, once, as XLA does.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let _entered = self.context.enter()?;
        let driver = self.driver;
        let allocate = || {
            if let Store::Region(region) = &self.store {
                let full = || Error::exhausted("the region of the bfc allocator is full");
                return region.allocate(bytes, RETRY).ok_or_else(full);
            }
            // SAFETY: the stream is ours, and its context current.
            driver.out("cuMemAllocAsync", 0, |at| unsafe { (driver.cuMemAllocAsync)(at, bytes as usize, self.compute) })
        };
        let address = allocate().or_else(|error| {
            if error.code != sys::PJRT_Error_Code_RESOURCE_EXHAUSTED {
                return Err(error);
            }
            let again = match &self.store {
                Store::Pool(_) => self.synchronize(self.compute).and_then(|()| allocate()),
                Store::Region(_) => Err(error),
            };
            again.map_err(|error| {
                let in_use = self.usage().map_or(0, |usage| usage.in_use);
                Error::new(
                    error.code,
                    format!(
                        "Out of memory while trying to allocate {bytes} bytes on {} ({in_use} bytes of its pool are in use, it \
                         has {} bytes): {error}",
                        self.name, self.memory
                    ),
                )
            })
        })?;
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
        Ok(address)
    }

    /// Gives memory of the pool back, once the compute stream has come to here.
    pub fn free(&self, address: u64) {
        let Ok(_entered) = self.context.enter() else { return };
        if let Store::Region(region) = &self.store {
            region.free(address);
        } else if address != 0 {
            // SAFETY: the memory is the pool's, and nothing of ours names it any more. A driver that refuses has said
            // why.
            unsafe { (self.driver.cuMemFreeAsync)(address, self.compute) };
        }
    }

    /// What the memory comes to.
    ///
    /// # Errors
    /// The driver's.
    pub fn usage(&self) -> Result<Usage> {
        use CUmemPool_attribute::{
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
            CU_MEMPOOL_ATTR_USED_MEM_HIGH,
        };
        let pool = match &self.store {
            Store::Pool(pool) => *pool,
            Store::Region(region) => {
                let (bytes, in_use, peak) = region.with(|bfc| (bfc.bytes, bfc.in_use, bfc.peak));
                return Ok(Usage { in_use, peak_in_use: peak, reserved: bytes, peak_reserved: bytes });
            }
        };
        let _entered = self.context.enter()?;
        let attribute = |which| {
            // SAFETY: the attribute is a u64.
            self.driver.out("cuMemPoolGetAttribute", 0_u64, |value| unsafe {
                (self.driver.cuMemPoolGetAttribute)(pool, which, value.cast())
            })
        };
        Ok(Usage {
            in_use: attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            peak_in_use: attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved: attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            peak_reserved: attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
        })
    }

    /// Waits until `stream` has nothing left to do.
    ///
    /// # Errors
    /// The driver's.
    pub fn synchronize(&self, stream: CUstream) -> Result {
        let _entered = self.context.enter()?;
        // SAFETY: the stream is one of the driver's.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.cuStreamSynchronize)(stream) })
    }

    /// Waits until all streams have nothing left to do.
    ///
    /// # Errors
    /// The driver's.
    pub fn drain(&self) -> Result {
        let streams = [self.compute, self.inward, self.outward, self.across, self.callback];
        streams.into_iter().chain(self.external).try_for_each(|stream| self.synchronize(stream))
    }

    /// A mark at the end of what `stream` has to do.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&self, stream: CUstream) -> Result<Arc<Mark>> {
        let driver = self.driver;
        let _entered = self.context.enter()?;
        // SAFETY: the context is current.
        let event: CUevent =
            driver.out("cuEventCreate", ptr::null_mut(), |made| unsafe { (driver.cuEventCreate)(made, NO_TIMING) })?;
        let mark = Mark::new(self.context, event, stream);
        // SAFETY: event and stream belong to this context.
        driver.check("cuEventRecord", unsafe { (driver.cuEventRecord)(event, stream) })?;
        Ok(Arc::new(mark))
    }

    /// Lets what `stream` is given from here on wait for `mark`.
    ///
    /// # Errors
    /// The driver's.
    pub fn follow(&self, stream: CUstream, mark: &Mark) -> Result {
        if mark.stream() == stream {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        // SAFETY: both are alive.
        self.driver.check("cuStreamWaitEvent", unsafe { (self.driver.cuStreamWaitEvent)(stream, mark.event(), 0) })
    }

    /// The same for all that stands in another stream of this GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn follow_stream(&self, stream: CUstream, other: CUstream) -> Result {
        self.follow(stream, &*self.mark(other)?)
    }

    /// Puts a kernel on `stream` that calls `work` and counts as these accesses.
    ///
    /// # Errors
    /// The driver's; then `work` is not called.
    pub fn kernel(
        &self,
        stream: CUstream,
        reads: &[Range],
        writes: &[Range],
        work: impl FnOnce() + Send + 'static,
    ) -> Result {
        unsafe extern "C" fn run(work: *mut c_void) {
            // SAFETY: the pointer is the box below, and a kernel runs once.
            let work = unsafe { Box::from_raw(work.cast::<Box<dyn FnOnce() + Send>>()) };
            // The driver's thread must survive; work that panics leaves its milestone as it was, which is a failure.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        }
        let work: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(work));
        let raw = Box::into_raw(work);
        let _entered = self.context.enter()?;
        // SAFETY: the stream is alive; the lists are as long as said; `run` takes what `raw` is.
        let status = unsafe {
            (self.driver.fake_cuda_kernel)(
                stream,
                run,
                raw.cast(),
                reads.as_ptr(),
                reads.len(),
                writes.as_ptr(),
                writes.len(),
            )
        };
        self.driver.check("fake_cuda_kernel", status).inspect_err(|_| {
            // SAFETY: a kernel that was refused does not run, so the box is still ours.
            drop(unsafe { Box::from_raw(raw) });
        })
    }

    /// Copies between arrays on `stream`.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Both arrays must lie in device memory and live until the copy is done.
    pub unsafe fn copy(&self, stream: CUstream, to: u64, from: u64, bytes: u64) -> Result {
        let _entered = self.context.enter()?;
        // SAFETY: the caller's promise.
        let status = unsafe { (self.driver.cuMemcpyDtoDAsync_v2)(to, from, bytes as usize, stream) };
        self.driver.check("cuMemcpyDtoDAsync", status)
    }

    /// Makes the end of what `stream` has to do `milestone`, and drops `kept` once it is reached. Gives its mark.
    ///
    /// # Errors
    /// The driver's; the milestone has failed then.
    pub fn complete(
        &self,
        stream: CUstream,
        milestone: &Arc<Milestone>,
        kept: impl Send + 'static,
    ) -> Result<Arc<Mark>> {
        let mut outstanding = self.outstanding.lock();
        outstanding.retain(|milestone| milestone.upgrade().is_some_and(|milestone| !milestone.is_over()));
        outstanding.push(Arc::downgrade(milestone));
        drop(outstanding);
        let after = Arc::clone(milestone);
        let told = self.mark(stream).and_then(|mark| {
            milestone.record(Arc::clone(&mark));
            self.follow(self.callback, &mark)?;
            self.after_callback(Box::new(move || {
                // First, so that whoever waits for the milestone finds the memory gone.
                drop(kept);
                after.finish();
            }))?;
            Ok(mark)
        });
        if let Err(error) = &told {
            milestone.finish_with(Err(error.clone()));
        }
        told
    }

    /// Has an errand run once the callback stream has come to here.
    ///
    /// By a kernel that uses nothing: a function of `cuLaunchHostFunc` counts for the driver as the host seeing all
    /// that came before, and would hide what a caller forgets to wait for.
    fn after_callback(&self, errand: Errand) -> Result {
        let errands = self.errands.clone();
        self.kernel(self.callback, &[], &[], move || {
            // The thread that runs errands lives as long as there are senders.
            let _ = errands.send(Message::Errand(errand));
        })
    }

    /// Lets what has yet to be told fail, if the driver does nothing more on this GPU: after an illegal access it runs
    /// neither kernels nor functions of the host.
    fn check(&self) {
        let outstanding: Vec<_> = self.outstanding.lock().iter().filter_map(Weak::upgrade).collect();
        let outstanding = outstanding.into_iter().filter(|milestone| !milestone.is_over());
        let outstanding: Vec<_> = outstanding.collect();
        if outstanding.is_empty() {
            return;
        }
        if let Err(error) = self.mark(self.callback) {
            outstanding.iter().for_each(|milestone| milestone.finish_with(Err(error.clone())));
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let driver = self.driver;
        let Ok(_entered) = self.context.enter() else { return };
        for stream in self.streams().filter(|stream| !stream.is_null()) {
            // SAFETY: the stream is ours, and this is its end; the driver finishes what stands in it.
            unsafe { (driver.cuStreamDestroy_v2)(*stream) };
        }
        if let Store::Region(region) = &self.store {
            // SAFETY: taken once, given back once; the streams have finished what used it.
            unsafe { (driver.cuMemFree_v2)(region.with(Bfc::start)) };
        }
    }
}

/// Starts the thread that runs errands, until the last sender is gone.
///
/// # Errors
/// INTERNAL when no thread can be started.
pub fn start_errands() -> Result<Sender<Message>> {
    let (send, receive) = mpsc::channel::<Message>();
    let run = move || {
        let mut gpus: Vec<Weak<Gpu>> = Vec::new();
        loop {
            match receive.recv_timeout(AT_MOST) {
                Ok(Message::Errand(errand)) => errand(),
                Ok(Message::Watch(gpu)) => gpus.push(gpu),
                Err(RecvTimeoutError::Timeout) => gpus.iter().filter_map(Weak::upgrade).for_each(|gpu| gpu.check()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    thread::Builder::new()
        .name("fake-cuda-errands".into())
        .spawn(run)
        .map_err(|error| Error::internal(format!("no thread for callbacks: {error}")))?;
    Ok(send)
}
