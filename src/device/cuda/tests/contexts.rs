//! Contexts that are left as they were found, and drivers that lack something.

use std::ffi::OsStr;

use fake_cuda::control;

use crate::{
    device::cuda::{EnginePool, PinnedBacking, Unavailable, driver::required, tests::*},
    error::Code,
};

/// Does all that there is to do with two GPUs.
fn everything(rig: &Rig) {
    let other = &rig.others[&1];
    for backing in rig.kinds() {
        let region = backing.reserve(Bytes::new(3 * CHUNK.get())).expect("room");
        let there = chunked(other);
        let far = there.reserve(CHUNK).expect("room");
        upload(&backing, &[1; 100], region.address).expect("an upload");
        relocate(&backing, region.address, at(region.address, CHUNK.get()), CHUNK.get()).expect("a move");
        copy(&backing, far.address, region.address, 100).expect("a copy");
        copy(&backing, region.address, at(region.address, 100), 100).expect("a copy");
        order(&backing, engine_stream(&rig.gpu)).expect("an order");
        discard(&backing, region.address, 2 * CHUNK.get()).expect("chunks");
        backing.populate(region.address, region.bytes).expect("room");
        there.release(far).expect("a release");
        backing.release(region).expect("a release");
        assert!(backing.reserve(Bytes::gib(2)).is_err());
    }
    let pinned = PinnedBacking::new(rig.gpu.clone());
    let region = pinned.reserve(Bytes::mib(1)).expect("room");
    pinned.release(region).expect("a release");
    rig.gpu.synchronize().expect("a stream that ends");
    EnginePool::of(&rig.gpu).expect("an answer").expect("a pool").usage().expect("numbers");
    // Opened and dropped again.
    CudaDevice::open(driver(), 0, &[1]).expect("a GPU");
}

#[test]
fn a_thread_stays_in_the_context_that_it_was_in() {
    let rig = Rig::of_two(&[]);
    everything(&rig);
    assert_eq!(current(), 0);
    // The other device's, as an engine may leave it.
    let _current = rig.others[&1].context().enter().expect("a context");
    let theirs = current();
    everything(&rig);
    assert_eq!(current(), theirs);
    // A call that fails leaves it as well.
    let backing = rig.chunked();
    assert!(relocate(&backing, Address::new(1), Address::new(2), 1).is_err());
    control::configure("fail", "cuMemGetInfo_v2:1:999").expect("a call to fail");
    assert!(rig.gpu.memory_info().is_err());
    assert_eq!(current(), theirs);
}

/// `CUstreamCaptureMode` of this thread, which stays.
fn capture_mode() -> u32 {
    let mut mode = 2;
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut u32)), 0);
    let mut before = mode;
    assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut before => *mut u32)), 0);
    mode
}

/// Captures a stream in a mode while `work` is done; nothing may spoil it.
fn while_captured(stream: usize, mode: u32, work: impl FnOnce()) {
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream => usize, mode => u32)), 0);
    work();
    let mut graph = 0;
    assert_eq!(cu!(cuStreamEndCapture(stream => usize, &raw mut graph => *mut u64)), 0, "{:#?}", control::violations());
}

#[test]
fn nothing_disturbs_who_captures_a_graph() {
    let rig = Rig::of_two(&[]);
    let stream = engine_stream(&rig.gpu);
    // As theirs who capture: our own guard would change the thread's mode as well.
    let context = rig.gpu.context().enter().map(|_current| current()).expect("a context");
    assert_eq!(cu!(cuCtxSetCurrent(context => usize)), 0);
    for mode in 0..3 {
        while_captured(stream, mode, || everything(&rig));
        while_captured(stream, mode, || {
            std::thread::scope(|scope| scope.spawn(|| everything(&rig)).join()).expect("as on this thread");
        });
    }
    // A thread keeps the mode that it has chosen.
    for mut mode in [1_u32, 2, 0] {
        assert_eq!(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut u32)), 0);
        let chosen = capture_mode();
        everything(&rig);
        assert_eq!(capture_mode(), chosen);
    }
}

#[test]
fn a_thread_that_cannot_change_its_mode_leaves_the_context() {
    let rig = Rig::new(&[]);
    control::configure("fail", "cuThreadExchangeStreamCaptureMode:1:999").expect("a call to fail");
    let why = rig.gpu.memory_info().expect_err("refused");
    assert!(why.message.contains("cuThreadExchangeStreamCaptureMode gave 999"), "{why}");
    assert_eq!((current(), capture_mode()), (0, 0));
}

#[test]
fn the_context_goes_with_the_last_that_needs_it() {
    let _rig = Rig::new(&[]);
    let retained = || control::count("cuDevicePrimaryCtxRetain") - control::count("cuDevicePrimaryCtxRelease_v2");
    assert_eq!(retained(), 1);
    let second = CudaDevice::open(driver(), 0, &[]).expect("a GPU");
    let backing = chunked(&second);
    let region = backing.reserve(CHUNK).expect("room");
    upload(&backing, &[1; 100], region.address).expect("an upload");
    assert_eq!(retained(), 2);
    drop(second);
    assert_eq!(retained(), 2);
    drop(backing);
    assert_eq!(retained(), 1);
}

#[test]
fn gpus_that_are_not_there_are_named() {
    let session = Session::begin(&[("gpus", "2")]);
    for (ordinal, peers) in [(2, vec![]), (-1, vec![]), (0, vec![1, 2])] {
        let why = CudaDevice::open(driver(), ordinal, &peers).expect_err("no such GPU");
        assert_eq!(why.code, Code::InvalidArgument);
        let wrong = peers.last().copied().unwrap_or(ordinal);
        assert_eq!(why.message, format!("GPU {wrong}: allowed are 0 to 1, which the driver shows"));
    }
    drop(session);
    let _session = Session::begin(&[("gpus", "0")]);
    let why = CudaDevice::open(driver(), 0, &[]).expect_err("no GPU");
    assert!(why.message.contains("cuInit gave 100, CUDA_ERROR_NO_DEVICE"), "{why}");
}

#[test]
fn a_device_that_cannot_be_opened_holds_nothing() {
    for symbol in ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreate", "cuDeviceGetCount"] {
        let _session = Session::begin(&[("fail", &format!("{symbol}:1:999"))]);
        let why = CudaDevice::open(driver(), 0, &[]).expect_err("refused");
        assert!(why.message.contains(&format!("{symbol} gave 999")), "{why}");
        let made = control::count("cuDevicePrimaryCtxRetain") - u64::from(symbol == "cuDevicePrimaryCtxRetain");
        assert_eq!(made, control::count("cuDevicePrimaryCtxRelease_v2"));
        assert_eq!(current(), 0);
    }
}

/// A driver without some symbols.
fn without(vendor: Vendor, missing: &[&'static str]) -> Result<Driver, Unavailable> {
    let find = |symbol: &str| if missing.contains(&symbol) { None } else { fake_cuda::symbol(symbol) };
    // SAFETY: the functions of a driver that is linked to the test.
    unsafe { Driver::from_symbols(vendor, "an old one", find) }
}

#[test]
fn a_driver_that_lacks_a_function_is_no_driver() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        for &symbol in required(vendor) {
            let why = without(vendor, &[symbol]).expect_err("a function is missing");
            assert_eq!(why, Unavailable::Symbol { vendor, library: "an old one".to_owned(), symbol });
            let text = format!("no {vendor} driver that can be asked: an old one has no symbol {symbol}");
            assert_eq!(why.to_string(), text);
        }
        let why = Driver::load(vendor, OsStr::new("libgpu-of-no-machine.so.1")).expect_err("no such library");
        assert_eq!(why.to_string(), format!("no {vendor} driver (libgpu-of-no-machine.so.1 not found)"));
    }
}

#[test]
fn an_older_driver_has_no_pools() {
    let _session = Session::begin(&[]);
    let pools = ["cuDeviceGetDefaultMemPool", "cuMemPoolGetAttribute", "cuMemPoolSetAttribute", "cuMemPoolTrimTo"];
    let driver: &'static Driver = Box::leak(Box::new(without(Vendor::Nvidia, &pools).expect("all else is there")));
    let gpu = CudaDevice::open(driver, 0, &[]).expect("a GPU");
    assert!(EnginePool::of(&gpu).expect("an answer").is_none());
    let (region, content) = filled(&chunked(&gpu), 4 << 20, 1);
    assert!(read(&gpu, region.address, 4 << 20) == content);
    // A pool that fails for another reason is told.
    let gpu = CudaDevice::open(crate::device::cuda::tests::driver(), 0, &[]).expect("a GPU");
    control::configure("fail", "cuDeviceGetDefaultMemPool:1:999").expect("a call to fail");
    let why = EnginePool::of(&gpu).expect_err("a failure");
    assert!(why.message.contains("cuDeviceGetDefaultMemPool gave 999"), "{why}");
}

type Attribute = extern "C" fn(*mut i32, u32, i32) -> u32;

/// A driver whose devices have these attributes.
fn with_attributes(attribute: Attribute) -> &'static Driver {
    let find = |symbol: &str| match symbol {
        "cuDeviceGetAttribute" => Some((attribute as *const ()).cast()),
        _ => fake_cuda::symbol(symbol),
    };
    // SAFETY: the functions of a driver that is linked to the test, and one of its type.
    let driver = unsafe { Driver::from_symbols(Vendor::Nvidia, "another one", find) }.expect("every function");
    Box::leak(Box::new(driver))
}

#[test]
fn what_copies_cost_comes_from_the_memorys_clock_and_bus() {
    /// Those of an H200: 3201 MHz, 6144 bits.
    extern "C" fn h200(value: *mut i32, which: u32, device: i32) -> u32 {
        let known = match which {
            36 => 3_201_000,
            37 => 6144,
            _ => return cu!(cuDeviceGetAttribute(value => *mut i32, which => u32, device => i32)),
        };
        // SAFETY: the caller's place for one value.
        unsafe { value.write(known) };
        0
    }
    let _session = Session::begin(&[]);
    let gpu = CudaDevice::open(with_attributes(h200), 0, &[]).expect("a GPU");
    // 4.9 TB/s, of which a copy gets 0.8, and uses it twice.
    let costs = CudaBacking::new(gpu, Bytes::gib(1)).expect("a device").costs();
    assert_eq!(costs.per_mib, 533);
}

#[test]
fn a_device_that_maps_nothing_has_allocations() {
    let session = Session::begin(&[]);
    // Of all attributes it knows none.
    extern "C" fn none(_: *mut i32, _: u32, _: i32) -> u32 {
        1
    }
    let gpu = CudaDevice::open(with_attributes(none), 0, &[]).expect("a GPU");
    let backing = CudaBacking::new(gpu.clone(), Bytes::gib(1)).expect("a device");
    assert_eq!(backing.granularity(), Bytes::new(256));
    let (region, content) = filled(&backing, 1 << 20, 1);
    assert_eq!(discard(&backing, region.address, 1 << 20), Ok(Bytes::ZERO));
    relocate(&backing, region.address, at(region.address, 256), 1000).expect("a move");
    assert!(read(&gpu, at(region.address, 256), 1000) == content[..1000]);
    backing.release(region).expect("a release");
    drop((backing, gpu, session));
}
