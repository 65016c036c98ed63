//! Memory: what it costs, what limits it, and which misuse is found.

use std::ffi::c_int;

use crate::common::*;

#[test]
fn memory_is_bounded_and_comes_back() {
    let _session = start(&[("memory", "16MiB")]);
    assert_eq!(memory(), (16 * MIB, 16 * MIB));
    let block = allocate(10 * MIB);
    let handle = create(4 * MIB, 0).expect("room");
    assert_eq!(memory(), (2 * MIB, 16 * MIB));
    assert_eq!(create(4 * MIB, 0), Err(status::OUT_OF_MEMORY));
    let mut address = 0u64;
    let more = 3 * MIB as usize;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut address => *mut u64, more => usize)), status::OUT_OF_MEMORY);
    assert_eq!(allocate_async(3 * MIB, stream()), Err(status::OUT_OF_MEMORY));
    // Pinned memory is the host's.
    ok(cu!(cuMemFreeHost(pinned(64 * MIB) => u64)));
    ok(cu!(cuMemFree_v2(block => u64)));
    ok(release(handle));
    assert_eq!(memory(), (16 * MIB, 16 * MIB));
    no_violations();
}

#[test]
fn freeing_twice_and_what_was_never_allocated_is_found() {
    let _session = start(&[]);
    let block = allocate(4096);
    assert_eq!(cu!(cuMemFree_v2(block + 512 => u64)), status::INVALID_VALUE);
    found(&["cuMemFree_v2", "no allocation"]);
    ok(cu!(cuMemFree_v2(block => u64)));
    assert_eq!(cu!(cuMemFree_v2(block => u64)), status::INVALID_VALUE);
    found(&["cuMemFree_v2", "freed before"]);
    let host = pinned(4096);
    ok(cu!(cuMemFreeHost(host => u64)));
    assert_eq!(cu!(cuMemFreeHost(host => u64)), status::INVALID_VALUE);
    found(&["cuMemFreeHost", "freed before"]);
}

#[test]
fn freeing_waits_for_all_work_of_the_gpu() {
    let _session = start(&[("latency_us", "2000")]);
    let (stream, used, freed) = (stream(), allocate(64), allocate(64));
    fill(used, 3, 64, stream);
    fill(freed, 4, 64, stream);
    ok(cu!(cuMemFree_v2(freed => u64)));
    assert!(is_done(stream));
    assert_eq!(peek(used), 3);
    no_violations();
}

#[test]
fn freeing_pinned_memory_waits_as_well_but_shows_no_end() {
    let _session = start(&[("latency_us", "2000")]);
    let (one, other, used, host) = (stream(), stream(), allocate(64), pinned(64));
    fill(used, 3, 64, one);
    ok(cu!(cuMemFreeHost(host => u64)));
    assert_eq!(peek(used), 3);
    no_violations();
    fill(used, 4, 64, other);
    found(&["not ordered after cuMemsetD8Async"]);
    synchronize(other);
}

#[test]
fn copies_over_the_end_or_over_each_other_are_refused() {
    let _session = start(&[]);
    let (stream, block) = (stream(), allocate(4096));
    let fill =
        |address: u64, bytes: usize| cu!(cuMemsetD8Async(address => u64, 0 => u8, bytes => usize, stream => usize));
    assert_eq!(fill(block + 1, 4096), status::INVALID_VALUE);
    found(&["cuMemsetD8Async", "over the end"]);
    let host = [0u8; 8];
    let words =
        |address: u64, value: u32| cu!(cuMemsetD32Async(address => u64, value => u32, 2 => usize, stream => usize));
    assert_eq!(words(block + 2, 7), status::INVALID_VALUE);
    found(&["cuMemsetD32Async", "no multiple of 4"]);
    ok(words(block + 4, 0x0403_0201));
    assert_eq!(read(block + 4, 8, stream), [1, 2, 3, 4, 1, 2, 3, 4]);
    assert_eq!(fill(host.as_ptr() as u64, 8), status::INVALID_VALUE);
    found(&["cuMemsetD8Async", "not in a GPU's memory"]);
    let copy = |to: u64, from: u64, bytes: usize| cu!(cuMemcpyDtoDAsync_v2(to => u64, from => u64, bytes => usize, stream => usize));
    assert_eq!(copy(block + 8, block, 16), status::INVALID_VALUE);
    found(&["cuMemcpyDtoDAsync_v2", "overlap"]);
    ok(copy(block + 16, block, 16));
    ok(copy(block + 16, block + 16, 0));
    no_violations();
}

#[test]
fn a_context_must_be_current_and_the_right_one() {
    let _session = start(&[("gpus", "2")]);
    let first = stream();
    let mut count: c_int = 0;
    ok(cu!(cuDeviceGetCount(&raw mut count => *mut c_int)));
    assert_eq!(count, 2);
    enter(1);
    let second = stream();
    assert_eq!(cu!(cuEventRecord(event() => usize, first => usize)), status::INVALID_HANDLE);
    found(&["cuEventRecord", "of GPU 0", "GPU 1"]);
    let recorded = event();
    let mut context = 0usize;
    ok(cu!(cuCtxPopCurrent_v2(&raw mut context => *mut usize)));
    ok(cu!(cuCtxGetCurrent(&raw mut context => *mut usize)));
    assert_eq!(context, 0);
    assert_eq!(cu!(cuStreamSynchronize(second => usize)), status::INVALID_CONTEXT);
    found(&["cuStreamSynchronize", "no context is current"]);
    let mut address = 0u64;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut address => *mut u64, 1 => usize)), status::INVALID_CONTEXT);
    found(&["cuMemAlloc_v2", "no context is current"]);
    assert_eq!(cu!(cuCtxPopCurrent_v2(&raw mut context => *mut usize)), status::INVALID_CONTEXT);
    found(&["cuCtxPopCurrent_v2", "empty"]);
    // A query of an event, the pools and the functions of virtual memory need none.
    ok(cu!(cuEventQuery(recorded => usize)));
    let block = allocate_async(64, second).expect("room");
    ok(free_async(block, second));
    ok(release(create(CHUNK, 1).expect("room")));
    no_violations();
}

#[test]
fn the_last_release_of_a_context_destroys_what_is_in_it() {
    let _session = start(&[]);
    let all = memory().1;
    enter(0);
    let stream = stream();
    allocate(MIB);
    ok(cu!(cuDevicePrimaryCtxRelease_v2(0 => c_int)));
    assert!(is_done(stream));
    ok(cu!(cuDevicePrimaryCtxRelease_v2(0 => c_int)));
    let mut free = [0usize; 2];
    let [a, b] = &mut free;
    let info = cu!(cuMemGetInfo_v2(&raw mut *a => *mut usize, &raw mut *b => *mut usize));
    assert_eq!(info, status::CONTEXT_IS_DESTROYED);
    found(&["cuMemGetInfo_v2", "released"]);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0 => c_int)), status::INVALID_CONTEXT);
    found(&["not retained"]);
    enter(0);
    assert_eq!(memory(), (all, all));
    assert_eq!(cu!(cuStreamQuery(stream => usize)), status::INVALID_HANDLE);
    found(&["no stream"]);
}

#[test]
fn the_driver_copies_between_gpus_and_kernels_reach_their_own() {
    for peer in ["1", "0"] {
        let _session = start(&[("gpus", "2"), ("peer", peer)]);
        let (far, pooled) = (allocate(64), allocate_async(64, stream()).expect("room"));
        enter(1);
        let (stream, near) = (stream(), allocate(64));
        let mut answer: c_int = 7;
        ok(cu!(cuDeviceCanAccessPeer(&raw mut answer => *mut c_int, 1 => c_int, 0 => c_int)));
        assert_eq!(answer.to_string(), peer);
        copy(near, far, 64, stream);
        for address in [far, pooled] {
            assert_eq!(kernel(stream, &[range(address, 64)], &[], || {}), status::INVALID_VALUE);
            found(&["fake_cuda_kernel", "GPU 1 has no access", "on GPU 0"]);
        }
        synchronize(stream);
    }
}
