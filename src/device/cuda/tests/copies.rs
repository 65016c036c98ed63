//! Arrays that are uploaded, blocks that are copied, and what orders them with the engine's work.

use std::{num::NonZeroUsize, thread};

use fake_cuda::control;

use crate::device::cuda::{PinnedBacking, tests::*};

/// Uploads an array of 4-byte elements.
fn upload_strided(backing: &CudaBacking, data: *const u8, dims: &[i64], strides: &[i64], to: Address) -> Result<()> {
    // SAFETY: the tests' arrays lie where they say, as do the destinations.
    unsafe { backing.upload(HostArray::new(data, dims, Some(strides), 4), to) }
}

/// The dense array, element by element.
fn dense(source: &[u8], origin: i64, dims: &[i64], strides: &[i64]) -> Vec<u8> {
    let total: i64 = dims.iter().product();
    let mut out = Vec::with_capacity(total as usize * 4);
    for number in 0..total {
        let (mut rest, mut place) = (number, origin);
        for (dim, stride) in dims.iter().zip(strides).rev() {
            place += rest % dim * stride;
            rest /= dim;
        }
        out.extend_from_slice(&source[place as usize..place as usize + 4]);
    }
    out
}

#[test]
fn arrays_arrive_dense_and_the_source_may_change() {
    let rig = Rig::new(&[("latency_us", "2000")]);
    let source = pattern(40 << 20, 1);
    for backing in rig.kinds() {
        let region = backing.reserve(Bytes::mib(42)).expect("room");
        for (dims, strides, origin) in [
            (vec![5 << 20], vec![4], 0),                       // dense, in three buffers
            (vec![7], vec![4], 0),                             // small
            (vec![], vec![], 12),                              // one element
            (vec![0, 3], vec![12, 4], 0),                      // none
            (vec![3 << 20], vec![8], 0),                       // every other one
            (vec![1000], vec![-4], 4000),                      // backwards
            (vec![3000, 1500], vec![4, 3000 * 4], 0),          // transposed
            (vec![2, 2_200_000], vec![2_200_000 * 8, 8], 0),   // rows that no buffer holds
            (vec![3, 2, 1_000_000], vec![0, 8_000_000, 8], 4), // one and the same row three times
            (vec![300, 4, 2000], vec![4, 300 * 2000 * 4, 300 * 4], 0),
        ] {
            let mut changing = source.clone();
            // SAFETY: within the source.
            let data = unsafe { changing.as_ptr().offset(origin) };
            upload_strided(&backing, data, &dims, &strides, region.address).expect("an upload");
            changing.fill(0xee);
            let expected = dense(&source, origin as i64, &dims, &strides);
            assert!(read(&rig.gpu, region.address, expected.len() as u64) == expected, "{dims:?} {strides:?}");
        }
        backing.release(region).expect("a release");
    }
}

#[test]
fn buffers_are_used_again_only_when_they_were_sent() {
    // So slow that all buffers are waiting before the first one was sent.
    let rig = Rig::new(&[("latency_us", "5000")]);
    let backing = rig.chunked();
    let region = backing.reserve(Bytes::mib(128)).expect("room");
    let large: Vec<_> = (0..3).map(|seed| pattern(40 << 20, seed)).collect();
    for (seed, content) in (0..).zip(&large) {
        upload(&backing, content, at(region.address, seed * (40 << 20))).expect("an upload");
    }
    for (seed, content) in (0..).zip(&large) {
        assert!(&read(&rig.gpu, at(region.address, seed * (40 << 20)), 40 << 20) == content);
    }
    assert_eq!(control::count("cuMemHostAlloc"), 4);
    backing.release(region).expect("a release");
}

#[test]
fn small_arrays_share_a_buffer() {
    let rig = Rig::new(&[("latency_us", "100")]);
    let backing = rig.chunked();
    let region = backing.reserve(Bytes::mib(2)).expect("room");
    let place = |number: u64| at(region.address, number * 1000);
    let content = |number: u64| pattern(1000 - number % 7, number);
    for number in 0..1000 {
        upload(&backing, &content(number), place(number)).expect("an upload");
    }
    for number in 0..1000 {
        let content = content(number);
        assert!(read(&rig.gpu, place(number), content.len() as u64) == content, "{number}");
    }
    assert_eq!(control::count("cuMemHostAlloc"), 1);
    backing.release(region).expect("a release");
}

#[test]
fn threads_share_the_buffers() {
    let rig = Rig::new(&[("latency_us", "300")]);
    let backing = rig.chunked();
    let region = backing.reserve(Bytes::mib(160)).expect("room");
    thread::scope(|scope| {
        for number in 0..8 {
            let (backing, gpu, region) = (&backing, &rig.gpu, *region);
            scope.spawn(move || {
                let place = at(region.address, number * (20 << 20));
                for bytes in [20 << 20, 100, 9 << 20] {
                    let content = pattern(bytes, number);
                    upload(backing, &content, place).expect("an upload");
                    assert!(read(gpu, place, bytes) == content);
                }
                assert_eq!(current(), 0);
            });
        }
    });
    assert_eq!(control::count("cuMemHostAlloc"), 4);
    backing.release(region).expect("a release");
}

#[test]
fn uploads_go_on_with_the_buffers_that_can_be_had() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let region = backing.reserve(Bytes::mib(32)).expect("room");
    let content = pattern(32 << 20, 1);
    control::configure("fail", "cuMemHostAlloc:1").expect("a call to fail");
    let why = upload(&backing, &content, region.address).expect_err("no buffer at all");
    assert_eq!(why.code, crate::error::Code::ResourceExhausted, "{why}");
    for nth in 2..5 {
        control::configure("fail", &format!("cuMemHostAlloc:{nth}")).expect("a call to fail");
    }
    upload(&backing, &content, region.address).expect("one buffer is enough");
    assert!(read(&rig.gpu, region.address, 32 << 20) == content);
    backing.release(region).expect("a release");
}

#[test]
fn nothing_writes_any_more_after_an_upload_that_fails() {
    let rig = Rig::new(&[("latency_us", "3000")]);
    let backing = rig.chunked();
    let region = backing.reserve(Bytes::mib(32)).expect("room");
    for symbol in ["cuMemcpyHtoDAsync_v2", "cuEventRecord"] {
        control::configure("fail", &format!("{symbol}:3:999")).expect("a call to fail");
        let why = upload(&backing, &pattern(32 << 20, 1), region.address).expect_err("refused");
        assert!(why.message.contains(&format!("{symbol} gave 999")), "{why}");
        // No fence: a stream of another's may write at once.
        let stream = engine_stream(&rig.gpu);
        kernel(&rig.gpu, stream, &[], &[(region.address, 32 << 20)]);
        finish(&rig.gpu);
    }
    upload(&backing, &pattern(100, 1), region.address).expect("it works again");
    backing.release(region).expect("a release");
}

#[test]
fn a_stream_of_the_engine_that_is_ordered_finds_the_bytes() {
    let rig = Rig::new(&[("latency_us", "2000")]);
    for backing in rig.kinds() {
        let region = backing.reserve(Bytes::mib(4)).expect("room");
        let stream = engine_stream(&rig.gpu);
        upload(&backing, &pattern(100, 1), region.address).expect("an upload");
        copy(&backing, region.address, at(region.address, 1 << 20), 100).expect("a copy");
        order(&backing, stream).expect("an order");
        kernel(&rig.gpu, stream, &[(region.address, 100)], &[(at(region.address, 1 << 20), 100)]);
        // The engine's wait is not ours to see: here it is the whole device.
        finish(&rig.gpu);
        backing.release(region).expect("a release");
    }
}

#[test]
fn a_stream_of_the_engine_that_is_not_ordered_is_found_out() {
    let rig = Rig::new(&[("latency_us", "2000")]);
    let backing = rig.chunked();
    let region = backing.reserve(Bytes::mib(4)).expect("room");
    let stream = engine_stream(&rig.gpu);
    // Before the order came.
    upload(&backing, &pattern(100, 1), region.address).expect("an upload");
    kernel(&rig.gpu, stream, &[(region.address, 100)], &[]);
    rig.found(&["fake_cuda_kernel", "cuMemcpyHtoDAsync_v2"]);
    finish(&rig.gpu);
    // After an order that is older than the copy.
    upload(&backing, &pattern(100, 1), region.address).expect("an upload");
    order(&backing, stream).expect("an order");
    copy(&backing, region.address, at(region.address, 1 << 20), 100).expect("a copy");
    kernel(&rig.gpu, stream, &[], &[(at(region.address, 1 << 20), 100)]);
    rig.found(&["fake_cuda_kernel", "cuMemcpyDtoDAsync_v2"]);
    finish(&rig.gpu);
    // A block that is written again while the engine reads it.
    kernel(&rig.gpu, stream, &[(region.address, 100)], &[]);
    upload(&backing, &pattern(100, 2), region.address).expect("an upload");
    rig.found(&["cuMemcpyHtoDAsync_v2", "fake_cuda_kernel"]);
    finish(&rig.gpu);
    // With a fence it is not.
    kernel(&rig.gpu, stream, &[(region.address, 100)], &[]);
    let mut event = 0_usize;
    {
        let _current = rig.gpu.context().enter().expect("a context");
        assert_eq!(cu!(cuEventCreate(&raw mut event => *mut usize, 2 => u32)), 0);
        assert_eq!(cu!(cuEventRecord(event => usize, stream => usize)), 0);
        assert_eq!(cu!(cuStreamWaitEvent(backing.device().stream_handle() => isize, event => usize, 0 => u32)), 0);
    }
    upload(&backing, &pattern(100, 2), region.address).expect("an upload");
    backing.release(region).expect("a release");
}

#[test]
fn a_region_goes_when_our_copies_are_done_and_not_before() {
    let rig = Rig::new(&[("latency_us", "5000")]);
    for backing in rig.kinds() {
        let [one, two] = [0, 1].map(|_| backing.reserve(Bytes::mib(4)).expect("room"));
        upload(&backing, &pattern(1000, 1), one.address).expect("an upload");
        copy(&backing, one.address, two.address, 1000).expect("a copy");
        // Either end of the copy, and what an upload alone touched.
        backing.release(one).expect("a release");
        upload(&backing, &pattern(1000, 1), two.address).expect("an upload");
        discard(&backing, two.address, 4 << 20).expect("chunks");
        backing.populate(two.address, two.bytes).expect("room");
        upload(&backing, &pattern(1000, 1), two.address).expect("an upload");
        backing.release(two).expect("a release");
    }
    // What nothing of ours touches since does not wait.
    let backing = rig.chunked();
    let [idle, busy] = [0, 1].map(|_| backing.reserve(Bytes::mib(4)).expect("room"));
    upload(&backing, &pattern(1000, 1), busy.address).expect("an upload");
    let waits = control::count("cuEventSynchronize");
    backing.release(idle).expect("a release");
    assert_eq!(control::count("cuEventSynchronize"), waits);
    backing.release(busy).expect("a release");
}

#[test]
fn an_order_costs_nothing_when_all_is_done() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let region = backing.reserve(CHUNK).expect("room");
    let stream = engine_stream(&rig.gpu);
    let records = || control::count("cuEventRecord");
    let before = records();
    order(&backing, stream).expect("an order");
    assert_eq!(records(), before);
    upload(&backing, &[1, 2, 3], region.address).expect("an upload");
    let before = records();
    order(&backing, stream).expect("an order");
    assert_eq!(records(), before + 1);
    rig.gpu.synchronize().expect("a stream that ends");
    order(&backing, stream).expect("an order");
    assert_eq!(records(), before + 1);
    backing.release(region).expect("a release");
}

#[test]
fn copies_between_devices_are_ordered_on_both() {
    for peer in ["1", "0"] {
        let rig = Rig::of_two(&[("latency_us", "2000"), ("peer", peer)]);
        let other = rig.others[&1].clone();
        for (here, there) in [
            (rig.chunked(), chunked(&other)),
            (rig.chunked(), CudaBacking::with_driver_allocations(other.clone())),
            (CudaBacking::with_driver_allocations(rig.gpu.clone()), chunked(&other)),
        ] {
            let [to, from] = [&here, &there].map(|backing| backing.reserve(Bytes::mib(4)).expect("room"));
            let content = pattern(1000, 1);
            // The source's bytes are still on their way, and the source is written again behind the copy.
            upload(&there, &content, from.address).expect("an upload");
            copy(&here, from.address, to.address, 1000).expect("a copy");
            upload(&there, &pattern(1000, 2), from.address).expect("an upload");
            copy(&here, from.address, at(to.address, 1000), 1000).expect("a copy");
            there.release(from).expect("a release");
            assert!(read(&rig.gpu, to.address, 1000) == content);
            assert!(read(&rig.gpu, at(to.address, 1000), 1000) == pattern(1000, 2));
            here.release(to).expect("a release");
        }
        assert_eq!(control::count("cuMemcpyPeerAsync") > 0, peer == "0");
        // From memory of the host that the other one pinned.
        let pinned = PinnedBacking::new(other);
        let (backing, from) = (rig.chunked(), pinned.reserve(Bytes::mib(1)).expect("room"));
        let to = backing.reserve(CHUNK).expect("room");
        let content = pattern(1000, 3);
        // SAFETY: the bytes of a vector, and a region of ours.
        unsafe { pinned.upload(HostArray::new(content.as_ptr(), &[1000], None, 1), from.address) }.expect("an upload");
        copy(&backing, from.address, to.address, 1000).expect("a copy");
        pinned.release(from).expect("a release");
        assert!(read(&rig.gpu, to.address, 1000) == content);
        backing.release(to).expect("a release");
    }
}

#[test]
fn copies_from_memory_of_the_engines_are_the_drivers_to_find() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let region = backing.reserve(CHUNK).expect("room");
    let mut engines = 0_u64;
    {
        let _current = rig.gpu.context().enter().expect("a context");
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut engines => *mut u64, 1000 => usize)), 0);
    }
    let content = pattern(1000, 3);
    write(&rig.gpu, Address::new(engines), &content);
    copy(&backing, Address::new(engines), region.address, 1000).expect("a copy");
    assert!(read(&rig.gpu, region.address, 1000) == content);
    // To such memory it does not copy.
    let why = copy(&backing, region.address, Address::new(engines), 1000).expect_err("no region of ours");
    assert!(why.message.contains("1000 bytes at 0x") && why.message.contains("no region of this GPU"), "{why}");
    copy(&backing, region.address, Address::new(1), 0).expect("nothing to do");
    let why = upload(&backing, &[0; 10], Address::new(8)).expect_err("no region of ours");
    assert!(why.message.contains("10 bytes at 0x8"), "{why}");
    upload(&backing, &[], Address::new(8)).expect("nothing to do");
    for dims in [[1 << 62, 4], [-1, 1]] {
        let why = upload_strided(&backing, content.as_ptr(), &dims, &[4, 4], region.address).expect_err("no array");
        assert!(why.message.contains(&format!("an array of {dims:?} elements of 4 bytes")), "{why}");
    }
    backing.release(region).expect("a release");
    let _current = rig.gpu.context().enter().expect("a context");
    assert_eq!(cu!(cuMemFree_v2(engines => u64)), 0);
    assert_eq!(
        NonZeroUsize::new(backing.device().stream_handle() as usize).map(NonZeroUsize::get),
        Some(rig.gpu.stream_handle() as usize)
    );
}
