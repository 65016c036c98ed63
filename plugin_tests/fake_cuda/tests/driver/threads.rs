//! Several threads at once, each with its own stream and memory: nothing is lost, nothing stops, nothing is found.

use std::thread;

use crate::common::*;

/// Rounds of each thread.
const ROUNDS: u8 = 60;

/// Fills memory of each kind, hands it on, and takes it away, in the order that it needs.
fn work(gpu: u8, salt: u8) {
    enter(gpu.into());
    let (one, other, region, host) = (stream(), stream(), reserve(2 * CHUNK), pinned(256));
    for round in 0..ROUNDS {
        let value = round ^ salt;
        let handle = create(CHUNK, gpu.into()).expect("room");
        let at = region + u64::from(round % 2) * CHUNK;
        ok(map(at, CHUNK, handle));
        ok(allow(at, CHUNK, gpu.into(), 3));
        fill(at, value, 256, one);
        let block = allocate_async(256, one).expect("room");
        copy(block, at, 256, one);
        wait(other, record(one));
        ok(cu!(cuMemcpyDtoHAsync_v2(host => u64, block => u64, 256 => usize, other => usize)));
        wait(one, record(other));
        ok(free_async(block, one));
        let plain = allocate(64);
        fill(plain, value, 64, other);
        assert_eq!(read(plain, 64, other), [value; 64]);
        assert_eq!((peek(host), peek(host + 255)), (value, value));
        ok(cu!(cuMemFree_v2(plain => u64)));
        ok(unmap(at, CHUNK));
        ok(release(handle));
    }
    ok(address_free(region, 2 * CHUNK));
    ok(cu!(cuMemFreeHost(host => u64)));
    [one, other].into_iter().for_each(|stream| ok(cu!(cuStreamDestroy_v2(stream => usize))));
}

#[test]
fn threads_with_memory_of_their_own_do_not_disturb_each_other() {
    let _session = start(&[("gpus", "2"), ("memory", "64MiB"), ("latency_us", "20")]);
    thread::scope(|scope| {
        for salt in [0, 64, 128, 192] {
            scope.spawn(move || work(salt / 64 % 2, salt));
        }
    });
    no_violations();
    for gpu in [0, 1] {
        enter(gpu);
        ok(cu!(cuCtxSynchronize()));
        assert_eq!(memory(), (64 * MIB, 64 * MIB));
    }
}
