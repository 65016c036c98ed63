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
    // Compute capability and the width of the memory's bus, which CUDA knows as 75, 76 and 37.
    assert_eq!((attribute(23), attribute(61), attribute(59)), (Ok(9), Ok(4), Ok(8192)));
    assert_eq!((attribute(75), attribute(76), attribute(37)), (Ok(0), Ok(0), Ok(0)));
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
