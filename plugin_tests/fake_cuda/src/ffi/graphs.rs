//! Graphs, and the capture of streams.

use std::{
    ffi::{c_char, c_int, c_uint, c_ulonglong, c_void},
    fs,
};

use cudarc::driver::sys;

use super::{In, Out, functions};
use crate::{
    copy::Side,
    graph::{self, Attribute, Task, capture, dot, executable},
    parts,
    state::{Driver, State, call},
    status::{self, Answer, Status, misuse},
};

/// `CUDA_KERNEL_NODE_PARAMS`. Younger versions only add to it what stands for a kernel where there is no function.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelParameters {
    /// The function's handle.
    pub function: usize,
    /// Blocks.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Bytes of shared memory besides the kernel's own.
    pub shared: c_uint,
    /// Where the addresses of the arguments' values are.
    pub values: usize,
    /// Another way to give arguments, which is not known here.
    pub extra: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FillParameters {
    /// Where.
    pub to: u64,
    /// From one row to the next.
    pub pitch: usize,
    /// The element.
    pub value: c_uint,
    /// Bytes of an element.
    pub element: c_uint,
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// One side of a `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopySide {
    /// In bytes.
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyParameters {
    from: CopySide,
    to: CopySide,
    width: usize,
    height: usize,
    depth: usize,
}

/// `CUDA_MEMCPY_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyNodeParameters {
    flags: c_int,
    reserved: c_int,
    context: usize,
    copy: CopyParameters,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ChildParameters {
    child: u64,
    ownership: c_int,
}

const _: () = {
    assert!(size_of::<CopyNodeParameters>() == 16 + size_of::<sys::CUDA_MEMCPY3D>());
    assert!(size_of::<KernelParameters>() == size_of::<sys::CUDA_KERNEL_NODE_PARAMS>());
    assert!(size_of::<FillParameters>() == size_of::<sys::CUDA_MEMSET_NODE_PARAMS>());
    assert!(size_of::<CopyParameters>() == size_of::<sys::CUDA_MEMCPY3D>());
    assert!(std::mem::offset_of!(CopyParameters, to) == std::mem::offset_of!(sys::CUDA_MEMCPY3D, dstXInBytes));
};

/// The header of `CUgraphNodeParams`, after which come the parameters of the type.
const HEADER: usize = 16;

impl KernelParameters {
    fn task(self, driver: &Driver) -> Answer<Task> {
        let none = || misuse(status::NOT_SUPPORTED, "kernels are not known to this driver");
        (parts::parts().ok_or_else(none)?.kernel)(driver, self)
    }
}

impl FillParameters {
    /// The task that it describes.
    ///
    /// # Errors
    /// It is none that this driver knows.
    pub fn task(self) -> Answer<Task> {
        let Self { to, value, element, width, height, .. } = self;
        let wrong = |why: String| misuse(status::INVALID_VALUE, why);
        if height != 1 {
            return Err(misuse(
                status::NOT_SUPPORTED,
                format!("a fill of {height} rows; this driver knows those of 1"),
            ));
        }
        let [one, two, ..] = value.to_le_bytes();
        let pattern = match element {
            1 => [one; 4],
            2 => [one, two, one, two],
            4 => value.to_le_bytes(),
            _ => return Err(wrong(format!("elements of {element} bytes; 1, 2 and 4 are allowed"))),
        };
        if !to.is_multiple_of(element.into()) {
            return Err(wrong(format!("the address {to:#x} is no multiple of {element}, the size of an element")));
        }
        let bytes = (width as u64).checked_mul(element.into());
        let bytes =
            bytes.ok_or_else(|| wrong(format!("{width} elements of {element} bytes are more than memory can be")))?;
        Ok(Task::Fill { to, pattern, bytes })
    }
}

impl CopySide {
    fn address(self) -> Answer<(Side, u64)> {
        let (side, start) = match self.kind {
            1 => (Side::Host, self.host),
            2 => (Side::Device, self.device),
            4 => (Side::Any, self.device),
            other => {
                let why = format!("memory of the type {other}; this driver knows 1, 2 and 4, but no arrays");
                return Err(misuse(status::NOT_SUPPORTED, why));
            }
        };
        if self.y != 0 || self.z != 0 {
            return Err(misuse(
                status::NOT_SUPPORTED,
                "a copy from within an image; this driver knows those of one row",
            ));
        }
        let wraps = || misuse(status::INVALID_VALUE, format!("{} bytes after {start:#x} are no address", self.x));
        Ok((side, start.checked_add(self.x as u64).ok_or_else(wraps)?))
    }
}

impl CopyParameters {
    fn task(self) -> Answer<Task> {
        let Self { from, to, width, height, depth } = self;
        if (height, depth) != (1, 1) {
            let why = format!("a copy of {height} rows in {depth} layers; this driver knows those of one row");
            return Err(misuse(status::NOT_SUPPORTED, why));
        }
        Ok(Task::Copy { to: to.address()?, from: from.address()?, bytes: width as u64 })
    }
}

/// A place that says how many there is room for, and is told how many there are. As for [`Out`]: null, or fit for both.
#[repr(transparent)]
#[derive(Debug)]
pub struct Count(*mut usize);

impl Count {
    /// Writes handles to `list` as far as there is room, zeros where there are fewer, and how many there are. Without a
    /// list it only says that.
    ///
    /// # Errors
    /// It is null.
    pub fn put(self, list: Out<u64>, handles: &[u64]) -> Answer {
        if self.0.is_null() {
            return Err(misuse(status::INVALID_VALUE, "a pointer for a number is null"));
        }
        if let Ok(list) = list.checked() {
            // SAFETY: it is not null, and the caller has promised that it can be read.
            let room = unsafe { self.0.read() };
            list.put_all(handles.iter().copied().chain(std::iter::repeat(0)).take(room))?;
        }
        // SAFETY: as above, and written.
        unsafe { self.0.write(handles.len()) };
        Ok(())
    }
}

/// What `CUgraphNodeParams` may say, as far as the driver knows it.
enum Described {
    Task(Task),
    Child(ChildParameters),
}

fn described(driver: &Driver, parameters: &In<u8>) -> Answer<Described> {
    let kind: c_uint = In::at(parameters.address() as usize).get()?;
    let body = parameters.address() as usize + HEADER;
    let task = match kind {
        0 => In::<KernelParameters>::at(body).get()?.task(driver)?,
        1 => {
            let CopyNodeParameters { flags, context, copy, .. } = In::at(body).get()?;
            if flags != 0 {
                return Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}, not 0")));
            }
            driver.context(context)?;
            copy.task()?
        }
        2 => In::<FillParameters>::at(body).get()?.task()?,
        4 => return In::at(body).get().map(Described::Child),
        5 => Task::Empty,
        _ => {
            let why = format!(
                "a node of the type {kind}; this driver knows 0, kernel, 1, memcpy, 2, memset, 4, child graph, and 5, empty"
            );
            return Err(misuse(status::NOT_SUPPORTED, why));
        }
    };
    Ok(Described::Task(task))
}

fn add_node(driver: &mut Driver, graph: usize, after: &[u64], parameters: &In<u8>) -> Answer<u64> {
    match described(driver, parameters)? {
        Described::Task(task) => graph::add(driver, graph as u64, after, task),
        Described::Child(ChildParameters { child, ownership: 0 }) => {
            graph::add_child(driver, graph as u64, after, child)
        }
        Described::Child(ChildParameters { child, ownership: 1 }) => {
            graph::move_child(driver, graph as u64, after, child)
        }
        Described::Child(ChildParameters { ownership, .. }) => {
            Err(misuse(status::INVALID_VALUE, format!("ownership is {ownership}, not 0, clone, or 1, move")))
        }
    }
}

fn set_node(driver: &mut Driver, executable: u64, node: u64, parameters: &In<u8>) -> Answer {
    match described(driver, parameters)? {
        Described::Task(task) => executable::set_task(driver, executable, node, task),
        Described::Child(ChildParameters { child, .. }) => executable::set_child(driver, executable, node, child),
    }
}

/// Writes a picture of a graph, in the language of Graphviz, to a file.
///
/// # Errors
/// The graph is not known, or the file cannot be written.
pub fn write_dot(driver: &State, graph: usize, path: &str) -> Answer {
    let text = dot::text(driver, graph as u64)?;
    fs::write(path, text).map_err(|why| misuse(status::INVALID_VALUE, format!("{path:?} cannot be written: {why}")))
}

functions! {
    call cuGraphCreate(graph: Out<u64> as *mut sys::CUgraph, flags: c_uint) |driver| {
        if flags != 0 {
            return Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}, not 0")));
        }
        graph.checked()?.put(graph::create(driver))
    };
    call cuGraphDestroy(graph: usize as sys::CUgraph) |driver| graph::destroy(driver, graph as u64);
    call cuGraphAddKernelNode(
        node: Out<u64> as *mut sys::CUgraphNode, graph: usize as sys::CUgraph, after: In<u64> as *const sys::CUgraphNode,
        count: usize, parameters: In<KernelParameters> as *const sys::CUDA_KERNEL_NODE_PARAMS
    ) |driver| {
        let task = parameters.get()?.task(driver)?;
        node.checked()?.put(graph::add(driver, graph as u64, &after.list(count)?, task)?)
    };
    call cuGraphAddMemcpyNode(
        node: Out<u64> as *mut sys::CUgraphNode, graph: usize as sys::CUgraph, after: In<u64> as *const sys::CUgraphNode,
        count: usize, parameters: In<CopyParameters> as *const sys::CUDA_MEMCPY3D, context: usize as sys::CUcontext
    ) |driver| {
        driver.context(context)?;
        let task = parameters.get()?.task()?;
        node.checked()?.put(graph::add(driver, graph as u64, &after.list(count)?, task)?)
    };
    call cuGraphAddMemsetNode(
        node: Out<u64> as *mut sys::CUgraphNode, graph: usize as sys::CUgraph, after: In<u64> as *const sys::CUgraphNode,
        count: usize, parameters: In<FillParameters> as *const sys::CUDA_MEMSET_NODE_PARAMS,
        context: usize as sys::CUcontext
    ) |driver| {
        driver.context(context)?;
        let task = parameters.get()?.task()?;
        node.checked()?.put(graph::add(driver, graph as u64, &after.list(count)?, task)?)
    };
    call cuGraphAddEmptyNode(
        node: Out<u64> as *mut sys::CUgraphNode, graph: usize as sys::CUgraph, after: In<u64> as *const sys::CUgraphNode,
        count: usize
    ) |driver| node.checked()?.put(graph::add(driver, graph as u64, &after.list(count)?, Task::Empty)?);
    call cuGraphAddChildGraphNode(
        node: Out<u64> as *mut sys::CUgraphNode, graph: usize as sys::CUgraph, after: In<u64> as *const sys::CUgraphNode,
        count: usize, child: usize as sys::CUgraph
    ) |driver| node.checked()?.put(graph::add_child(driver, graph as u64, &after.list(count)?, child as u64)?);
    call cuGraphAddDependencies(
        graph: usize as sys::CUgraph, from: In<u64> as *const sys::CUgraphNode, to: In<u64> as *const sys::CUgraphNode,
        count: usize
    ) |driver| graph::depend(driver, graph as u64, &from.list(count)?, &to.list(count)?);
    call cuGraphChildGraphNodeGetGraph(node: usize as sys::CUgraphNode, child: Out<u64> as *mut sys::CUgraph) |driver| {
        child.put(graph::child(driver, node as u64)?)
    };
    call cuGraphGetNodes(
        graph: usize as sys::CUgraph, nodes: Out<u64> as *mut sys::CUgraphNode, count: Count as *mut usize
    ) |driver| count.put(nodes, &graph::nodes(driver, graph as u64)?);
    call cuGraphGetRootNodes(
        graph: usize as sys::CUgraph, nodes: Out<u64> as *mut sys::CUgraphNode, count: Count as *mut usize
    ) |driver| count.put(nodes, &graph::roots(driver, graph as u64)?);
    call cuGraphNodeGetType(node: usize as sys::CUgraphNode, kind: Out<c_uint> as *mut sys::CUgraphNodeType) |driver| {
        kind.put(graph::kind(driver, node as u64)?)
    };
    call cuGraphDebugDotPrint(graph: usize as sys::CUgraph, path: In<c_char> as *const c_char, _flags: c_uint) |driver| {
        write_dot(driver, graph, path.text()?)
    };
    // Its flags say how memory nodes and priorities are treated, which are not here or change nothing.
    call cuGraphInstantiateWithFlags(
        executable: Out<u64> as *mut sys::CUgraphExec, graph: usize as sys::CUgraph, _flags: c_ulonglong
    ) |driver| executable.checked()?.put(executable::instantiate(driver, graph as u64)?);
    call cuGraphExecKernelNodeSetParams(
        executable: usize as sys::CUgraphExec, node: usize as sys::CUgraphNode,
        parameters: In<KernelParameters> as *const sys::CUDA_KERNEL_NODE_PARAMS
    ) |driver| {
        let task = parameters.get()?.task(driver)?;
        executable::set_task(driver, executable as u64, node as u64, task)
    };
    call cuGraphExecMemcpyNodeSetParams(
        executable: usize as sys::CUgraphExec, node: usize as sys::CUgraphNode,
        parameters: In<CopyParameters> as *const sys::CUDA_MEMCPY3D, context: usize as sys::CUcontext
    ) |driver| {
        driver.context(context)?;
        executable::set_task(driver, executable as u64, node as u64, parameters.get()?.task()?)
    };
    call cuGraphExecMemsetNodeSetParams(
        executable: usize as sys::CUgraphExec, node: usize as sys::CUgraphNode,
        parameters: In<FillParameters> as *const sys::CUDA_MEMSET_NODE_PARAMS, context: usize as sys::CUcontext
    ) |driver| {
        driver.context(context)?;
        executable::set_task(driver, executable as u64, node as u64, parameters.get()?.task()?)
    };
    call cuGraphExecChildGraphNodeSetParams(
        executable: usize as sys::CUgraphExec, node: usize as sys::CUgraphNode, child: usize as sys::CUgraph
    ) |driver| executable::set_child(driver, executable as u64, node as u64, child as u64);
    call cuGraphUpload(executable: usize as sys::CUgraphExec, stream: usize as sys::CUstream) |driver| {
        executable::upload(driver, executable as u64, stream)
    };
    call cuGraphLaunch(executable: usize as sys::CUgraphExec, stream: usize as sys::CUstream) |driver| {
        executable::launch(driver, executable as u64, stream)
    };
    call cuGraphExecDestroy(executable: usize as sys::CUgraphExec) |driver| {
        executable::destroy(driver, executable as u64)
    };
    // No memory is kept for graphs.
    call cuDeviceGraphMemTrim(device: c_int) |driver| driver.gpu(device).map(|_| ());

    call cuStreamBeginCapture_v2(stream: usize as sys::CUstream, mode: c_uint as sys::CUstreamCaptureMode) |driver| {
        capture::begin(driver, stream, None, Vec::new(), mode)
    };
    call cuStreamEndCapture(stream: usize as sys::CUstream, graph: Out<u64> as *mut sys::CUgraph) |driver| {
        graph.checked()?.put(capture::end(driver, stream)?)
    };
    call cuThreadExchangeStreamCaptureMode(mode: Out<c_uint> as *mut sys::CUstreamCaptureMode) |_driver| {
        mode.checked()?.exchange(capture::exchange_mode)
    };
    call cuStreamIsCapturing(stream: usize as sys::CUstream, answer: Out<c_uint> as *mut sys::CUstreamCaptureStatus)
        |driver| {
            let line = driver.line(stream)?;
            answer.put(driver.capture_status(line))
        };
}

/// Declares functions that are younger than the CUDA that cudarc's declarations here are of.
macro_rules! younger {
    ($($name:ident($($parameter:ident: $type:ty),*) $body:expr;)*) => {
        $(
            #[doc = concat!("CUDA's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As CUDA documents: each pointer is null or fit for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($parameter: $type),*) -> Status {
                call(stringify!($name), $body)
            }
        )*

        /// The functions of this module that cudarc does not declare.
        pub(super) const MORE: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}

younger! {
    cuGraphAddKernelNode_v2(
        node: Out<u64>, graph: usize, after: In<u64>, count: usize, parameters: In<KernelParameters>
    ) |driver| {
        let task = parameters.get()?.task(driver)?;
        node.checked()?.put(graph::add(driver, graph as u64, &after.list(count)?, task)?)
    };
    // What an edge says beside the dependency lets a kernel begin before the other one's end; here it begins after it.
    cuGraphAddNode_v2(
        node: Out<u64>, graph: usize, after: In<u64>, _edges: In<c_void>, count: usize, parameters: In<u8>
    ) |driver| node.checked()?.put(add_node(driver, graph, &after.list(count)?, &parameters)?);
    cuGraphAddDependencies_v2(graph: usize, from: In<u64>, to: In<u64>, _edges: In<c_void>, count: usize) |driver| {
        graph::depend(driver, graph as u64, &from.list(count)?, &to.list(count)?)
    };
    cuGraphExecNodeSetParams(executable: usize, node: usize, parameters: In<u8>) |driver| {
        set_node(driver, executable as u64, node as u64, &parameters)
    };
    cuGraphExecKernelNodeSetParams_v2(executable: usize, node: usize, parameters: In<KernelParameters>) |driver| {
        let task = parameters.get()?.task(driver)?;
        executable::set_task(driver, executable as u64, node as u64, task)
    };
    // XLA asks for it where a program with a condition has become a graph, which `--xla_gpu_enable_command_buffer`
    // without CONDITIONAL turns off.
    cuGraphConditionalHandleCreate(_handle: Out<u64>, _graph: usize, _context: usize, _unset: c_uint, _flags: c_uint)
        |_driver| Err(misuse(status::NOT_SUPPORTED, "conditional nodes are not known to this driver"));
    // Older than that, but with values that have grown since.
    cuGraphKernelNodeGetAttribute(node: usize, which: c_uint, value: Out<Attribute>) |driver| {
        value.put(graph::attribute(driver, node as u64, which)?)
    };
    cuGraphKernelNodeSetAttribute(node: usize, which: c_uint, value: In<Attribute>) |driver| {
        graph::set_attribute(driver, node as u64, which, value.get()?)
    };
    cuStreamBeginCaptureToGraph(
        stream: usize, graph: usize, after: In<u64>, _edges: In<c_void>, count: usize, mode: c_uint
    ) |driver| capture::begin(driver, stream, Some(graph as u64), after.list(count)?, mode);
}
