//! Streams that are captured: who spoils that, and who does not.

use std::{
    ffi::{c_uint, c_void},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::common::*;

fn begin(stream: usize, mode: c_uint) -> u32 {
    cu!(cuStreamBeginCapture_v2(stream => usize, mode => c_uint))
}

/// Its status.
fn end(stream: usize) -> u32 {
    let mut graph = 0;
    cu!(cuStreamEndCapture(stream => usize, &raw mut graph => *mut u64))
}

#[test]
fn what_a_captured_stream_does_not_take_spoils_its_capture() {
    let _session = start(&[]);
    let (one, other, a) = (stream(), stream(), allocate(8));
    // In a mode that forbids nothing by itself.
    ok(begin(one, 2));
    assert_eq!(begin(one, 2), status::ILLEGAL_STATE);
    found(&["is being captured already"]);
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["cuStreamSynchronize", "is being captured"]);
    assert_eq!(end(one), status::STREAM_CAPTURE_INVALIDATED);
    assert_eq!(end(one), status::ILLEGAL_STATE);
    found(&["is not being captured"]);

    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    ok(begin(one, 2));
    type Run = extern "C" fn(*mut c_void);
    let (run, argument) = boxed(move || seen.store(true, Ordering::SeqCst));
    assert_eq!(
        cu!(cuLaunchHostFunc(one => usize, run => Run, argument => *mut c_void)),
        status::STREAM_CAPTURE_UNSUPPORTED
    );
    found(&["cuLaunchHostFunc", "is being captured"]);
    assert_eq!(end(one), status::STREAM_CAPTURE_INVALIDATED);
    assert!(!ran.load(Ordering::SeqCst));

    let event = record(other);
    ok(begin(one, 2));
    assert_eq!(cu!(cuStreamWaitEvent(one => usize, event => usize, 0 => c_uint)), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["cuStreamWaitEvent", "is being captured"]);
    assert_eq!(end(one), status::STREAM_CAPTURE_INVALIDATED);
    assert_eq!(begin(0, 2), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["the default stream cannot be captured"]);

    // A wait for the whole GPU, by a thread that captures nothing.
    ok(begin(one, 2));
    let code = thread::scope(|scope| {
        let wait = || {
            enter(0);
            cu!(cuCtxSynchronize())
        };
        scope.spawn(wait).join()
    });
    assert_eq!(code.expect("no panic"), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["cuCtxSynchronize", "1 stream(s) of the GPU are being captured"]);
    assert_eq!(end(one), status::STREAM_CAPTURE_INVALIDATED);
    // The stream is as any other again.
    fill(a, 1, 8, one);
    assert_eq!(read(a, 8, one), [1; 8]);
    no_violations();
}

#[test]
fn a_capture_keeps_threads_from_unsafe_calls_by_both_modes() {
    let _session = start(&[]);
    let (one, event) = (stream(), event());
    // The thread that captures is kept from them by any mode but the relaxed; others by the global one, if theirs is
    // global too.
    for (own, capture, expected) in [
        (true, 0, [false, false, true]),
        (true, 1, [false, false, true]),
        (true, 2, [true, true, true]),
        (false, 0, [false, true, true]),
        (false, 1, [true, true, true]),
        (false, 2, [true, true, true]),
    ] {
        for (mut mode, allowed) in expected.into_iter().enumerate().map(|(mode, allowed)| (mode as u32, allowed)) {
            ok(begin(one, capture));
            let mut call = || {
                ok(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_uint)));
                let code = cu!(cuEventQuery(event => usize));
                ok(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_uint)));
                code
            };
            let code = if own { call() } else { thread::scope(|scope| scope.spawn(call).join()).expect("no panic") };
            assert_eq!(code == status::SUCCESS, allowed, "own {own}, capture {capture}, thread {mode}: {code}");
            assert_eq!(end(one) == status::SUCCESS, allowed);
            if !allowed {
                found(&["cuEventQuery", "keeps such calls from this thread"]);
            }
        }
    }
    assert_eq!(begin(one, 3), status::INVALID_VALUE);
    found(&["3 is no mode"]);
    no_violations();
}
