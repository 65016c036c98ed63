//! Graphs as the tests ask for them: CUDA's structures, and a function for each call.

use std::ffi::c_uint;

use crate::common::*;

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
pub struct Fill {
    pub to: u64,
    pub pitch: usize,
    pub value: u32,
    pub element: u32,
    pub width: usize,
    pub height: usize,
}

/// One side of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Default)]
pub struct Side {
    pub offsets: [usize; 4],
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub rest: [usize; 4],
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
pub struct Copy {
    pub from: Side,
    pub to: Side,
    pub sides: [usize; 3],
}

pub fn bytes(to: u64, value: u32, width: usize) -> Fill {
    Fill { to, pitch: 0, value, element: 1, width, height: 1 }
}

pub fn device(address: u64) -> Side {
    Side { kind: 2, device: address, ..Side::default() }
}

pub fn row(to: u64, from: u64, width: usize) -> Copy {
    Copy { from: device(from), to: device(to), sides: [width, 1, 1] }
}

pub fn graph() -> u64 {
    let mut graph = 0;
    ok(cu!(cuGraphCreate(&raw mut graph => *mut u64, 0 => c_uint)));
    graph
}

pub fn add_fill(graph: u64, after: &[u64], fill: &Fill) -> Result<u64, u32> {
    let mut node = 0;
    let code = cu!(cuGraphAddMemsetNode(
        &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize, fill => *const Fill,
        enter(0) => usize
    ));
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}

pub fn add_copy(graph: u64, after: &[u64], copy: &Copy) -> Result<u64, u32> {
    let mut node = 0;
    let code = cu!(cuGraphAddMemcpyNode(
        &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize, copy => *const Copy,
        enter(0) => usize
    ));
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}

pub fn add_child(graph: u64, child: u64) -> u64 {
    let mut node = 0;
    ok(cu!(cuGraphAddChildGraphNode(
        &raw mut node => *mut u64, graph => u64, [0; 0].as_ptr() => *const u64, 0 => usize, child => u64
    )));
    node
}

pub fn instantiate(graph: u64) -> Result<u64, u32> {
    let mut executable = 0;
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut executable => *mut u64, graph => u64, 0 => u64));
    if code == status::SUCCESS { Ok(executable) } else { Err(code) }
}

pub fn launch(executable: u64, stream: usize) -> u32 {
    cu!(cuGraphLaunch(executable => u64, stream => usize))
}

pub fn set_fill(executable: u64, node: u64, fill: &Fill) -> u32 {
    cu!(cuGraphExecMemsetNodeSetParams(executable => u64, node => u64, fill => *const Fill, enter(0) => usize))
}

pub fn nodes_of(graph: u64) -> Vec<u64> {
    let mut count = 0usize;
    ok(cu!(cuGraphGetNodes(graph => u64, 0 => usize, &raw mut count => *mut usize)));
    let mut nodes = vec![7; count + 1];
    count += 1;
    ok(cu!(cuGraphGetNodes(graph => u64, nodes.as_mut_ptr() => *mut u64, &raw mut count => *mut usize)));
    assert_eq!(nodes.pop(), Some(0), "what is no node is zero");
    assert_eq!(count, nodes.len());
    nodes
}

pub fn kind(node: u64) -> u32 {
    let mut kind = 99;
    ok(cu!(cuGraphNodeGetType(node => u64, &raw mut kind => *mut u32)));
    kind
}

pub fn capturing(stream: usize) -> u32 {
    let mut answer = 9;
    ok(cu!(cuStreamIsCapturing(stream => usize, &raw mut answer => *mut u32)));
    answer
}

pub fn end_capture(stream: usize) -> Result<u64, u32> {
    let mut graph = 0;
    let code = cu!(cuStreamEndCapture(stream => usize, &raw mut graph => *mut u64));
    if code == status::SUCCESS { Ok(graph) } else { Err(code) }
}

/// `CUgraphNodeParams` of a copy and of a fill.
#[repr(C)]
pub struct Node<T> {
    pub kind: u32,
    pub reserved: [u32; 3],
    pub body: T,
    pub rest: [u64; 32],
}

impl<T> Node<T> {
    fn new(kind: u32, body: T) -> Self {
        Self { kind, reserved: [0; 3], body, rest: [0; 32] }
    }
}

pub fn set<T>(executable: u64, node: u64, kind: u32, body: T) -> u32 {
    let parameters = Node::new(kind, body);
    cu!(cuGraphExecNodeSetParams(executable => u64, node => u64, &raw const parameters => *const Node<T>))
}

pub fn add<T>(graph: u64, after: &[u64], kind: u32, body: T) -> Result<u64, u32> {
    let parameters = Node::new(kind, body);
    let mut node = 0;
    let code = cu!(cuGraphAddNode_v2(
        &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, 0 => usize, after.len() => usize,
        &raw const parameters => *const Node<T>
    ));
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}
