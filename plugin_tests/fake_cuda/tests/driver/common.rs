//! The driver as a program has it: functions found by name, here with panics in place of statuses where none is looked
//! for.
#![allow(missing_docs, dead_code, unused_imports)]

use std::{
    ffi::{c_int, c_uint, c_void},
    mem, ptr,
    sync::mpsc,
};

pub use fake_cuda::{
    FakeCudaRange, Session,
    control::{configure, host_access, reset_violations, violations},
    status,
};

pub const MIB: u64 = 1 << 20;
pub const CHUNK: u64 = 2 * MIB;

/// Calls a function with these arguments; gives its status.
#[macro_export]
macro_rules! cu {
    ($name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        let function = fake_cuda::symbol(stringify!($name)).expect(stringify!($name));
        // SAFETY: the types are those of CUDA, and the tests pass pointers to values of their own.
        let function: extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(function) };
        function($($argument),*)
    }};
}

/// A driver with these settings and the context of GPU 0.
pub fn start(settings: &[(&str, &str)]) -> Session {
    let session = Session::begin(settings);
    ok(cu!(cuInit(0 => c_uint)));
    enter(0);
    session
}

/// Retains the context of a GPU and makes it current.
pub fn enter(gpu: c_int) -> usize {
    let mut context = 0;
    ok(cu!(cuDevicePrimaryCtxRetain(&raw mut context => *mut usize, gpu => c_int)));
    ok(cu!(cuCtxSetCurrent(context => usize)));
    context
}

#[track_caller]
pub fn ok(code: u32) {
    assert_eq!(code, status::SUCCESS, "{:?}; violations: {:?}", status::words(code), violations());
}

/// One violation, and this is in it.
#[track_caller]
pub fn found(words: &[&str]) {
    let all = violations();
    assert_eq!(all.len(), 1, "{all:#?}");
    for word in words {
        assert!(all[0].contains(word), "{word:?} is not in {all:#?}");
    }
    reset_violations();
}

#[track_caller]
pub fn no_violations() {
    assert_eq!(violations(), [""; 0]);
}

pub fn stream() -> usize {
    let mut stream = 0;
    ok(cu!(cuStreamCreate(&raw mut stream => *mut usize, 1 => c_uint)));
    stream
}

pub fn event() -> usize {
    let mut event = 0;
    ok(cu!(cuEventCreate(&raw mut event => *mut usize, 2 => c_uint)));
    event
}

/// Records an event of its own on a stream.
pub fn record(stream: usize) -> usize {
    let event = event();
    ok(cu!(cuEventRecord(event => usize, stream => usize)));
    event
}

pub fn wait(stream: usize, event: usize) {
    ok(cu!(cuStreamWaitEvent(stream => usize, event => usize, 0 => c_uint)));
}

pub fn synchronize(stream: usize) {
    ok(cu!(cuStreamSynchronize(stream => usize)));
}

pub fn allocate(bytes: u64) -> u64 {
    let mut address = 0;
    ok(cu!(cuMemAlloc_v2(&raw mut address => *mut u64, bytes as usize => usize)));
    address
}

pub fn pinned(bytes: u64) -> u64 {
    let mut address = 0;
    ok(cu!(cuMemHostAlloc(&raw mut address => *mut u64, bytes as usize => usize, 0 => c_uint)));
    address
}

pub fn fill(address: u64, value: u8, bytes: u64, stream: usize) {
    ok(cu!(cuMemsetD8Async(address => u64, value => u8, bytes as usize => usize, stream => usize)));
}

pub fn copy(to: u64, from: u64, bytes: u64, stream: usize) {
    ok(cu!(cuMemcpyDtoDAsync_v2(to => u64, from => u64, bytes as usize => usize, stream => usize)));
}

/// What is in a GPU's memory, after the stream's work.
pub fn read(address: u64, bytes: u64, stream: usize) -> Vec<u8> {
    let mut out = vec![0; bytes as usize];
    ok(cu!(cuMemcpyDtoHAsync_v2(out.as_mut_ptr() => *mut u8, address => u64, out.len() => usize, stream => usize)));
    out
}

/// Memory of a GPU that is free, and all.
pub fn memory() -> (u64, u64) {
    let (mut free, mut total) = (0usize, 0usize);
    ok(cu!(cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize)));
    (free as u64, total as u64)
}

/// `CUmemAllocationProp` of pinned memory of a GPU.
#[repr(C)]
pub struct Properties(pub [u32; 4], pub [u64; 2]);

pub fn properties(gpu: u32) -> Properties {
    Properties([1, 1, 1, gpu], [0; 2])
}

pub fn create(bytes: u64, gpu: u32) -> Result<u64, u32> {
    let mut handle = 0;
    let code = cu!(cuMemCreate(
        &raw mut handle => *mut u64, bytes as usize => usize, &properties(gpu) => *const Properties, 0 => u64
    ));
    if code == status::SUCCESS { Ok(handle) } else { Err(code) }
}

pub fn reserve(bytes: u64) -> u64 {
    let mut address = 0;
    ok(cu!(cuMemAddressReserve(
        &raw mut address => *mut u64, bytes as usize => usize, 0 => usize, 0 => u64, 0 => u64
    )));
    address
}

pub fn map(address: u64, bytes: u64, handle: u64) -> u32 {
    cu!(cuMemMap(address => u64, bytes as usize => usize, 0 => usize, handle => u64, 0 => u64))
}

pub fn unmap(address: u64, bytes: u64) -> u32 {
    cu!(cuMemUnmap(address => u64, bytes as usize => usize))
}

pub fn release(handle: u64) -> u32 {
    cu!(cuMemRelease(handle => u64))
}

pub fn address_free(address: u64, bytes: u64) -> u32 {
    cu!(cuMemAddressFree(address => u64, bytes as usize => usize))
}

pub fn allow(address: u64, bytes: u64, gpu: u32, flags: u32) -> u32 {
    let description = [1, gpu, flags];
    cu!(cuMemSetAccess(address => u64, bytes as usize => usize, description.as_ptr() => *const u32, 1 => usize))
}

/// A chunk of GPU 0 that is mapped and allowed, and its handle.
pub fn mapped(address: u64, bytes: u64) -> u64 {
    let handle = create(bytes, 0).expect("room");
    ok(map(address, bytes, handle));
    ok(allow(address, bytes, 0, 3));
    handle
}

pub fn allocate_async(bytes: u64, stream: usize) -> Result<u64, u32> {
    let mut address = 0;
    let code = cu!(cuMemAllocAsync(&raw mut address => *mut u64, bytes as usize => usize, stream => usize));
    if code == status::SUCCESS { Ok(address) } else { Err(code) }
}

pub fn free_async(address: u64, stream: usize) -> u32 {
    cu!(cuMemFreeAsync(address => u64, stream => usize))
}

pub fn range(address: u64, bytes: u64) -> FakeCudaRange {
    FakeCudaRange { address, bytes }
}

extern "C" fn run_boxed(argument: *mut c_void) {
    // SAFETY: `boxed` made it, and it is run once.
    let function = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
    function();
}

/// A function as C runs it once, with its argument.
pub fn boxed(function: impl FnOnce() + Send + 'static) -> (extern "C" fn(*mut c_void), *mut c_void) {
    let function: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(function));
    (run_boxed, Box::into_raw(function).cast())
}

/// Puts a kernel into a stream.
pub fn kernel(
    stream: usize,
    reads: &[FakeCudaRange],
    writes: &[FakeCudaRange],
    function: impl FnOnce() + Send + 'static,
) -> u32 {
    type Run = extern "C" fn(*mut c_void);
    let (run, argument) = boxed(function);
    cu!(fake_cuda_kernel(
        stream => usize, run => Run, argument => *mut c_void,
        reads.as_ptr() => *const FakeCudaRange, reads.len() => usize,
        writes.as_ptr() => *const FakeCudaRange, writes.len() => usize,
    ))
}

/// Puts a function of the host into a stream.
pub fn host_function(stream: usize, function: impl FnOnce() + Send + 'static) {
    type Run = extern "C" fn(*mut c_void);
    let (run, argument) = boxed(function);
    ok(cu!(cuLaunchHostFunc(stream => usize, run => Run, argument => *mut c_void)));
}

/// A kernel that lasts until the sender is used or dropped.
pub fn gate(stream: usize, reads: &[FakeCudaRange], writes: &[FakeCudaRange]) -> mpsc::Sender<()> {
    let (open, opened) = mpsc::channel();
    ok(kernel(stream, reads, writes, move || {
        let _ = opened.recv();
    }));
    open
}

/// Whether all of a stream is done, as its query says.
pub fn is_done(stream: usize) -> bool {
    match cu!(cuStreamQuery(stream => usize)) {
        status::NOT_READY => false,
        code => {
            ok(code);
            true
        }
    }
}

/// A byte of a GPU's memory, or of pinned memory, as it is at this moment.
pub fn peek(address: u64) -> u8 {
    // SAFETY: the test has the memory there.
    unsafe { ptr::with_exposed_provenance::<u8>(address as usize).read_volatile() }
}

/// Writes pinned memory.
pub fn poke(address: u64, bytes: u64, value: u8) {
    // SAFETY: the test has the memory there.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(value, bytes as usize) };
}

const _: () = assert!(mem::size_of::<Properties>() == 32);
