//! Graphs, and the capture of streams.

use std::ffi::{c_char, c_uint};

use super::{In, NO_BINARY, Out, call, functions, memory::sides};
use crate::{
    code_object,
    ffi::graphs::{Count, FillParameters, write_dot},
    graph::{self, Task, capture, executable},
    state::Driver,
    status::{self, Answer, Status, misuse},
};

/// `hipMemsetParams`, whose fields have another order than CUDA's.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fill {
    to: u64,
    element: c_uint,
    height: usize,
    pitch: usize,
    value: c_uint,
    width: usize,
}

/// `hipKernelNodeParams`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Kernel {
    block: [c_uint; 3],
    extra: usize,
    function: usize,
    grid: [c_uint; 3],
    values: usize,
    shared: c_uint,
}

// As `driver_types.h` of ROCm 6.3 has them, compiled.
const _: () = {
    assert!(size_of::<Fill>() == 48 && std::mem::offset_of!(Fill, value) == 32);
    assert!(size_of::<Kernel>() == 64 && std::mem::offset_of!(Kernel, function) == 24);
};

impl Fill {
    fn task(self) -> Answer<Task> {
        let Self { to, element, height, pitch, value, width } = self;
        FillParameters { to, pitch, value, element, width, height }.task()
    }
}

fn copy(to: u64, from: u64, bytes: usize, kind: c_uint) -> Answer<Task> {
    let (source, target) = sides(kind)?;
    Ok(Task::Copy { to: (target, to), from: (source, from), bytes: bytes as u64 })
}

/// Refuses a node that would run machine code.
fn kernel(driver: &Driver, parameters: &In<Kernel>) -> Answer {
    code_object::refuse(driver, parameters.get()?.function as u64)?;
    Err(NO_BINARY.into())
}

functions! {
    call hipGraphCreate(graph: Out<u64>, flags: c_uint) |driver| {
        if flags != 0 {
            return Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}, not 0")));
        }
        graph.checked()?.put(graph::create(driver))
    };
    call hipGraphDestroy(graph: u64) |driver| graph::destroy(driver, graph);
    call hipGraphAddKernelNode(
        _node: Out<u64>, _graph: u64, _after: In<u64>, _count: usize, parameters: In<Kernel>
    ) |driver| kernel(driver, &parameters);
    call hipGraphAddMemcpyNode1D(
        node: Out<u64>, graph: u64, after: In<u64>, count: usize, to: u64, from: u64, bytes: usize, kind: c_uint
    ) |driver| node.checked()?.put(graph::add(driver, graph, &after.list(count)?, copy(to, from, bytes, kind)?)?);
    call hipGraphAddMemsetNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, parameters: In<Fill>) |driver| {
        node.checked()?.put(graph::add(driver, graph, &after.list(count)?, parameters.get()?.task()?)?)
    };
    call hipGraphAddEmptyNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize) |driver| {
        node.checked()?.put(graph::add(driver, graph, &after.list(count)?, Task::Empty)?)
    };
    call hipGraphAddChildGraphNode(node: Out<u64>, graph: u64, after: In<u64>, count: usize, child: u64) |driver| {
        node.checked()?.put(graph::add_child(driver, graph, &after.list(count)?, child)?)
    };
    call hipGraphGetNodes(graph: u64, nodes: Out<u64>, count: Count) |driver| {
        count.put(nodes, &graph::nodes(driver, graph)?)
    };
    call hipGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Count) |driver| {
        count.put(nodes, &graph::roots(driver, graph)?)
    };
    call hipGraphDebugDotPrint(graph: u64, path: In<c_char>, _flags: c_uint) |driver| {
        write_dot(driver, graph as usize, path.text()?)
    };
    call hipGraphInstantiate(
        executable: Out<u64>, graph: u64, _failed: Out<u64>, _log: Out<c_char>, _room: usize
    ) |driver| executable.checked()?.put(executable::instantiate(driver, graph)?);
    call hipGraphExecKernelNodeSetParams(_executable: u64, _node: u64, parameters: In<Kernel>) |driver| {
        kernel(driver, &parameters)
    };
    call hipGraphExecMemcpyNodeSetParams1D(
        executable: u64, node: u64, to: u64, from: u64, bytes: usize, kind: c_uint
    ) |driver| executable::set_task(driver, executable, node, copy(to, from, bytes, kind)?);
    call hipGraphExecMemsetNodeSetParams(executable: u64, node: u64, parameters: In<Fill>) |driver| {
        executable::set_task(driver, executable, node, parameters.get()?.task()?)
    };
    call hipGraphExecChildGraphNodeSetParams(executable: u64, node: u64, child: u64) |driver| {
        executable::set_child(driver, executable, node, child)
    };
    call hipGraphLaunch(executable: u64, stream: usize) |driver| executable::launch(driver, executable, stream);
    call hipGraphExecDestroy(executable: u64) |driver| executable::destroy(driver, executable);
    call hipStreamBeginCapture(stream: usize, mode: c_uint) |driver| {
        capture::begin(driver, stream, None, Vec::new(), mode)
    };
    call hipStreamEndCapture(stream: usize, graph: Out<u64>) |driver| graph.checked()?.put(capture::end(driver, stream)?);
}
