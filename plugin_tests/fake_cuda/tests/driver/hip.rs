//! AMD's driver on the same GPUs: a thread's device, HIP's own numbers, its last error, and what it finds.

use std::{
    ffi::{c_int, c_uint},
    thread,
};

use crate::common::*;

fn device() -> c_int {
    let mut device = -1;
    ok(cu!(hipGetDevice(&raw mut device => *mut c_int)));
    device
}

fn hip_memory(bytes: u64) -> u64 {
    let mut address = 0;
    ok(cu!(hipMalloc(&raw mut address => *mut u64, bytes as usize => usize)));
    address
}

fn attribute(which: c_uint) -> Result<c_int, u32> {
    let mut value = -1;
    let code = cu!(hipDeviceGetAttribute(&raw mut value => *mut c_int, which => c_uint, 0 => c_int));
    if code == 0 { Ok(value) } else { Err(code) }
}

#[test]
fn a_thread_begins_on_the_first_device_without_starting_anything() {
    let _session = Session::begin(&[("gpus", "2")]);
    assert_eq!(device(), 0);
    ok(cu!(hipSetDevice(1 => c_int)));
    assert_eq!(device(), 1);
    assert_eq!(thread::scope(|scope| scope.spawn(device).join().expect("no panic")), 0);
    // What is on top of CUDA's stack is the thread's device, and the other way round.
    let context = enter(0);
    assert_eq!(device(), 0);
    ok(cu!(hipSetDevice(1 => c_int)));
    let mut current = 0_usize;
    ok(cu!(cuCtxGetCurrent(&raw mut current => *mut usize)));
    assert_ne!(current, context);
    no_violations();
    assert_eq!(cu!(hipSetDevice(2 => c_int)), status::INVALID_DEVICE);
    found(&["hipSetDevice", "2 is none of 2 devices"]);
}

#[test]
fn attributes_have_other_numbers_than_cudas() {
    let _session = Session::begin(&[]);
    // Compute capability and a warp's size, which CUDA knows as 75, 76 and 10.
    assert_eq!((attribute(23), attribute(61), attribute(87)), (Ok(9), Ok(4), Ok(64)));
    assert_eq!((attribute(75), attribute(76), attribute(10)), (Ok(0), Ok(0), Ok(0)));
    no_violations();
    assert_eq!(attribute(102), Err(status::INVALID_VALUE));
    found(&["102 is no attribute of a device to HIP"]);
}

#[test]
fn the_last_error_stays_with_its_thread_until_it_is_asked_for() {
    let _session = Session::begin(&[("memory", "16MiB")]);
    let mut address = 0_u64;
    assert_eq!(cu!(hipMalloc(&raw mut address => *mut u64, 32 << 20 => usize)), status::OUT_OF_MEMORY);
    ok(cu!(hipFree(hip_memory(4096) => u64)));
    assert_eq!(thread::scope(|scope| scope.spawn(|| cu!(hipGetLastError())).join().expect("no panic")), 0);
    assert_eq!((cu!(hipGetLastError()), cu!(hipGetLastError())), (status::OUT_OF_MEMORY, 0));
    no_violations();
}

#[test]
fn copies_say_what_they_are_from_and_to() {
    let _session = start(&[("gpus", "2")]);
    let (here, host) = (hip_memory(256), pinned(256));
    ok(cu!(hipSetDevice(1 => c_int)));
    let there = hip_memory(256);
    ok(cu!(hipSetDevice(0 => c_int)));
    let stream = stream();
    let copy = |to: u64, from: u64, kind: c_uint| cu!(hipMemcpyAsync(to => u64, from => u64, 256 => usize, kind => c_uint, stream => usize));
    // By address, from the host, to it.
    for (to, from, kind) in [(here, host, 4), (here, host, 1), (host, here, 2)] {
        ok(copy(to, from, kind));
    }
    assert_eq!(copy(here, host, 2), status::INVALID_VALUE);
    found(&["hipMemcpyAsync", "not in the host's memory"]);
    assert_eq!(copy(here, host, 5), 21);
    found(&["5 is no kind of a copy"]);
    let across = |to: c_int, from: c_int| {
        cu!(hipMemcpyPeerAsync(
            there => u64, to => c_int, here => u64, from => c_int, 256 => usize, stream => usize
        ))
    };
    ok(across(1, 0));
    ok(cu!(hipStreamSynchronize(stream => usize)));
    no_violations();
    assert_eq!(across(0, 1), status::INVALID_VALUE);
    found(&["hipMemcpyPeerAsync", "is said to be on GPU 0, and is Gpu(1)"]);
}

#[test]
fn properties_and_attributes_say_the_same() {
    let _session = Session::begin(&[("gpus", "2"), ("memory", "64MiB")]);
    let mut properties = vec![0xaa_u8; 1472 + 8];
    ok(cu!(hipGetDevicePropertiesR0600(properties.as_mut_ptr() => *mut u8, 1 => c_int)));
    assert_eq!(properties[1472..], [0xaa; 8], "the structure is as large as in HIP's header");
    let number = |offset: usize| c_int::from_ne_bytes(properties[offset..offset + 4].try_into().expect("four bytes"));
    let text = |offset: usize| {
        let end = properties[offset..].iter().position(|&byte| byte == 0).expect("an end");
        std::str::from_utf8(&properties[offset..offset + end]).expect("text")
    };
    assert_eq!((text(0), text(1160)), ("Fake MI300X", "gfx942:sramecc+:xnack-"));
    assert_eq!(properties[288..296], (64_u64 << 20).to_ne_bytes());
    // Of a warp, of a block, of the memory's bus, and how many multiprocessors.
    for (offset, which) in [(308, 87), (320, 56), (612, 59), (388, 63)] {
        assert_eq!(Ok(number(offset)), attribute(which), "{offset}");
        assert!(number(offset) > 0);
    }
    // AMD's own attributes begin at 10000.
    assert_eq!(attribute(10_002), Ok(65_536));
    no_violations();
    assert_eq!(attribute(10_018), Err(status::INVALID_VALUE));
    found(&["10018 is no attribute of a device to HIP"]);
}

#[test]
fn gpus_have_addresses_of_their_own() {
    let _session = Session::begin(&[("gpus", "2")]);
    let id = |device: c_int| {
        let mut text = [0_u8; 16];
        ok(cu!(hipDeviceGetPCIBusId(text.as_mut_ptr() => *mut u8, 16 => c_int, device => c_int)));
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    };
    assert_eq!((id(0).as_str(), id(1).as_str()), ("0000:1b:00.0", "0000:1c:00.0"));
    no_violations();
    let mut short = [0_u8; 12];
    assert_eq!(
        cu!(hipDeviceGetPCIBusId(short.as_mut_ptr() => *mut u8, 12 => c_int, 0 => c_int)),
        status::INVALID_VALUE
    );
    found(&["the id's length is 12"]);
}

#[test]
fn peers_are_named_by_their_ordinals() {
    let _session = Session::begin(&[("gpus", "2")]);
    // Nobody has used GPU 1 before.
    ok(cu!(hipDeviceEnablePeerAccess(1 => c_int, 0 => c_uint)));
    assert_eq!(cu!(hipDeviceEnablePeerAccess(1 => c_int, 0 => c_uint)), status::PEER_ACCESS_ALREADY_ENABLED);
    assert_eq!(cu!(hipGetLastError()), status::PEER_ACCESS_ALREADY_ENABLED);
    no_violations();
    assert_eq!(cu!(hipDeviceEnablePeerAccess(0 => c_int, 0 => c_uint)), status::INVALID_CONTEXT);
    found(&["GPU 0 is no peer of its own"]);
}

#[test]
fn copies_that_wait_have_ended_and_fills_take_one_byte_of_their_value() {
    let _session = start(&[]);
    let (here, host, stream) = (hip_memory(256), pinned(256), stream());
    ok(cu!(hipMemsetAsync(here => u64, 0x1203 => c_int, 256 => usize, stream => usize)));
    ok(cu!(hipMemsetD32Async(here + 8 => u64, -2 => c_int, 1 => usize, stream => usize)));
    ok(cu!(hipMemcpyWithStream(host => u64, here => u64, 256 => usize, 2 => c_uint, stream => usize)));
    assert_eq!([peek(host), peek(host + 8), peek(host + 9), peek(host + 12)], [3, 0xfe, 0xff, 3]);
    let mut back = [0_u8; 4];
    ok(cu!(hipMemcpyDtoH(back.as_mut_ptr() => *mut u8, here + 7 => u64, 4 => usize)));
    assert_eq!(back, [3, 0xfe, 0xff, 0xff]);
    ok(cu!(hipMemcpyHtoD(here => u64, [9_u8; 2].as_ptr() => *const u8, 2 => usize)));
    // From memory that is not pinned it may return before the bytes are there.
    ok(cu!(hipDeviceSynchronize()));
    ok(cu!(hipMemcpyDtoHAsync(host => u64, here => u64, 4 => usize, stream => usize)));
    ok(cu!(hipStreamSynchronize(stream => usize)));
    assert_eq!([peek(host), peek(host + 1), peek(host + 2)], [9, 9, 3]);
    no_violations();
}

#[test]
fn an_address_has_a_kind_and_a_range() {
    let _session = start(&[]);
    let (here, host) = (hip_memory(1000), pinned(64));
    let kind = |address: u64| {
        let mut kind: c_int = -1;
        let code = cu!(hipPointerGetAttribute(&raw mut kind => *mut c_int, 2 => c_uint, address => u64));
        (code, kind)
    };
    assert_eq!((kind(here + 5), kind(host)), ((0, 2), (0, 1)));
    let (mut start, mut bytes) = (0_u64, 0_usize);
    ok(cu!(hipMemGetAddressRange(&raw mut start => *mut u64, &raw mut bytes => *mut usize, here + 999 => u64)));
    assert_eq!((start, bytes >= 1000), (here, true));
    // Memory that it does not know is an error, but no mistake: a program asks in order to find that out.
    let own = 0_u8;
    assert_eq!(kind((&raw const own).addr() as u64).0, status::INVALID_VALUE);
    no_violations();
}

#[test]
fn streams_know_their_device_and_events_take_hips_flags() {
    let _session = Session::begin(&[("gpus", "2")]);
    ok(cu!(hipSetDevice(1 => c_int)));
    let (mut first, mut second, mut event) = (0_usize, 0_usize, 0_usize);
    ok(cu!(hipStreamCreateWithPriority(&raw mut first => *mut usize, 1 => c_uint, -1 => c_int)));
    ok(cu!(hipStreamCreateWithFlags(&raw mut second => *mut usize, 0 => c_uint)));
    ok(cu!(hipSetDevice(0 => c_int)));
    assert_eq!((cu!(hipGetStreamDeviceId(first => usize)), cu!(hipGetStreamDeviceId(0 => usize))), (1, 0));
    for (stream, wanted) in [(first, 1), (second, 0)] {
        let mut flags: c_uint = 7;
        ok(cu!(hipStreamGetFlags(stream => usize, &raw mut flags => *mut c_uint)));
        assert_eq!(flags, wanted);
    }
    // hipEventDisableTiming with hipEventReleaseToSystem, which CUDA has not.
    ok(cu!(hipEventCreateWithFlags(&raw mut event => *mut usize, 0x8000_0002 => c_uint)));
    no_violations();
    assert_eq!(cu!(hipEventCreateWithFlags(&raw mut event => *mut usize, 0x10 => c_uint)), status::INVALID_VALUE);
    found(&["flags are 0x10"]);
    assert_eq!(cu!(hipGetStreamDeviceId(0x77 => usize)), u32::MAX);
    found(&["0x77"]);
}
