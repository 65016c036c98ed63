//! Graphs: what they keep of the order and of the time when they were made, and what they refuse.

mod calls;
mod capture;

use crate::common::*;
use calls::*;

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
fn nodes_of_any_kind_are_added_by_one_function() {
    /// `CUDA_MEMCPY_NODE_PARAMS`.
    #[repr(C)]
    struct CopyNode {
        flags: [u32; 2],
        context: usize,
        copy: Copy,
    }
    let _session = start(&[]);
    let (stream, graph, a, b) = (stream(), graph(), allocate(8), allocate(8));
    let copy = |flags| CopyNode { flags: [flags, 0], context: enter(0), copy: row(b, a, 8) };
    let first = add(graph, &[], 2, bytes(a, 7, 8)).expect("a fill");
    assert_eq!(add(graph, &[first], 1, copy(1)), Err(status::INVALID_VALUE));
    found(&["flags are 0x1"]);
    let second = add(graph, &[first], 1, copy(0)).expect("a copy");
    add(graph, &[second], 2, bytes(a, 1, 8)).expect("a fill");
    let executable = instantiate(graph).expect("an executable graph");
    ok(launch(executable, stream));
    assert_eq!(read(b, 8, stream), [7; 8]);
    assert_eq!(read(a, 8, stream), [1; 8]);
    // And changed by one.
    ok(set(executable, first, 2, bytes(a, 9, 8)));
    ok(set(executable, second, 1, CopyNode { copy: row(b, a, 4), ..copy(0) }));
    ok(launch(executable, stream));
    assert_eq!(read(b, 8, stream), [9, 9, 9, 9, 7, 7, 7, 7]);
    assert_eq!(set(executable, second, 2, bytes(a, 9, 8)), status::INVALID_VALUE);
    found(&["is a memcpy node, no memset node"]);
    no_violations();
}

#[test]
fn a_graph_is_moved_into_another_one() {
    /// `CUDA_CHILD_GRAPH_NODE_PARAMS`.
    #[repr(C)]
    struct Child {
        graph: u64,
        ownership: i32,
    }
    let _session = start(&[]);
    let (stream, outer, inner, a, b) = (stream(), graph(), graph(), allocate(8), allocate(8));
    let first = add_fill(inner, &[], &bytes(a, 1, 8)).expect("a fill");
    assert_eq!(add(outer, &[], 4, Child { graph: inner, ownership: 2 }), Err(status::INVALID_VALUE));
    found(&["ownership is 2"]);
    assert_eq!(add(inner, &[], 4, Child { graph: inner, ownership: 1 }), Err(status::INVALID_VALUE));
    found(&["inside of itself"]);
    let node = add(outer, &[], 4, Child { graph: inner, ownership: 1 }).expect("a child graph");
    let mut child = 0;
    ok(cu!(cuGraphChildGraphNodeGetGraph(node => u64, &raw mut child => *mut u64)));
    assert_eq!((child, nodes_of(inner)), (inner, vec![first]), "the same graph");
    assert_eq!(add(outer, &[], 4, Child { graph: inner, ownership: 1 }), Err(status::INVALID_VALUE));
    found(&["is the child graph of the node", "already"]);
    assert_eq!(add(inner, &[], 4, Child { graph: outer, ownership: 1 }), Err(status::INVALID_VALUE));
    found(&["inside of itself"]);
    // Another one is as it is now.
    add(outer, &[node], 4, Child { graph: inner, ownership: 0 }).expect("a copy");
    add_fill(inner, &[first], &bytes(a, 2, 4)).expect("a fill");
    let executable = instantiate(outer).expect("an executable graph");
    ok(launch(executable, stream));
    assert_eq!(read(a, 8, stream), [1; 8], "the copy comes last");
    let other = graph();
    let first = add_fill(other, &[], &bytes(b, 5, 8)).expect("a fill");
    add_fill(other, &[first], &bytes(b, 6, 4)).expect("a fill");
    ok(set(executable, node, 4, Child { graph: other, ownership: 0 }));
    ok(launch(executable, stream));
    assert_eq!(read(b, 8, stream), [6, 6, 6, 6, 5, 5, 5, 5]);
    assert_eq!(cu!(cuGraphDestroy(inner => u64)), status::INVALID_VALUE);
    found(&["which destroys it"]);
    ok(cu!(cuGraphDestroy(outer => u64)));
    no_violations();
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
