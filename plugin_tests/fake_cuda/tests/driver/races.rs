//! What nothing orders is found each time, however it went; what is ordered never is.

use crate::common::*;

/// Two streams, and memory of GPU 0.
fn setting(settings: &[(&str, &str)]) -> (Session, usize, usize, u64) {
    let session = start(settings);
    (session, stream(), stream(), allocate(4096))
}

#[test]
fn a_use_before_the_event_is_found() {
    let (_session, one, other, block) = setting(&[]);
    ok(kernel(one, &[], &[range(block, 4096)], || {}));
    let event = record(one);
    ok(kernel(other, &[range(block + 1024, 512)], &[], || {}));
    found(&["fake_cuda_kernel (operation 1 of stream", "reads 512 bytes", "not ordered after", "writes them"]);
    // The same behind the event, and a reader more that nobody has to wait for.
    wait(other, event);
    ok(kernel(other, &[range(block + 1024, 512)], &[], || {}));
    ok(kernel(one, &[range(block, 4096)], &[], || {}));
    no_violations();
}

#[test]
fn a_race_is_found_also_where_it_went_well() {
    let (_session, one, other, block) = setting(&[]);
    let (done, is_done) = std::sync::mpsc::channel();
    ok(kernel(one, &[], &[range(block, 8)], move || done.send(()).expect("the test waits")));
    is_done.recv().expect("it runs");
    fill(block, 1, 8, other);
    found(&["cuMemsetD8Async", "not ordered after fake_cuda_kernel"]);
}

#[test]
fn a_reuse_before_completion_is_found() {
    let (_session, one, other, block) = setting(&[]);
    ok(kernel(one, &[range(block, 64)], &[], || {}));
    let event = record(one);
    fill(block + 32, 1, 64, other);
    found(&["cuMemsetD8Async", "writes 32 bytes", "which reads them"]);
    let (_, _, next) = (block, event, allocate(64));
    ok(kernel(one, &[range(next, 64)], &[], || {}));
    wait(other, record(one));
    fill(next, 1, 64, other);
    no_violations();
}

#[test]
fn what_a_host_thread_has_seen_orders_all_that_it_does_next() {
    let (_session, one, other, block) = setting(&[]);
    let write = |stream| fill(block, 1, 64, stream);
    write(one);
    synchronize(one);
    write(other);
    ok(cu!(cuEventSynchronize(record(other) => usize)));
    write(one);
    ok(cu!(cuCtxSynchronize()));
    write(other);
    let event = record(other);
    while cu!(cuEventQuery(event => usize)) == status::NOT_READY {
        std::thread::yield_now();
    }
    write(one);
    while !is_done(one) {
        std::thread::yield_now();
    }
    write(other);
    // What one thread saw, another one may know.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter(0);
            synchronize(other);
        });
    });
    write(one);
    // A function of the host tells that what is before it is done.
    let (tell, told) = std::sync::mpsc::channel();
    host_function(one, move || tell.send(()).expect("the test waits"));
    told.recv().expect("it runs");
    write(other);
    no_violations();
    write(one);
    found(&["cuMemsetD8Async"]);
}

#[test]
fn a_kernel_that_calls_the_driver_comes_after_what_was_before_it() {
    let (_session, one, other, block) = setting(&[]);
    let more = allocate(64);
    fill(block, 1, 64, one);
    ok(kernel(one, &[], &[range(more, 64)], move || {
        enter(0);
        fill(block, 2, 64, other);
        // But not after itself.
        fill(more, 2, 64, other);
    }));
    synchronize(one);
    found(&["cuMemsetD8Async", "not ordered after fake_cuda_kernel"]);
}

#[test]
fn order_goes_through_other_streams() {
    let (_session, one, other, block) = setting(&[]);
    let third = stream();
    fill(block, 1, 64, one);
    wait(other, record(one));
    wait(third, record(other));
    fill(block, 2, 64, third);
    no_violations();
    // Not the other way round.
    fill(block, 3, 64, one);
    found(&["cuMemsetD8Async"]);
}

#[test]
fn memory_that_is_unmapped_in_use_is_found() {
    for latency in ["0", "1000"] {
        let (_session, one, _, _) = setting(&[("latency_us", latency)]);
        let region = reserve(2 * CHUNK);
        let handle = mapped(region, CHUNK);
        fill(region, 1, CHUNK, one);
        ok(unmap(region, CHUNK));
        found(&["unmapped while in use", "cuMemsetD8Async"]);
        // What the operation found there depends on when it ran; that the driver goes on does not.
        let _ = cu!(cuStreamSynchronize(one => usize));
        reset_violations();
        // Once more with the order that it needs; the handle was not lost.
        ok(map(region, CHUNK, handle));
        ok(allow(region, CHUNK, 0, 3));
        fill(region, 2, CHUNK, one);
        synchronize(one);
        ok(unmap(region, CHUNK));
        ok(release(handle));
        no_violations();
    }
}

#[test]
fn memory_may_be_unmapped_at_one_address_while_it_is_used_by_another() {
    let (_session, one, other, _) = setting(&[]);
    let region = reserve(2 * CHUNK);
    let handle = mapped(region, CHUNK);
    ok(map(region + CHUNK, CHUNK, handle));
    ok(allow(region + CHUNK, CHUNK, 0, 3));
    let open = gate(one, &[], &[range(region, 64)]);
    // By its other address it is the same memory.
    fill(region + CHUNK + 32, 1, 64, other);
    found(&["32 bytes", "not ordered after fake_cuda_kernel"]);
    synchronize(other);
    ok(unmap(region + CHUNK, CHUNK));
    no_violations();
    drop(open);
    synchronize(one);
}

#[test]
fn an_unmapped_range_goes_on_being_there_for_what_runs_and_for_nothing_else() {
    let (_session, one, _, _) = setting(&[]);
    let region = reserve(CHUNK);
    let handle = mapped(region, CHUNK);
    let (started, has_started) = std::sync::mpsc::channel();
    let (open, opened) = std::sync::mpsc::channel::<()>();
    ok(kernel(one, &[], &[range(region, 64)], move || {
        started.send(()).expect("the test waits");
        let _ = opened.recv();
        poke(region, 64, 1);
    }));
    fill(region, 2, 64, one);
    has_started.recv().expect("it runs");
    ok(unmap(region, CHUNK));
    assert_eq!(violations().len(), 1, "{:?}", violations());
    drop(open);
    // The fill comes too late for its memory.
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::ILLEGAL_ADDRESS);
    assert_eq!(cu!(cuCtxSynchronize()), status::ILLEGAL_ADDRESS);
    reset_violations();
    ok(map(region, CHUNK, handle));
    ok(allow(region, CHUNK, 0, 3));
    assert_eq!(read(region, 1, one), [1]);
}

#[test]
fn a_mapping_that_changes_under_what_runs_ends_nothing_but_the_work() {
    let (_session, one, _, _) = setting(&[]);
    let region = reserve(CHUNK);
    let [first, second] = [mapped(region, CHUNK), create(CHUNK, 0).expect("room")];
    let (started, has_started) = std::sync::mpsc::channel();
    let (open, opened) = std::sync::mpsc::channel::<()>();
    ok(kernel(one, &[], &[range(region, 64)], move || {
        started.send(()).expect("the test waits");
        let _ = opened.recv();
        poke(region, 64, 1);
    }));
    fill(region, 2, 64, one);
    has_started.recv().expect("it runs");
    // Forbidden, then of other memory that nobody was allowed to use.
    ok(allow(region, CHUNK, 0, 0));
    // Of the two writes the last one is known, and comes after the first.
    found(&["64 bytes", "forbidden while in use: cuMemsetD8Async"]);
    ok(unmap(region, CHUNK));
    ok(map(region, CHUNK, second));
    drop(open);
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::ILLEGAL_ADDRESS);
    reset_violations();
    ok(allow(region, CHUNK, 0, 3));
    assert_eq!(read(region, 1, one), [1]);
    ok(unmap(region, CHUNK));
    ok(map(region, CHUNK, first));
    ok(allow(region, CHUNK, 0, 1));
    assert_eq!(read(region, 1, one), [0]);
    no_violations();
}

#[test]
fn freeing_pinned_memory_in_use_is_found_and_freeing_device_memory_waits() {
    let (_session, one, _, block) = setting(&[("latency_us", "500")]);
    let host = pinned(64);
    ok(cu!(cuMemcpyHtoDAsync_v2(block => u64, host => u64, 64 => usize, one => usize)));
    ok(cu!(cuMemFree_v2(block => u64)));
    no_violations();
    let (block, host_too) = (allocate(64), pinned(64));
    ok(cu!(cuMemFreeHost(host => u64)));
    no_violations();
    ok(cu!(cuMemcpyHtoDAsync_v2(block => u64, host_too => u64, 64 => usize, one => usize)));
    ok(cu!(cuMemFreeHost(host_too => u64)));
    found(&["freed while in use", "cuMemcpyHtoDAsync_v2"]);
}

#[test]
fn accesses_of_the_host_take_part() {
    let (_session, one, _, block) = setting(&[]);
    let host = pinned(64);
    host_access(host, 64, true);
    ok(cu!(cuMemcpyHtoDAsync_v2(block => u64, host => u64, 64 => usize, one => usize)));
    host_access(host, 64, false);
    no_violations();
    host_access(host + 60, 4, true);
    found(&["the host writes 4 bytes", "cuMemcpyHtoDAsync_v2", "which reads them"]);
    synchronize(one);
    host_access(host, 64, true);
    no_violations();
}

#[test]
fn work_of_two_gpus_is_ordered_by_events_alone() {
    let _session = start(&[("gpus", "2")]);
    let (one, block) = (stream(), allocate(64));
    fill(block, 1, 64, one);
    let event = record(one);
    enter(1);
    let (other, near) = (stream(), allocate(64));
    copy(near, block, 64, other);
    found(&["cuMemcpyDtoDAsync_v2", "reads 64 bytes", "cuMemsetD8Async"]);
    wait(other, event);
    copy(near, block, 64, other);
    assert_eq!(read(near, 64, other), [1; 64]);
    no_violations();
    // Freeing waits for the GPU that the memory is of, not for the other one.
    let open = gate(other, &[], &[]);
    copy(near, block, 64, other);
    enter(0);
    ok(cu!(cuMemFree_v2(block => u64)));
    found(&["freed while in use", "cuMemcpyDtoDAsync_v2"]);
    drop(open);
}

#[test]
fn latency_lets_what_is_not_ordered_go_wrong() {
    let (_session, one, other, block) = setting(&[]);
    fill(block, 1, 64, one);
    synchronize(one);
    let open = gate(one, &[], &[]);
    fill(block, 2, 64, one);
    // The copy should wait for the fill, and does not.
    let result = allocate(64);
    copy(result, block, 64, other);
    assert_eq!(read(result, 64, other), [1; 64]);
    drop(open);
    synchronize(one);
    found(&["cuMemcpyDtoDAsync_v2", "not ordered after cuMemsetD8Async"]);
}
