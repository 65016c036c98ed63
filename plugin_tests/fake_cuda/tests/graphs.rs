//! Graphs: what they keep of the order and of the time when they were made, and what they refuse.

mod common;

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::*;
use fake_cuda::control::count;

const PTX: &str = ".version 8.0
.target sm_90
.address_size 64
.visible .entry put(
    .param .u64 .ptr .global .align 4 place,
    .param .u32 value
)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [place];
    ld.param.u32 %r1, [value];
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
struct Fill {
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default)]
struct Side {
    offsets: [usize; 4],
    kind: u32,
    host: u64,
    device: u64,
    rest: [usize; 4],
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
struct Copy {
    from: Side,
    to: Side,
    sides: [usize; 3],
}

/// `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
struct Kernel {
    function: usize,
    shape: [u32; 7],
    values: *const *const c_void,
    extra: usize,
}

fn bytes(to: u64, value: u32, width: usize) -> Fill {
    Fill { to, pitch: 0, value, element: 1, width, height: 1 }
}

fn device(address: u64) -> Side {
    Side { kind: 2, device: address, ..Side::default() }
}

fn row(to: u64, from: u64, width: usize) -> Copy {
    Copy { from: device(from), to: device(to), sides: [width, 1, 1] }
}

fn graph() -> u64 {
    let mut graph = 0;
    ok(cu!(cuGraphCreate(&raw mut graph => *mut u64, 0 => c_uint)));
    graph
}

fn add_fill(graph: u64, after: &[u64], fill: &Fill) -> Result<u64, u32> {
    let mut node = 0;
    let code = cu!(cuGraphAddMemsetNode(
        &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize, fill => *const Fill,
        enter(0) => usize
    ));
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}

fn add_copy(graph: u64, after: &[u64], copy: &Copy) -> Result<u64, u32> {
    let mut node = 0;
    let code = cu!(cuGraphAddMemcpyNode(
        &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize, copy => *const Copy,
        enter(0) => usize
    ));
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}

fn add_child(graph: u64, child: u64) -> u64 {
    let mut node = 0;
    ok(cu!(cuGraphAddChildGraphNode(
        &raw mut node => *mut u64, graph => u64, [0; 0].as_ptr() => *const u64, 0 => usize, child => u64
    )));
    node
}

fn instantiate(graph: u64) -> Result<u64, u32> {
    let mut executable = 0;
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut executable => *mut u64, graph => u64, 0 => u64));
    if code == status::SUCCESS { Ok(executable) } else { Err(code) }
}

fn launch(executable: u64, stream: usize) -> u32 {
    cu!(cuGraphLaunch(executable => u64, stream => usize))
}

fn set_fill(executable: u64, node: u64, fill: &Fill) -> u32 {
    cu!(cuGraphExecMemsetNodeSetParams(executable => u64, node => u64, fill => *const Fill, enter(0) => usize))
}

/// The kernel of `PTX`, and its module.
fn kernel_and_module() -> (usize, usize) {
    let (mut module, mut function) = (0, 0);
    let (text, name) = (CString::new(PTX).expect("no NUL"), CString::new("put").expect("no NUL"));
    ok(cu!(cuModuleLoadData(&raw mut module => *mut usize, text.as_ptr() => *const c_char)));
    ok(cu!(cuModuleGetFunction(
        &raw mut function => *mut usize, module => usize, name.as_ptr() => *const c_char
    )));
    (function, module)
}

/// Calls `with` with the parameters of a node that puts `value` to `to`.
fn with_kernel<R>(function: usize, to: u64, value: u32, with: impl FnOnce(*const Kernel) -> R) -> R {
    let values = [(&raw const to).cast(), (&raw const value).cast()];
    with(&Kernel { function, shape: [1, 1, 1, 1, 1, 1, 0], values: values.as_ptr(), extra: 0 })
}

fn add_kernel(graph: u64, after: &[u64], function: usize, to: u64, value: u32) -> Result<u64, u32> {
    let mut node = 0;
    let code = with_kernel(function, to, value, |kernel| {
        cu!(cuGraphAddKernelNode_v2(
            &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize,
            kernel => *const Kernel
        ))
    });
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}

fn nodes_of(graph: u64) -> Vec<u64> {
    let mut count = 0usize;
    ok(cu!(cuGraphGetNodes(graph => u64, 0 => usize, &raw mut count => *mut usize)));
    let mut nodes = vec![7; count + 1];
    count += 1;
    ok(cu!(cuGraphGetNodes(graph => u64, nodes.as_mut_ptr() => *mut u64, &raw mut count => *mut usize)));
    assert_eq!(nodes.pop(), Some(0), "what is no node is zero");
    assert_eq!(count, nodes.len());
    nodes
}

fn kind(node: u64) -> u32 {
    let mut kind = 99;
    ok(cu!(cuGraphNodeGetType(node => u64, &raw mut kind => *mut u32)));
    kind
}

fn capturing(stream: usize) -> u32 {
    let mut answer = 9;
    ok(cu!(cuStreamIsCapturing(stream => usize, &raw mut answer => *mut u32)));
    answer
}

fn end_capture(stream: usize) -> Result<u64, u32> {
    let mut graph = 0;
    let code = cu!(cuStreamEndCapture(stream => usize, &raw mut graph => *mut u64));
    if code == status::SUCCESS { Ok(graph) } else { Err(code) }
}

#[test]
fn nodes_run_in_the_order_of_their_dependencies_whenever_they_were_added() {
    let _session = start(&[]);
    let (stream, graph, a, b) = (stream(), graph(), allocate(64), allocate(64));
    let copy = add_copy(graph, &[], &row(b, a, 64)).expect("a copy");
    let last = add_fill(graph, &[copy], &bytes(a, 2, 64)).expect("a fill");
    let first = add_fill(graph, &[], &bytes(a, 1, 64)).expect("a fill");
    ok(cu!(cuGraphAddDependencies_v2(
        graph => u64, [first].as_ptr() => *const u64, [copy].as_ptr() => *const u64, 0 => usize, 1 => usize
    )));
    let executable = instantiate(graph).expect("an executable graph");
    ok(launch(executable, stream));
    assert_eq!((read(a, 64, stream), read(b, 64, stream)), (vec![2; 64], vec![1; 64]));
    // And again, each time.
    fill(b, 0, 64, stream);
    ok(launch(executable, stream));
    assert_eq!(read(b, 64, stream), [1; 64]);
    assert_eq!(nodes_of(graph), [copy, last, first]);
    let (mut count, mut root) = (1usize, 0u64);
    ok(cu!(cuGraphGetRootNodes(graph => u64, &raw mut root => *mut u64, &raw mut count => *mut usize)));
    assert_eq!((count, root), (1, first));
    assert_eq!([copy, last].map(kind), [1, 2]);
    no_violations();
}

#[test]
fn elements_of_two_bytes_are_filled_whole_and_in_odd_numbers() {
    let _session = start(&[]);
    let (stream, graph, buffer) = (stream(), graph(), allocate(8));
    let words = Fill { element: 2, ..bytes(buffer, 0x0201, 3) };
    add_fill(graph, &[], &words).expect("a fill");
    ok(launch(instantiate(graph).expect("an executable graph"), stream));
    assert_eq!(read(buffer, 8, stream), [1, 2, 1, 2, 1, 2, 0, 0]);
    no_violations();
}

#[test]
fn an_executable_graph_is_a_snapshot() {
    let _session = start(&[]);
    let (stream, graph, a, b) = (stream(), graph(), allocate(8), allocate(8));
    add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    let executable = instantiate(graph).expect("an executable graph");
    add_fill(graph, &[], &bytes(b, 1, 8)).expect("a fill");
    ok(launch(executable, stream));
    assert_eq!((read(a, 8, stream), read(b, 8, stream)), (vec![1; 8], vec![0; 8]));
    ok(cu!(cuGraphDestroy(graph => u64)));
    fill(a, 0, 8, stream);
    ok(launch(executable, stream));
    assert_eq!(read(a, 8, stream), [1; 8]);
    // What was launched runs on without it.
    let open = gate(stream, &[], &[]);
    fill(a, 0, 8, stream);
    ok(launch(executable, stream));
    ok(cu!(cuGraphExecDestroy(executable => u64)));
    drop(open);
    assert_eq!(read(a, 8, stream), [1; 8]);
    no_violations();
    assert_eq!(launch(executable, stream), status::INVALID_VALUE);
    found(&["cuGraphLaunch", "no executable graph"]);
    assert_eq!(instantiate(graph), Err(status::INVALID_VALUE));
    found(&["no graph, or was destroyed before"]);
}

#[test]
fn nodes_of_an_executable_graph_change_from_the_next_launch_on() {
    let _session = start(&[]);
    let (stream, graph, a, b) = (stream(), graph(), allocate(8), allocate(8));
    let filled = add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    let copied = add_copy(graph, &[filled], &row(b, a, 8)).expect("a copy");
    let executable = instantiate(graph).expect("an executable graph");
    let open = gate(stream, &[], &[]);
    ok(launch(executable, stream));
    ok(set_fill(executable, filled, &bytes(a, 5, 8)));
    drop(open);
    assert_eq!(read(b, 8, stream), [1; 8]);
    ok(cu!(cuGraphExecMemcpyNodeSetParams(
        executable => u64, copied => u64, &row(b + 4, a, 4) => *const Copy, enter(0) => usize
    )));
    ok(launch(executable, stream));
    assert_eq!(read(b, 8, stream), [1, 1, 1, 1, 5, 5, 5, 5]);
    no_violations();

    assert_eq!(set_fill(executable, copied, &bytes(a, 5, 8)), status::INVALID_VALUE);
    found(&["is a memcpy node, no memset node"]);
    let later = add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    assert_eq!(set_fill(executable, later, &bytes(a, 5, 8)), status::INVALID_VALUE);
    found(&["has no node"]);
    assert_eq!(set_fill(executable + 1, filled, &bytes(a, 5, 8)), status::INVALID_VALUE);
    found(&["no executable graph"]);
}

#[test]
fn cycles_and_strangers_are_refused() {
    let _session = start(&[]);
    let (one, other, buffer) = (graph(), graph(), allocate(8));
    let first = add_fill(one, &[], &bytes(buffer, 1, 8)).expect("a fill");
    let second = add_fill(one, &[first], &bytes(buffer, 2, 8)).expect("a fill");
    assert_eq!(add_fill(other, &[first], &bytes(buffer, 1, 8)), Err(status::INVALID_VALUE));
    found(&["is of the graph", "not of"]);
    assert_eq!(add_fill(one, &[first + 1], &bytes(buffer, 1, 8)), Err(status::INVALID_VALUE));
    found(&["is no node"]);
    assert_eq!(add_fill(one, &[first, first], &bytes(buffer, 1, 8)), Err(status::INVALID_VALUE));
    found(&["named twice"]);
    ok(cu!(cuGraphAddDependencies(
        one => u64, [second].as_ptr() => *const u64, [first].as_ptr() => *const u64, 1 => usize
    )));
    assert_eq!(instantiate(one), Err(status::INVALID_VALUE));
    found(&["has a cycle", &format!("{first:#x}, {second:#x}")]);
    ok(cu!(cuGraphDestroy(one => u64)));
    assert_eq!(cu!(cuGraphDestroy(one => u64)), status::INVALID_VALUE);
    found(&["cuGraphDestroy", "destroyed before"]);
    assert_eq!(add_fill(one, &[], &bytes(buffer, 1, 8)), Err(status::INVALID_VALUE));
    found(&["destroyed before"]);
    let mut kind = 0;
    assert_eq!(cu!(cuGraphNodeGetType(first => u64, &raw mut kind => *mut u32)), status::INVALID_VALUE);
    found(&["its graph was destroyed"]);
}

#[test]
fn what_is_not_known_is_refused_with_what_is() {
    let _session = start(&[]);
    let (graph, buffer) = (graph(), allocate(8));
    assert_eq!(add_fill(graph, &[], &Fill { height: 2, ..bytes(buffer, 1, 4) }), Err(status::NOT_SUPPORTED));
    found(&["a fill of 2 rows"]);
    assert_eq!(add_fill(graph, &[], &Fill { element: 3, ..bytes(buffer, 1, 2) }), Err(status::INVALID_VALUE));
    found(&["elements of 3 bytes; 1, 2 and 4 are allowed"]);
    assert_eq!(add_fill(graph, &[], &Fill { element: 4, ..bytes(buffer + 2, 1, 1) }), Err(status::INVALID_VALUE));
    found(&["no multiple of 4"]);
    assert_eq!(
        add_copy(graph, &[], &Copy { sides: [2, 2, 1], ..row(buffer + 4, buffer, 2) }),
        Err(status::NOT_SUPPORTED)
    );
    found(&["2 rows in 1 layers"]);
    let array = Side { kind: 3, ..Side::default() };
    assert_eq!(add_copy(graph, &[], &Copy { from: array, ..row(buffer, buffer, 2) }), Err(status::NOT_SUPPORTED));
    found(&["no arrays"]);
    let conditional = [13u32; 64];
    let mut node = 0;
    let code = cu!(cuGraphAddNode_v2(
        &raw mut node => *mut u64, graph => u64, 0 => usize, 0 => usize, 0 => usize, conditional.as_ptr() => *const u32
    ));
    assert_eq!(code, status::NOT_SUPPORTED);
    found(&["a node of the type 13"]);
    assert_eq!(nodes_of(graph), [0; 0]);
}

#[test]
fn a_launch_checks_all_nodes_before_any_runs() {
    let _session = start(&[]);
    let (stream, graph, a, b) = (stream(), graph(), allocate(8), allocate(8));
    let first = add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    let second = add_fill(graph, &[first], &bytes(b, 1, 8)).expect("a fill");
    let executable = instantiate(graph).expect("an executable graph");
    ok(cu!(cuMemFree_v2(b => u64)));
    assert_eq!(launch(executable, stream), status::INVALID_VALUE);
    found(&["cuGraphLaunch", "memset node", &format!("{second:#x}"), "not in a GPU's memory"]);
    assert_eq!(read(a, 8, stream), [0; 8]);
    no_violations();
}

#[test]
fn nodes_race_like_other_operations() {
    let _session = start(&[]);
    let (one, other, graph, a, b) = (stream(), stream(), graph(), allocate(8), allocate(8));
    add_copy(graph, &[], &row(b, a, 8)).expect("a copy");
    let executable = instantiate(graph).expect("an executable graph");
    ok(launch(executable, one));
    wait(other, record(one));
    fill(a, 1, 8, other);
    no_violations();
    ok(launch(executable, one));
    found(&["memcpy node", "reads 8 bytes", "cuMemsetD8Async"]);
}

#[test]
fn launches_of_one_executable_graph_come_one_after_another() {
    let _session = start(&[]);
    let (one, other, graph, a) = (stream(), stream(), graph(), allocate(8));
    add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    let executable = instantiate(graph).expect("an executable graph");
    let open = gate(one, &[], &[]);
    ok(launch(executable, one));
    ok(launch(executable, other));
    assert!(!is_done(other));
    no_violations();
    // Another one of the same graph is not kept from running beside it.
    ok(launch(instantiate(graph).expect("an executable graph"), one));
    found(&["memset node", "not ordered after"]);
    drop(open);
    synchronize(other);
}

#[test]
fn a_child_graph_is_a_copy_and_takes_over_another_one_that_fits() {
    let _session = start(&[]);
    let (stream, parent, child, a) = (stream(), graph(), graph(), allocate(8));
    let inner = add_fill(child, &[], &bytes(a, 1, 8)).expect("a fill");
    let node = add_child(parent, child);
    assert_eq!(kind(node), 4);
    add_fill(child, &[inner], &bytes(a, 2, 8)).expect("a fill");
    let executable = instantiate(parent).expect("an executable graph");
    ok(launch(executable, stream));
    assert_eq!(read(a, 8, stream), [1; 8]);

    let mut inside = 0;
    ok(cu!(cuGraphChildGraphNodeGetGraph(node => u64, &raw mut inside => *mut u64)));
    let [twin] = nodes_of(inside)[..] else { panic!("one node") };
    assert_ne!((inside, twin), (child, inner));
    ok(set_fill(executable, twin, &bytes(a, 3, 8)));
    ok(launch(executable, stream));
    assert_eq!(read(a, 8, stream), [3; 8]);

    let fits = graph();
    add_fill(fits, &[], &bytes(a, 4, 8)).expect("a fill");
    ok(cu!(cuGraphExecChildGraphNodeSetParams(executable => u64, node => u64, fits => u64)));
    ok(launch(executable, stream));
    assert_eq!(read(a, 8, stream), [4; 8]);
    // The node inside is still known by the same handle.
    ok(set_fill(executable, twin, &bytes(a, 5, 8)));
    ok(launch(executable, stream));
    assert_eq!(read(a, 8, stream), [5; 8]);
    no_violations();

    assert_eq!(
        cu!(cuGraphExecChildGraphNodeSetParams(executable => u64, node => u64, child => u64)),
        status::GRAPH_EXEC_UPDATE_FAILURE
    );
    found(&["does not fit", "it has 2 nodes, not 1"]);
    assert_eq!(cu!(cuGraphDestroy(inside => u64)), status::INVALID_VALUE);
    found(&["is the child graph of the node"]);
    ok(cu!(cuGraphDestroy(parent => u64)));
    let mut count = 0;
    assert_eq!(cu!(cuGraphGetNodes(inside => u64, 0 => usize, &raw mut count => *mut usize)), status::INVALID_VALUE);
    found(&["no graph, or was destroyed before"]);
}

#[test]
fn kernels_keep_their_arguments_and_their_module() {
    let _session = start(&[]);
    let (stream, graph, a) = (stream(), graph(), allocate(8));
    let (function, module) = kernel_and_module();
    let first = add_kernel(graph, &[], function, a, 1).expect("a kernel");
    let second = add_kernel(graph, &[first], function, a + 4, 2).expect("a kernel");
    assert_eq!(kind(second), 0);
    let value = [3u8; 64];
    let mut told = [0u8; 64];
    ok(cu!(cuGraphKernelNodeSetAttribute(second => u64, 8 => c_uint, value.as_ptr() => *const u8)));
    ok(cu!(cuGraphKernelNodeGetAttribute(second => u64, 8 => c_uint, told.as_mut_ptr() => *mut u8)));
    assert_eq!(told, value);
    let executable = instantiate(graph).expect("an executable graph");
    ok(launch(executable, stream));
    let updates = count("cuGraphExecKernelNodeSetParams_v2");
    let update = |to| {
        with_kernel(
            function,
            to,
            3,
            |kernel| cu!(cuGraphExecKernelNodeSetParams_v2(executable => u64, first => u64, kernel => *const Kernel)),
        )
    };
    ok(update(a + 4));
    assert_eq!(count("cuGraphExecKernelNodeSetParams_v2"), updates + 1);
    ok(launch(executable, stream));
    synchronize(stream);
    no_violations();

    let gone = allocate(8);
    ok(cu!(cuMemFree_v2(gone => u64)));
    let hole = reserve(CHUNK);
    ok(update(hole));
    assert_eq!(launch(executable, stream), status::INVALID_VALUE);
    found(&["kernel node", &format!("{first:#x}"), "an argument of put", "nothing is mapped"]);
    ok(update(a));
    ok(cu!(cuModuleUnload(module => usize)));
    assert_eq!(launch(executable, stream), status::INVALID_HANDLE);
    found(&["kernel node", "its module was unloaded"]);
    let filled = add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    assert_eq!(
        cu!(cuGraphKernelNodeSetAttribute(filled => u64, 8 => c_uint, value.as_ptr() => *const u8)),
        status::INVALID_VALUE
    );
    found(&["is a memset node, no kernel node"]);
}

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
    let begin = |stream: usize| cu!(cuStreamBeginCapture_v2(stream => usize, 0 => c_uint));
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
