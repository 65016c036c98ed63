//! The memory pool: order by streams, the threshold, trims.

use std::ffi::{c_int, c_uint};

use crate::common::*;

const THRESHOLD: c_uint = 4;
const RESERVED: c_uint = 5;
const RESERVED_HIGH: c_uint = 6;
const USED: c_uint = 7;
const USED_HIGH: c_uint = 8;

fn pool() -> usize {
    let mut pool = 0usize;
    ok(cu!(cuDeviceGetDefaultMemPool(&raw mut pool => *mut usize, 0 => c_int)));
    pool
}

fn attribute(which: c_uint) -> u64 {
    let mut value = 0u64;
    ok(cu!(cuMemPoolGetAttribute(pool() => usize, which => c_uint, &raw mut value => *mut u64)));
    value
}

fn set(which: c_uint, mut value: u64) -> u32 {
    cu!(cuMemPoolSetAttribute(pool() => usize, which => c_uint, &raw mut value => *mut u64))
}

#[test]
fn memory_above_the_threshold_goes_back_when_the_host_waits() {
    let _session = start(&[("memory", "16MiB")]);
    let stream = stream();
    let block = allocate_async(3 * MIB, stream).expect("room");
    assert_eq!([RESERVED, USED, RESERVED_HIGH, USED_HIGH].map(attribute), [4 * MIB, 3 * MIB, 4 * MIB, 3 * MIB]);
    assert_eq!(memory().0, 12 * MIB);
    ok(free_async(block, stream));
    assert_eq!([RESERVED, USED].map(attribute), [4 * MIB, 0]);
    synchronize(stream);
    assert_eq!([RESERVED, USED, RESERVED_HIGH, USED_HIGH].map(attribute), [0, 0, 4 * MIB, 3 * MIB]);
    assert_eq!(memory().0, 16 * MIB);
    ok(set(RESERVED_HIGH, 0));
    assert_eq!([RESERVED_HIGH, USED_HIGH].map(attribute), [0, 3 * MIB]);
    // Below a threshold it stays.
    ok(set(THRESHOLD, 4 * MIB));
    let block = allocate_async(3 * MIB, stream).expect("room");
    ok(free_async(block, stream));
    synchronize(stream);
    assert_eq!(attribute(RESERVED), 4 * MIB);
    assert_eq!(allocate_async(3 * MIB, stream), Ok(block));
    no_violations();
}

#[test]
fn the_pool_takes_memory_in_the_unit_that_is_set() {
    let _session = start(&[("memory", "64MiB"), ("segment", "32MiB")]);
    let stream = stream();
    let byte = allocate_async(1, stream).expect("room");
    assert_eq!((attribute(RESERVED), memory().0), (32 * MIB, 32 * MIB));
    allocate_async(31 * MIB, stream).expect("room in what it has");
    assert_eq!(allocate_async(33 * MIB, stream), Err(status::OUT_OF_MEMORY));
    ok(free_async(byte, stream));
    assert_eq!(attribute(RESERVED), 32 * MIB);
    no_violations();
}

#[test]
fn a_trim_gives_back_what_a_call_has_waited_for() {
    let _session = start(&[]);
    ok(set(THRESHOLD, u64::MAX));
    let stream = stream();
    let blocks = [(); 3].map(|()| allocate_async(2 * MIB, stream).expect("room"));
    blocks[..2].iter().for_each(|&block| ok(free_async(block, stream)));
    let trim = |keep: u64| ok(cu!(cuMemPoolTrimTo(pool() => usize, keep as usize => usize)));
    trim(0);
    assert_eq!(attribute(RESERVED), 6 * MIB);
    synchronize(stream);
    trim(4 * MIB);
    assert_eq!(attribute(RESERVED), 4 * MIB);
    trim(0);
    assert_eq!([RESERVED, USED].map(attribute), [2 * MIB, 2 * MIB]);
    no_violations();
}

#[test]
fn no_pool_hears_of_an_end_by_a_function_of_the_host_or_another_stream() {
    let _session = start(&[]);
    ok(set(THRESHOLD, u64::MAX));
    let (one, other) = (stream(), stream());
    let trim = || ok(cu!(cuMemPoolTrimTo(pool() => usize, 0 => usize)));
    let freed = || {
        let block = allocate_async(2 * MIB, one).expect("room");
        ok(free_async(block, one));
        // As XLA learns of an end: a stream that comes after, and a function in it.
        wait(other, record(one));
        let (told, hears) = std::sync::mpsc::channel();
        host_function(other, move || told.send(()).expect("a listener"));
        hears.recv().expect("the end");
        trim();
        assert_eq!(attribute(RESERVED), 2 * MIB);
    };
    freed();
    synchronize(other);
    trim();
    assert_eq!(attribute(RESERVED), 2 * MIB, "nobody has waited for the stream itself");
    synchronize(one);
    trim();
    assert_eq!(attribute(RESERVED), 0);
    freed();
    ok(cu!(cuCtxSynchronize()));
    trim();
    assert_eq!(attribute(RESERVED), 0);
    freed();
    ok(cu!(cuEventSynchronize(record(one) => usize)));
    trim();
    assert_eq!(attribute(RESERVED), 0);
    no_violations();
}

#[test]
fn a_stream_takes_its_own_frees_and_others_what_they_come_after() {
    let _session = start(&[]);
    let (one, other) = (stream(), stream());
    let block = allocate_async(2 * MIB, one).expect("room");
    let open = gate(one, &[], &[range(block, 2 * MIB)]);
    ok(free_async(block, one));
    assert_eq!(allocate_async(MIB, one), Ok(block));
    ok(free_async(block, one));
    let elsewhere = allocate_async(2 * MIB, other).expect("room");
    assert_ne!(elsewhere, block);
    wait(other, record(one));
    assert_eq!(allocate_async(2 * MIB, other), Ok(block));
    fill(block, 1, MIB, other);
    drop(open);
    synchronize(other);
    no_violations();
}

#[test]
fn when_memory_is_short_the_pool_gives_back_first() {
    let _session = start(&[("memory", "8MiB")]);
    ok(set(THRESHOLD, u64::MAX));
    let stream = stream();
    let small = [(); 4].map(|()| allocate_async(2 * MIB, stream).expect("room"));
    small.iter().for_each(|&block| ok(free_async(block, stream)));
    // Free for this stream, but not one piece; and the host does not know of it.
    assert_eq!(allocate_async(4 * MIB, stream), Err(status::OUT_OF_MEMORY));
    synchronize(stream);
    allocate_async(4 * MIB, stream).expect("room");
    // An allocation of another kind takes nothing from the pool.
    assert_eq!(create(6 * MIB, 0), Err(status::OUT_OF_MEMORY));
    no_violations();
}

#[test]
fn misuse_of_the_pool_is_found() {
    let _session = start(&[]);
    let (one, other) = (stream(), stream());
    let block = allocate_async(4096, one).expect("room");
    ok(kernel(one, &[], &[range(block, 4096)], || {}));
    // Another stream does not come after the allocation.
    ok(kernel(other, &[], &[range(block, 16)], || {}));
    let all = violations();
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains("not ordered after fake_cuda_kernel"), "{all:?}");
    reset_violations();
    ok(free_async(block, one));
    found(&["cuMemFreeAsync", "not ordered after fake_cuda_kernel"]);
    assert_eq!(free_async(block, one), status::INVALID_VALUE);
    found(&["cuMemFreeAsync", "freed before"]);
    assert_eq!(kernel(one, &[range(block, 16)], &[], || {}), status::INVALID_VALUE);
    found(&["no allocation of the pool"]);
    assert_eq!(set(RESERVED, 0), status::INVALID_VALUE);
    found(&["cuMemPoolSetAttribute"]);
    // The immediate free trusts that all is over.
    let block = allocate_async(4096, one).expect("room");
    synchronize(one);
    ok(cu!(cuMemFree_v2(block => u64)));
    no_violations();
}

#[test]
fn a_gpu_without_pools_says_so_everywhere() {
    let _session = start(&[("pools", "0")]);
    let mut value = -1;
    // CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED.
    ok(cu!(cuDeviceGetAttribute(&raw mut value => *mut c_int, 115 => c_uint, 0 => c_int)));
    assert_eq!(value, 0);
    let mut pool = 0_usize;
    assert_eq!(cu!(cuDeviceGetDefaultMemPool(&raw mut pool => *mut usize, 0 => c_int)), status::NOT_SUPPORTED);
    assert_eq!(allocate_async(4096, stream()), Err(status::NOT_SUPPORTED));
    // What an attribute of another kind says is as before.
    ok(cu!(cuDeviceGetAttribute(&raw mut value => *mut c_int, 102 => c_uint, 0 => c_int)));
    assert_eq!(value, 1);
    no_violations();
}

#[test]
fn a_pool_serves_the_streams_of_its_gpu() {
    let _session = start(&[("gpus", "2")]);
    let mut block = 0u64;
    let mut from = |pool: usize, stream: usize| cu!(cuMemAllocFromPoolAsync(&raw mut block => *mut u64, 64 => usize, pool => usize, stream => usize));
    ok(from(pool(), stream()));
    enter(1);
    assert_eq!(from(pool(), stream()), status::INVALID_VALUE);
    found(&["is of GPU 0, the stream", "of GPU 1"]);
}
