//! Graphs that a stream was captured into, and their picture.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::common::*;

use super::calls::*;

#[test]
fn a_captured_stream_does_nothing_until_its_graph_is_launched() {
    let _session = start(&[]);
    let (stream, graph, a, b) = (stream(), graph(), allocate(8), allocate(8));
    let first = add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    ok(cu!(cuStreamBeginCaptureToGraph(
        stream => usize, graph => u64, [first].as_ptr() => *const u64, 0 => usize, 1 => usize, 1 => c_uint
    )));
    assert_eq!(capturing(stream), 1);
    copy(b, a, 8, stream);
    fill(a, 2, 8, stream);
    assert_eq!(end_capture(stream), Ok(graph));
    assert_eq!(capturing(stream), 0);
    assert_eq!((read(a, 8, stream), read(b, 8, stream)), (vec![0; 8], vec![0; 8]));
    let nodes = nodes_of(graph);
    assert_eq!(nodes.iter().map(|&node| kind(node)).collect::<Vec<_>>(), [2, 1, 2]);
    ok(launch(instantiate(graph).expect("an executable graph"), stream));
    assert_eq!((read(a, 8, stream), read(b, 8, stream)), (vec![2; 8], vec![1; 8]));
    // Without a graph the capture makes one.
    ok(cu!(cuStreamBeginCapture_v2(stream => usize, 0 => c_uint)));
    fill(b, 7, 8, stream);
    let own = end_capture(stream).expect("a graph");
    ok(launch(instantiate(own).expect("an executable graph"), stream));
    assert_eq!(read(b, 8, stream), [7; 8]);
    no_violations();
}

#[test]
fn what_cannot_be_captured_spoils_the_capture() {
    let _session = start(&[]);
    let (one, other, a) = (stream(), stream(), allocate(8));
    // In a mode that forbids nothing by itself.
    let begin = |stream: usize| cu!(cuStreamBeginCapture_v2(stream => usize, 2 => c_uint));
    ok(begin(one));
    assert_eq!(begin(one), status::ILLEGAL_STATE);
    found(&["is being captured already"]);
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["cuStreamSynchronize", "is being captured"]);
    assert_eq!(capturing(one), 2);
    assert_eq!(cu!(cuMemsetD8Async(a => u64, 1 => u8, 8 => usize, one => usize)), status::STREAM_CAPTURE_INVALIDATED);
    assert_eq!(end_capture(one), Err(status::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(end_capture(one), Err(status::ILLEGAL_STATE));
    found(&["is not being captured"]);

    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    ok(begin(one));
    type Run = extern "C" fn(*mut c_void);
    let (run, argument) = boxed(move || seen.store(true, Ordering::SeqCst));
    assert_eq!(
        cu!(cuLaunchHostFunc(one => usize, run => Run, argument => *mut c_void)),
        status::STREAM_CAPTURE_UNSUPPORTED
    );
    found(&["cuLaunchHostFunc cannot become a node"]);
    assert_eq!(end_capture(one), Err(status::STREAM_CAPTURE_INVALIDATED));
    assert!(!ran.load(Ordering::SeqCst));

    let event = record(other);
    ok(begin(one));
    assert_eq!(cu!(cuStreamWaitEvent(one => usize, event => usize, 0 => c_uint)), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["cuStreamWaitEvent cannot become a node"]);
    assert_eq!(end_capture(one), Err(status::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(begin(0), status::STREAM_CAPTURE_UNSUPPORTED);
    found(&["the default stream cannot be captured"]);
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
            ok(cu!(cuStreamBeginCapture_v2(one => usize, capture => c_uint)));
            let mut call = || {
                ok(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_uint)));
                let code = cu!(cuEventQuery(event => usize));
                ok(cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_uint)));
                code
            };
            let code = if own { call() } else { thread::scope(|scope| scope.spawn(call).join()).expect("no panic") };
            assert_eq!(code == status::SUCCESS, allowed, "own {own}, capture {capture}, thread {mode}: {code}");
            assert_eq!(end_capture(one).is_ok(), allowed);
            if !allowed {
                found(&["cuEventQuery", "keeps such calls from this thread"]);
            }
        }
    }
    assert_eq!(cu!(cuStreamBeginCapture_v2(one => usize, 3 => c_uint)), status::INVALID_VALUE);
    found(&["3 is no mode"]);
    no_violations();
}

#[test]
fn a_graph_is_printed_with_its_nodes_and_edges() {
    let _session = start(&[]);
    let (parent, child, a) = (graph(), graph(), allocate(8));
    let first = add_fill(parent, &[], &bytes(a, 1, 8)).expect("a fill");
    let second = add_copy(parent, &[first], &row(a + 4, a, 4)).expect("a copy");
    add_fill(child, &[], &bytes(a, 1, 8)).expect("a fill");
    add_child(parent, child);
    let path = std::env::temp_dir().join(format!("fake_cuda_graph_{}.dot", std::process::id()));
    let name = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    ok(cu!(cuGraphDebugDotPrint(parent => u64, name.as_ptr() => *const c_char, 1 => c_int)));
    let text = fs::read_to_string(&path).expect("the file");
    fs::remove_file(&path).expect("the file");
    assert!(text.contains(&format!("n{first:x} -> n{second:x};")), "{text}");
    assert!(text.contains("subgraph cluster") && text.matches("memset node").count() == 2, "{text}");
    no_violations();
}
