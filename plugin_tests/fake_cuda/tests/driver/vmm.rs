//! Virtual memory: contents follow the handle, and what is not mapped or not allowed cannot be used.

use crate::common::*;

#[test]
fn contents_follow_the_handle() {
    let _session = start(&[]);
    let (stream, region) = (stream(), reserve(4 * CHUNK));
    let handle = mapped(region, CHUNK);
    fill(region, 5, CHUNK, stream);
    synchronize(stream);
    ok(unmap(region, CHUNK));
    let other = mapped(region, CHUNK);
    ok(map(region + 3 * CHUNK, CHUNK, handle));
    ok(allow(region + 3 * CHUNK, CHUNK, 0, 3));
    assert_eq!(read(region + 3 * CHUNK, CHUNK, stream), vec![5; CHUNK as usize]);
    assert_eq!(read(region, CHUNK, stream), vec![0; CHUNK as usize]);
    // The same memory by two addresses.
    ok(map(region + CHUNK, CHUNK, handle));
    ok(allow(region + CHUNK, CHUNK, 0, 3));
    fill(region + CHUNK + 7, 6, 1, stream);
    assert_eq!(read(region + 3 * CHUNK, 8, stream), [5, 5, 5, 5, 5, 5, 5, 6]);
    for at in [0, 1, 3] {
        ok(unmap(region + at * CHUNK, CHUNK));
    }
    [handle, other].into_iter().for_each(|handle| ok(release(handle)));
    ok(address_free(region, 4 * CHUNK));
    no_violations();
}

#[test]
fn memory_goes_when_the_last_mapping_of_a_released_handle_does() {
    let _session = start(&[("memory", "8MiB")]);
    let region = reserve(CHUNK);
    let handle = mapped(region, CHUNK);
    ok(release(handle));
    assert_eq!(memory().0, 6 * MIB);
    assert_eq!(release(handle), status::INVALID_VALUE);
    found(&["cuMemRelease", "released before"]);
    assert_eq!(map(region, CHUNK, handle), status::INVALID_VALUE);
    found(&["cuMemMap", "no handle"]);
    ok(unmap(region, CHUNK));
    assert_eq!(memory().0, 8 * MIB);
}

#[test]
fn what_is_mapped_may_not_be_used_before_it_is_allowed() {
    let _session = start(&[("gpus", "2")]);
    let (stream, region) = (stream(), reserve(CHUNK));
    let handle = create(CHUNK, 0).expect("room");
    ok(map(region, CHUNK, handle));
    let touch = || cu!(cuMemsetD8Async(region => u64, 1 => u8, 8 => usize, stream => usize));
    assert_eq!(touch(), status::INVALID_VALUE);
    found(&["cuMemsetD8Async", "may not write", "cuMemSetAccess"]);
    assert_eq!(kernel(stream, &[range(region, 8)], &[], || {}), status::INVALID_VALUE);
    found(&["fake_cuda_kernel", "may not read", "cuMemSetAccess"]);
    ok(allow(region, CHUNK, 0, 1));
    read(region, 8, stream);
    assert_eq!(touch(), status::INVALID_VALUE);
    found(&["may not write"]);
    ok(allow(region, CHUNK, 0, 3));
    ok(touch());
    synchronize(stream);
    // Another GPU has to be allowed by itself.
    enter(1);
    let far = crate::common::stream();
    assert_eq!(kernel(far, &[range(region, 8)], &[], || {}), status::INVALID_VALUE);
    found(&["GPU 1 may not read"]);
    ok(allow(region, CHUNK, 1, 1));
    ok(kernel(far, &[range(region, 8)], &[], || {}));
    // A new mapping begins without.
    enter(0);
    synchronize(far);
    ok(unmap(region, CHUNK));
    ok(map(region, CHUNK, handle));
    assert_eq!(touch(), status::INVALID_VALUE);
    found(&["cuMemSetAccess"]);
}

#[test]
fn gaps_halves_and_overlaps_are_refused() {
    let _session = start(&[]);
    let (stream, region) = (stream(), reserve(6 * CHUNK));
    let handle = mapped(region, 2 * CHUNK);
    assert_eq!(unmap(region, CHUNK), status::INVALID_VALUE);
    found(&["cuMemUnmap", "whole mappings"]);
    assert_eq!(unmap(region, 3 * CHUNK), status::INVALID_VALUE);
    found(&["cuMemUnmap", "whole mappings"]);
    assert_eq!(map(region + CHUNK, CHUNK, handle), status::INVALID_VALUE);
    found(&["cuMemMap", "already mapped"]);
    assert_eq!(map(region + 6 * CHUNK, CHUNK, handle), status::INVALID_VALUE);
    found(&["cuMemMap", "no reservation"]);
    assert_eq!(map(region + 3 * CHUNK, 3 * CHUNK, handle), status::INVALID_VALUE);
    found(&["cuMemMap", "at most"]);
    assert_eq!(map(region + 3 * CHUNK + 4096, CHUNK, handle), status::INVALID_VALUE);
    found(&["cuMemMap", "no multiple"]);
    let next = mapped(region + 2 * CHUNK, CHUNK);
    // Over two mappings is fine, over the gap behind them is not.
    fill(region + CHUNK, 1, 2 * CHUNK, stream);
    let touch = |bytes: u64| cu!(cuMemsetD8Async(region => u64, 1 => u8, bytes as usize => usize, stream => usize));
    assert_eq!(touch(3 * CHUNK + 1), status::INVALID_VALUE);
    found(&["nothing is mapped"]);
    synchronize(stream);
    assert_eq!(address_free(region, 6 * CHUNK), status::INVALID_VALUE);
    found(&["cuMemAddressFree", "still mapped"]);
    ok(unmap(region, 3 * CHUNK));
    assert_eq!(address_free(region, CHUNK), status::INVALID_VALUE);
    found(&["cuMemAddressFree", "that were reserved"]);
    ok(address_free(region, 6 * CHUNK));
    assert_eq!(address_free(region, 6 * CHUNK), status::INVALID_VALUE);
    found(&["cuMemAddressFree", "freed before"]);
    [handle, next].into_iter().for_each(|handle| ok(release(handle)));
    no_violations();
}

#[test]
fn sizes_places_and_properties_are_checked() {
    let _session = start(&[("gpus", "2"), ("peer", "0")]);
    assert_eq!(create(CHUNK + 4096, 0), Err(status::INVALID_VALUE));
    found(&["cuMemCreate", "no multiple"]);
    assert_eq!(create(CHUNK, 2), Err(status::INVALID_DEVICE));
    found(&["cuMemCreate", "2 is none of 2"]);
    let (mut granularity, asked) = (0usize, properties(1));
    ok(cu!(cuMemGetAllocationGranularity(
        &raw mut granularity => *mut usize, &raw const asked => *const Properties, 1 => u32
    )));
    assert_eq!(granularity as u64, CHUNK);
    let (region, handle) = (reserve(CHUNK), create(CHUNK, 1).expect("room"));
    ok(map(region, CHUNK, handle));
    no_violations();
    assert_eq!(allow(region, CHUNK, 0, 3), status::INVALID_DEVICE);
    found(&["cuMemSetAccess", "cannot reach"]);
    assert_eq!(allow(region, CHUNK, 1, 2), status::INVALID_VALUE);
    found(&["the access is 2"]);
}

#[test]
fn a_place_is_reserved_where_it_is_wanted_if_it_is_free() {
    let _session = start(&[]);
    let first = reserve(4 * CHUNK);
    ok(address_free(first, 4 * CHUNK));
    let at = |hint: u64| {
        let (mut address, bytes) = (0u64, CHUNK as usize);
        ok(cu!(cuMemAddressReserve(
            &raw mut address => *mut u64, bytes => usize, 0 => usize, hint => u64, 0 => u64
        )));
        address
    };
    let second = at(first);
    assert_eq!(second, first);
    let third = at(first);
    assert!(third != first && third.is_multiple_of(CHUNK));
}

#[test]
fn memory_for_network_cards_is_made_where_the_gpu_says_so() {
    for (rdma, made) in [("0", status::NOT_SUPPORTED), ("1", status::SUCCESS)] {
        let _session = start(&[("rdma", rdma)]);
        let mut value: i32 = -1;
        // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED.
        ok(cu!(cuDeviceGetAttribute(&raw mut value => *mut i32, 110 => u32, 0 => i32)));
        assert_eq!(value.to_string(), rdma);
        let mut wanted = properties(0);
        wanted.1[1] = 1 << 8;
        let (mut handle, bytes) = (0u64, CHUNK as usize);
        let code = cu!(cuMemCreate(
            &raw mut handle => *mut u64, bytes => usize, &raw const wanted => *const Properties, 0 => u64
        ));
        assert_eq!(code, made);
        // What a GPU lacks a correct caller may try.
        no_violations();
    }
}
