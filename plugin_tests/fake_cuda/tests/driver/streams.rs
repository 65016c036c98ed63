//! Streams, events, copies: what is ordered is, and what is not comes in another order when it is slow.

use std::{
    ffi::{c_int, c_uint},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use crate::common::*;

#[test]
fn a_stream_keeps_order_and_others_run_beside_it() {
    let _session = start(&[("latency_us", "300")]);
    let (one, other, buffer) = (stream(), stream(), allocate(64));
    let open = gate(one, &[], &[]);
    fill(buffer, 1, 64, one);
    // The other stream does not wait for the gate.
    let (done, is_over) = mpsc::channel();
    host_function(other, move || done.send(()).expect("the test waits"));
    is_over.recv().expect("it runs");
    assert!(!is_done(one));
    assert_eq!(peek(buffer), 0);
    drop(open);
    assert_eq!(read(buffer, 64, one), [1; 64]);
    no_violations();
}

#[test]
fn a_stream_waits_for_the_record_at_the_time_of_the_call() {
    let _session = start(&[]);
    let (one, other, third) = (stream(), stream(), stream());
    let (open, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let first = gate(one, &[], &[]);
    let event = record(one);
    wait(other, event);
    let seen = [Arc::clone(&open), Arc::clone(&opened)];
    host_function(other, move || seen[1].store(seen[0].load(Ordering::SeqCst), Ordering::SeqCst));
    let second = gate(one, &[], &[]);
    // Recorded anew behind a second gate, which the other stream does not wait for.
    ok(cu!(cuEventRecord(event => usize, one => usize)));
    assert_eq!(cu!(cuEventQuery(event => usize)), status::NOT_READY);
    // Time enough for whoever does not wait.
    fill(allocate(64), 1, 64, third);
    synchronize(third);
    assert!(!is_done(other));
    open.store(true, Ordering::SeqCst);
    drop(first);
    synchronize(other);
    assert!(opened.load(Ordering::SeqCst));
    assert_eq!(cu!(cuEventQuery(event => usize)), status::NOT_READY);
    drop(second);
    ok(cu!(cuEventSynchronize(event => usize)));
    assert!(is_done(one));
    no_violations();
}

#[test]
fn an_event_that_was_never_recorded_is_complete() {
    let _session = start(&[]);
    let (stream, event) = (stream(), event());
    ok(cu!(cuEventQuery(event => usize)));
    ok(cu!(cuEventSynchronize(event => usize)));
    wait(stream, event);
    synchronize(stream);
    no_violations();
}

#[test]
fn pageable_memory_is_staged_and_pinned_memory_is_not() {
    let _session = start(&[]);
    let (stream, buffer, pinned) = (stream(), allocate(16), pinned(16));
    let open = gate(stream, &[], &[]);
    let mut pageable = [1u8; 8];
    ok(cu!(cuMemcpyHtoDAsync_v2(buffer => u64, pageable.as_ptr() => *const u8, 8 => usize, stream => usize)));
    pageable.fill(9);
    poke(pinned, 8, 1);
    ok(cu!(cuMemcpyHtoDAsync_v2(buffer + 8 => u64, pinned => u64, 8 => usize, stream => usize)));
    poke(pinned, 8, 2);
    drop(open);
    assert_eq!(read(buffer, 16, stream), [[1; 8], [2; 8]].concat());
    // To pinned memory the copy is as asynchronous.
    let open = gate(stream, &[], &[]);
    ok(cu!(cuMemcpyDtoHAsync_v2(pinned + 8 => u64, buffer => u64, 8 => usize, stream => usize)));
    assert_eq!(peek(pinned + 8), 0);
    drop(open);
    synchronize(stream);
    assert_eq!(peek(pinned + 8), 1);
    no_violations();
}

#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let _session = start(&[]);
    let mut blocking = 0;
    ok(cu!(cuStreamCreate(&raw mut blocking => *mut usize, 0 => c_uint)));
    let (free, order) = (stream(), Arc::new(Mutex::new(Vec::new())));
    let note = |stream, name| {
        let order = Arc::clone(&order);
        host_function(stream, move || order.lock().expect("whole").push(name));
    };
    let open = gate(blocking, &[], &[]);
    note(blocking, "blocking");
    note(0, "default");
    note(blocking, "blocking again");
    note(free, "free");
    synchronize(free);
    drop(open);
    synchronize(0);
    synchronize(blocking);
    assert_eq!(*order.lock().expect("whole"), ["free", "blocking", "default", "blocking again"]);
    no_violations();
}

#[test]
fn a_destroyed_stream_does_what_it_has() {
    let _session = start(&[]);
    let (stream, buffer) = (stream(), allocate(8));
    let open = gate(stream, &[], &[]);
    fill(buffer, 7, 8, stream);
    ok(cu!(cuStreamDestroy_v2(stream => usize)));
    assert_eq!(cu!(cuStreamDestroy_v2(stream => usize)), status::INVALID_HANDLE);
    found(&["cuStreamDestroy_v2", "destroyed before"]);
    drop(open);
    ok(cu!(cuCtxSynchronize()));
    assert_eq!(peek(buffer), 7);
}

#[test]
fn functions_of_the_host_may_not_call_the_driver() {
    let _session = start(&[]);
    let stream = stream();
    let (tell, told) = mpsc::channel();
    host_function(stream, move || {
        let mut count: c_int = 0;
        tell.send(cu!(cuDeviceGetCount(&raw mut count => *mut c_int))).expect("the test waits");
    });
    assert_eq!(told.recv(), Ok(status::NOT_PERMITTED));
    found(&["cuDeviceGetCount", "cuLaunchHostFunc"]);
}
