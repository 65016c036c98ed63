//! The same device through HIP's functions: what they are called, which numbers they take, and what they leave behind
//! on a thread.

use std::{ffi::OsString, fs, path::Path, process::Command, thread};

use fake_cuda::control;

use crate::{
    device::{
        ScratchPool,
        cuda::{EnginePool, FixedShare, PinnedBacking, driver, probe::probe_driver, tests::*},
    },
    error::Code,
};

/// GPUs of AMD's, the first of which is open.
struct Amd {
    gpu: Arc<CudaDevice>,
    _session: Session,
}

impl Amd {
    fn new(settings: &[(&str, &str)]) -> Self {
        let session = Session::begin(settings);
        Self { gpu: open(0), _session: session }
    }

    fn backing(&self) -> CudaBacking {
        backing(&self.gpu)
    }
}

impl Drop for Amd {
    fn drop(&mut self) {
        if !thread::panicking() {
            let all = control::violations();
            assert!(all.is_empty(), "{all:#?}");
            let cuda = ["cuCtxPushCurrent_v2", "cuMemAlloc_v2", "cuMemCreate", "cuMemcpyAsync", "cuStreamCreate"];
            let called: Vec<_> = cuda.iter().filter(|symbol| control::count(symbol) != 0).collect();
            assert!(called.is_empty(), "functions of another vendor: {called:?}");
        }
    }
}

/// With all others, of two at most, as its peers.
fn open(ordinal: i32) -> Arc<CudaDevice> {
    let mut count = 0;
    assert_eq!(cu!(hipGetDeviceCount(&raw mut count => *mut i32)), 0);
    CudaDevice::open(driver_of(Vendor::Amd), ordinal, &[0, 1][..count as usize]).expect("a GPU")
}

fn backing(gpu: &Arc<CudaDevice>) -> CudaBacking {
    CudaBacking::new(gpu.clone(), Bytes::gib(1)).expect("a device")
}

/// The thread's device.
fn device() -> i32 {
    let mut device = -1;
    assert_eq!(cu!(hipGetDevice(&raw mut device => *mut i32)), 0);
    device
}

/// The bytes of a GPU's memory, after all that is on our stream.
fn bytes(gpu: &CudaDevice, from: Address, count: u64) -> Vec<u8> {
    gpu.synchronize().expect("a stream that ends");
    let pinned = PinnedBacking::new(open(gpu.ordinal()));
    let room = pinned.reserve(Bytes::new(count.next_multiple_of(4096))).expect("room");
    let stream = gpu.stream_handle() as usize;
    let _current = gpu.context().enter().expect("a device");
    // 2: from the device to the host.
    let done = cu!(hipMemcpyAsync(
        room.address.get() => u64, from.get() => u64, count => u64, 2 => u32, stream => usize
    ));
    assert_eq!(done, 0, "{:#?}", control::violations());
    gpu.synchronize().expect("a stream that ends");
    // SAFETY: pinned memory of the test's, which nothing writes any more.
    let out = unsafe { std::slice::from_raw_parts(room.address.get() as usize as *const u8, count as usize) }.to_vec();
    control::host_access(room.address.get(), count, false);
    pinned.release(room).expect("a release");
    out
}

#[test]
fn regions_are_allocations_and_arrays_arrive_and_move() {
    let rig = Amd::new(&[("latency_us", "1000")]);
    let backing = rig.backing();
    // Nothing is mapped by hand: no chunks to exchange or to give back.
    assert_eq!(backing.granularity(), Bytes::new(256));
    let before = rig.gpu.memory_info().expect("numbers");
    assert_eq!(before.total, Bytes::gib(1));
    let region = backing.reserve(Bytes::mib(40)).expect("room");
    assert_eq!(rig.gpu.memory_info().expect("numbers").free, before.free - Bytes::mib(40));
    let content = pattern(20 << 20, 3);
    upload(&backing, &content, region.address).expect("an upload");
    assert!(bytes(&rig.gpu, region.address, 20 << 20) == content);
    // By less than its size, and by more.
    for to in [256, 5 << 20, 20 << 20] {
        relocate(&backing, region.address, at(region.address, to), 20 << 20).expect("a move");
        assert!(bytes(&rig.gpu, at(region.address, to), 20 << 20) == content, "by {to}");
        relocate(&backing, at(region.address, to), region.address, 20 << 20).expect("a move back");
    }
    assert_eq!(discard(&backing, region.address, 20 << 20), Ok(Bytes::ZERO));
    copy(&backing, region.address, at(region.address, 20 << 20), 1000).expect("a copy");
    assert!(bytes(&rig.gpu, at(region.address, 20 << 20), 1000) == content[..1000]);
    backing.release(region).expect("a release");
    assert_eq!(rig.gpu.memory_info().expect("numbers").free, before.free - bounce(&rig));
    assert!(control::count("hipMalloc") > 0 && control::count("hipFree") > 0);
}

/// What the buffer takes through which a block moves by less than its own size.
fn bounce(rig: &Amd) -> Bytes {
    rig.gpu.bounce.lock().as_ref().map_or(Bytes::ZERO, |bounce| bounce.bytes)
}

#[test]
fn a_thread_keeps_its_device() {
    let rig = Amd::new(&[("gpus", "2")]);
    let other = open(1);
    let all = || {
        let (here, there) = (rig.backing(), backing(&other));
        let (region, far) = (here.reserve(Bytes::mib(1)).expect("room"), there.reserve(Bytes::mib(1)).expect("room"));
        upload(&here, &[7; 5000], region.address).expect("an upload");
        relocate(&here, region.address, at(region.address, 512), 5000).expect("a move");
        copy(&there, at(region.address, 512), far.address, 5000).expect("a copy from the other GPU");
        assert!(bytes(&other, far.address, 5000) == [7; 5000]);
        order(&here, other.stream_handle() as usize).expect("an order");
        there.release(far).expect("a release");
        here.release(region).expect("a release");
        assert!(here.reserve(Bytes::gib(2)).is_err());
        drop(open(1));
    };
    for ordinal in [0, 1] {
        assert_eq!(cu!(hipSetDevice(ordinal => i32)), 0);
        all();
        assert_eq!(device(), ordinal);
        // A call that fails leaves it as well.
        control::configure("fail", "hipMemGetInfo:1:999").expect("a call to fail");
        assert!(rig.gpu.memory_info().is_err() && device() == ordinal);
    }
}

#[test]
fn a_failure_is_not_left_for_the_engine_to_find() {
    let rig = Amd::new(&[]);
    let why = rig.backing().reserve(Bytes::gib(2)).expect_err("more than there is");
    assert_eq!(why.code, Code::ResourceExhausted);
    let text = "2.00GiB of GPU 0: hipMalloc gave 2, hipErrorOutOfMemory: out of memory; 1.00GiB of 1.00GiB are free";
    assert_eq!(why.message, text);
    assert_eq!(cu!(hipGetLastError()), 0);
    // One of the test's own is there until it is asked for.
    assert_eq!(cu!(hipSetDevice(9 => i32)), 101);
    assert_eq!((cu!(hipGetLastError()), cu!(hipGetLastError())), (101, 0));
    control::reset_violations();
}

#[test]
fn copies_between_gpus_that_are_no_peers_name_the_devices() {
    let rig = Amd::new(&[("gpus", "2"), ("peer", "0"), ("latency_us", "500")]);
    let other = open(1);
    let (here, there) = (rig.backing(), backing(&other));
    let (region, far) = (here.reserve(Bytes::mib(1)).expect("room"), there.reserve(Bytes::mib(1)).expect("room"));
    let content = pattern(1 << 20, 9);
    upload(&here, &content, region.address).expect("an upload");
    copy(&there, region.address, far.address, 1 << 20).expect("a copy");
    assert!(bytes(&other, far.address, 1 << 20) == content);
    assert_eq!((control::count("hipMemcpyPeerAsync"), control::count("cuMemcpyPeerAsync")), (1, 0));
    here.release(region).expect("a release");
    there.release(far).expect("a release");
}

#[test]
fn what_copies_cost_comes_from_hips_attributes() {
    let rig = Amd::new(&[]);
    // 1300 MHz twice, 8192 bits: 2.66 TB/s, of which a copy gets 0.8, and uses it twice.
    assert_eq!(rig.backing().costs().per_mib, 984);
}

#[test]
fn the_offer_names_the_vendor_and_its_version() {
    let _session = Session::begin(&[("gpus", "2"), ("memory", "2GiB")]);
    let offer = probe_driver(driver_of(Vendor::Amd)).expect("a driver");
    assert_eq!(offer.to_string(), "AMD driver for HIP 7.0: 2 GPUs: 2 x Fake MI300X, 2.00GiB, compute capability 9.4");
    // There are, but the engine uses none.
    assert!(offer.gpus.iter().all(|gpu| !gpu.pools));
    assert!(control::violations().is_empty(), "{:#?}", control::violations());
}

#[test]
fn scratch_is_a_fixed_share_as_there_is_no_pool() {
    let rig = Amd::new(&[]);
    assert!(EnginePool::of(&rig.gpu).expect("an answer").is_none());
    let share = FixedShare::new(&rig.gpu, Bytes::mib(512));
    assert_eq!((share.reserved(), share.free_on_device()), (Ok(Bytes::mib(512)), Ok(Bytes::gib(1))));
}

/// A library without functions, by its path, that calls itself `name`.
fn library(folder: &Path, file: &str, name: &str) -> OsString {
    let path = folder.join(file);
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"])
        .arg(&path)
        .arg(format!("-Wl,-soname,{name}"))
        .status()
        .expect("gcc runs");
    assert!(status.success());
    path.into()
}

#[test]
fn the_version_that_the_engine_has_loaded_comes_first() {
    let folder = tempfile::tempdir().expect("a folder");
    // Names of no other test's: what a process has loaded, all tests of it see.
    let (newer, older) = ("libarena-test-gpu.so.7", "libarena-test-gpu.so.6");
    let newer_path = library(folder.path(), "newer.so", newer);
    let older_path = library(folder.path(), "older.so", older);
    let open = |files: &[&OsString]| {
        let files: Vec<_> = files.iter().map(|file| (*file).clone()).collect();
        driver::open(Vendor::Amd, &files).map(|(name, _)| name)
    };
    let by_path = |path: &OsString| path.to_string_lossy().into_owned();
    assert_eq!(open(&[&newer_path, &older_path]), Ok(by_path(&newer_path)), "the first that there is");
    let files = [&newer_path, &OsString::from(older)];
    assert_eq!(open(&files), Ok(by_path(&newer_path)));
    // SAFETY: a library without functions.
    let engines = unsafe { libloading::Library::new(&older_path) }.expect("a library");
    assert_eq!(open(&files), Ok(older.to_owned()), "the one that is there already");
    drop(engines);
    // Of several that are not there the last is named, which is the name that users know; one that is damaged comes
    // before it.
    let missing = [&OsString::from(newer), &OsString::from(older)];
    let why = open(&missing).expect_err("no such libraries").to_string();
    assert_eq!(why, format!("no AMD driver ({older} not found)"));
    let damaged = folder.path().join("damaged.so");
    fs::write(&damaged, "no library").expect("writing");
    let why = open(&[&damaged.clone().into(), missing[0]]).expect_err("no library").to_string();
    assert!(why.starts_with(&format!("no AMD driver: {} cannot be loaded: ", damaged.display())), "{why}");
}

#[test]
fn a_driver_without_gpus_is_quoted_in_hips_words() {
    let _session = Session::begin(&[("gpus", "0")]);
    let why = probe_driver(driver_of(Vendor::Amd)).expect_err("no GPU");
    let words = "the AMD driver shows no GPU: hipInit gave 100, hipErrorNoDevice: no ROCm-capable device is detected";
    assert_eq!(why.to_string(), words);
}
