//! GPUs, on drivers made for tests: `probe` on small libraries, all else on one that plays a whole driver and finds
//! what is not ordered; `hip` by AMD's names, the others by NVIDIA's.

mod contexts;
mod copies;
mod hip;
mod moves;
mod probe;
mod regions;

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::c_void,
    mem, ptr,
    sync::{Arc, OnceLock},
};

use fake_cuda::{FakeCudaRange, Session, control};

use crate::{
    device::{
        Carrier, HostArray, Mover,
        cuda::{CudaBacking, CudaDevice, Driver, Vendor},
    },
    error::Result,
    memory::{Backing, Region},
    units::{Address, Bytes},
};

/// Chunks of the driver's own unit, so that regions of many are small.
const CHUNK: Bytes = Bytes::mib(2);

/// Calls a function of the driver that the device's own table lacks.
macro_rules! cu {
    ($name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        let function = fake_cuda::symbol(stringify!($name)).expect(stringify!($name));
        // SAFETY: the types are those of CUDA, and the tests pass pointers to values of their own.
        let function: extern "C" fn($($type),*) -> u32 = unsafe { mem::transmute(function) };
        function($($argument),*)
    }};
}
use cu;

fn driver() -> &'static Driver {
    driver_of(Vendor::Nvidia)
}

/// The same GPUs by a vendor's functions.
fn driver_of(vendor: Vendor) -> &'static Driver {
    static NVIDIA: OnceLock<Driver> = OnceLock::new();
    static AMD: OnceLock<Driver> = OnceLock::new();
    vendor.either(&NVIDIA, &AMD).get_or_init(|| {
        // SAFETY: the functions of a driver that is linked to the test.
        unsafe { Driver::from_symbols(vendor, "fake", fake_cuda::symbol) }.expect("every function")
    })
}

/// A driver of its own, and GPU 0 of it. At the end nothing may have gone wrong that was not asked for by
/// [`Rig::found`].
struct Rig {
    gpu: Arc<CudaDevice>,
    /// Opened on demand.
    others: BTreeMap<i32, Arc<CudaDevice>>,
    _session: Session,
}

impl Rig {
    fn new(settings: &[(&str, &str)]) -> Self {
        let session = Session::begin(settings);
        let gpu = CudaDevice::open(driver(), 0, &[0]).expect("a GPU");
        Self { gpu, others: BTreeMap::new(), _session: session }
    }

    /// Two GPUs, each the other's peer if they can be.
    fn of_two(settings: &[(&str, &str)]) -> Self {
        let session = Session::begin(&[&[("gpus", "2")], settings].concat());
        let open = |ordinal| CudaDevice::open(driver(), ordinal, &[0, 1]).expect("a GPU");
        Self { gpu: open(0), others: BTreeMap::from([(1, open(1))]), _session: session }
    }

    fn chunked(&self) -> CudaBacking {
        chunked(&self.gpu)
    }

    fn kinds(&self) -> [CudaBacking; 2] {
        [self.chunked(), CudaBacking::with_driver_allocations(self.gpu.clone())]
    }

    fn free(&self) -> Bytes {
        self.gpu.memory_info().expect("numbers").free
    }

    /// Takes one violation, which has these words.
    #[track_caller]
    fn found(&self, words: &[&str]) {
        self.gpu.synchronize().expect("a stream that ends");
        let all = control::violations();
        assert!(all.len() == 1 && words.iter().all(|word| all[0].contains(word)), "{words:?} in {all:#?}");
        control::reset_violations();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let all = control::violations();
            assert!(all.is_empty(), "{all:#?}");
        }
    }
}

/// Calls `body` with drivers of their own: with one of which the first call of a symbol fails once `body` says so, with
/// another the second, until it makes no more; there nothing fails.
fn at_each_call(settings: &[(&str, &str)], symbols: &[&str], body: impl Fn(&Rig, &dyn Fn())) {
    for symbol in symbols {
        for nth in 1.. {
            let rig = Rig::new(settings);
            let before = Cell::new(0);
            body(&rig, &|| {
                before.set(control::count(symbol));
                control::configure("fail", &format!("{symbol}:{nth}")).expect("a call to fail");
            });
            if control::count(symbol) - before.get() < nth {
                break;
            }
        }
    }
}

fn chunked(gpu: &Arc<CudaDevice>) -> CudaBacking {
    CudaBacking::with_chunks(gpu.clone(), CHUNK).expect("a device that maps")
}

/// Bytes that tell their places apart.
fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(7) ^ (at >> 17) ^ seed) as u8).collect()
}

fn at(address: Address, offset: u64) -> Address {
    address + Bytes::new(offset)
}

/// Writes bytes to a GPU's memory, and is done when it returns.
fn write(gpu: &CudaDevice, to: Address, bytes: &[u8]) {
    let _current = gpu.context().enter().expect("a context");
    gpu.synchronize().expect("a stream that ends");
    let from = bytes.as_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyHtoD_v2(to.get() => u64, from => *const c_void, bytes.len() => usize)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
}

/// Reads a GPU's memory, after all that is on our stream.
fn read(gpu: &CudaDevice, from: Address, bytes: u64) -> Vec<u8> {
    let _current = gpu.context().enter().expect("a context");
    gpu.synchronize().expect("a stream that ends");
    let mut out = vec![0_u8; bytes as usize];
    let to = out.as_mut_ptr().cast::<c_void>();
    let done = cu!(cuMemcpyDtoH_v2(to => *mut c_void, from.get() => u64, out.len() => usize));
    assert_eq!(done, 0, "{bytes} bytes at {from}: {:#?}", control::violations());
    out
}

/// Relocates; nobody else uses the ranges.
fn relocate(backing: &CudaBacking, from: Address, to: Address, bytes: u64) -> Result<()> {
    // SAFETY: ranges of regions of the test that calls.
    unsafe { backing.relocate(from, to, Bytes::new(bytes)) }
}

fn discard(backing: &CudaBacking, from: Address, bytes: u64) -> Result<Bytes> {
    // SAFETY: a range of a region of the test that calls.
    unsafe { backing.discard(from, Bytes::new(bytes)) }
}

fn copy(backing: &CudaBacking, from: Address, to: Address, bytes: u64) -> Result<()> {
    // SAFETY: ranges of regions of the test that calls; what it plants the driver finds.
    unsafe { backing.copy(from, to, Bytes::new(bytes)) }
}

fn order(backing: &CudaBacking, stream: usize) -> Result<()> {
    // SAFETY: a live stream of the test that calls.
    unsafe { backing.order(stream as isize) }
}

/// Uploads bytes.
fn upload(backing: &CudaBacking, from: &[u8], to: Address) -> Result<()> {
    let dims = [from.len() as i64];
    // SAFETY: the slice is readable; the destination is the test's.
    unsafe { backing.upload(HostArray::new(from.as_ptr(), &dims, None, 1), to) }
}

/// A stream as the engine has one.
fn engine_stream(gpu: &CudaDevice) -> usize {
    let _current = gpu.context().enter().expect("a context");
    let mut stream = 0_usize;
    assert_eq!(cu!(cuStreamCreate(&raw mut stream => *mut usize, 1 => u32)), 0);
    stream
}

/// Puts a kernel on a stream that reads and writes ranges and does nothing.
#[track_caller]
fn kernel(gpu: &CudaDevice, stream: usize, reads: &[(Address, u64)], writes: &[(Address, u64)]) {
    assert_eq!(try_kernel(gpu, stream, reads, writes), 0, "{:#?}", control::violations());
}

/// [`kernel`], which the driver may refuse.
fn try_kernel(gpu: &CudaDevice, stream: usize, reads: &[(Address, u64)], writes: &[(Address, u64)]) -> u32 {
    extern "C" fn nothing(_: *mut c_void) {}
    type Run = extern "C" fn(*mut c_void);
    let _current = gpu.context().enter().expect("a context");
    let ranges = |list: &[(Address, u64)]| -> Vec<FakeCudaRange> {
        list.iter().map(|&(address, bytes)| FakeCudaRange { address: address.get(), bytes }).collect()
    };
    let (reads, writes) = (ranges(reads), ranges(writes));
    cu!(fake_cuda_kernel(
        stream => usize, nothing => Run, ptr::null_mut() => *mut c_void,
        reads.as_ptr() => *const FakeCudaRange, reads.len() => usize,
        writes.as_ptr() => *const FakeCudaRange, writes.len() => usize,
    ))
}

/// Waits for all work of the device, the engine's too.
fn finish(gpu: &CudaDevice) {
    let _current = gpu.context().enter().expect("a context");
    assert_eq!(cu!(cuCtxSynchronize()), 0, "{:#?}", control::violations());
}

/// The context that is current on this thread; zero is none.
fn current() -> usize {
    let mut context = 1_usize;
    assert_eq!(cu!(cuCtxGetCurrent(&raw mut context => *mut usize)), 0);
    context
}

/// A region with bytes in it.
fn filled(backing: &CudaBacking, bytes: u64, seed: u64) -> (Region, Vec<u8>) {
    let region = backing.reserve(Bytes::new(bytes)).expect("room");
    let content = pattern(bytes, seed);
    write(backing.device(), region.address, &content);
    (region, content)
}
