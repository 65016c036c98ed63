//! Streams that are captured: what a program puts into such a stream is not done, but becomes nodes of a graph.
//!
//! XLA captures calls of libraries, which put their work into a stream and know nothing of graphs. One stream is
//! captured by itself here: events that would carry the capture to other streams are refused.
//!
//! While a thread captures, it may not call what could wait for the stream that is captured, or change what its graph
//! means; by the capture's mode neither may other threads, unless they have said that they know what they do
//! (`cuThreadExchangeStreamCaptureMode`).

use std::{
    cell::Cell,
    thread::{self, ThreadId},
};

use crate::{
    clock::{Line, Point},
    graph::{self, Task},
    operation::Order,
    state::{Driver, State},
    status::{self, Answer, misuse},
};

/// `CUstreamCaptureMode`: whom a capture keeps from unsafe calls; of a thread, which captures keep it from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All threads; all captures.
    Global,
    /// The thread that captures; its own.
    ThreadLocal,
    /// Nobody; none.
    Relaxed,
}

impl Mode {
    fn of(number: u32) -> Answer<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(misuse(status::INVALID_VALUE, format!("{number} is no mode of a capture; allowed: 0 to 2"))),
        }
    }
}

thread_local! {
    static THREAD: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// What CUDA keeps from a thread then. It calls them potentially unsafe and lists none: these are those of which its
/// guide says that they cannot be captured because they wait, and allocations, which may.
const UNSAFE: [&str; 26] = [
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventQuery",
    "hipEventSynchronize",
    "hipExtMallocWithFlags",
    "hipFree",
    "hipHostFree",
    "hipHostMalloc",
    "hipMalloc",
    "hipMemcpy",
    "hipMemcpyDtoH",
    "hipMemcpyHtoD",
    "hipMemcpyWithStream",
    "hipStreamQuery",
    "hipStreamSynchronize",
];

/// A stream that is being captured.
#[derive(Debug)]
pub struct Capture {
    mode: Mode,
    /// Who began it.
    thread: ThreadId,
    /// The graph that its work goes into.
    pub graph: u64,
    /// The nodes that the next one comes after.
    after: Vec<u64>,
    /// Whether something could not be captured, which spoils all of it.
    broken: bool,
}

impl State {
    /// The state of a stream's capture, `CUstreamCaptureStatus` in C: none 0, active 1, invalidated 2.
    pub fn capture_status(&self, line: Line) -> u32 {
        self.graphs.captures.get(&line).map_or(0, |capture| if capture.broken { 2 } else { 1 })
    }

    /// Refuses a function that a capture keeps from this thread, and spoils the capture, as CUDA does.
    pub fn refuse_while_capturing(&mut self, name: &str) -> Answer {
        if self.graphs.captures.is_empty() || !UNSAFE.contains(&name) {
            return Ok(());
        }
        let (thread, mode) = (thread::current().id(), THREAD.get());
        let mut spoilt = 0;
        for capture in self.graphs.captures.values_mut() {
            let own = capture.thread == thread && capture.mode != Mode::Relaxed;
            let kept = match mode {
                Mode::Global => own || capture.mode == Mode::Global,
                Mode::ThreadLocal => own,
                Mode::Relaxed => false,
            };
            capture.broken |= kept;
            spoilt += usize::from(kept);
        }
        if spoilt == 0 {
            return Ok(());
        }
        let why = format!("{spoilt} stream(s) are being captured in a mode that keeps such calls from this thread");
        Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, why))
    }

    /// Refuses what waits for a stream that is being captured, and spoils the capture, as CUDA does.
    pub fn refuse_capture(&mut self, line: Line) -> Answer {
        let Some(capture) = self.graphs.captures.get_mut(&line) else { return Ok(()) };
        capture.broken = true;
        let why =
            format!("the stream {:#x} is being captured: its work is not done before a graph is launched", line << 8);
        Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, why))
    }

    /// Refuses what waits for all of a GPU while a stream of it is being captured, and spoils the captures, whatever
    /// the mode of the thread is (CUDA C++ programming guide, "Prohibited and unhandled operations").
    pub fn refuse_captures_of(&mut self, gpu: usize) -> Answer {
        let mut spoilt = 0;
        for (line, capture) in &mut self.graphs.captures {
            let of_gpu = self.streams.get(line).is_some_and(|stream| stream.gpu == gpu);
            capture.broken |= of_gpu;
            spoilt += usize::from(of_gpu);
        }
        if spoilt == 0 {
            return Ok(());
        }
        Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, format!("{spoilt} stream(s) of the GPU are being captured")))
    }

    /// Makes a node of an operation that is put into a stream which is being captured.
    pub fn capture(&mut self, line: Line, order: Order) -> Answer<Point> {
        let node = self.captured(line, order);
        let tail = self.tail(line);
        if let Some(capture) = self.graphs.captures.get_mut(&line) {
            match &node {
                Ok(node) => capture.after = vec![*node],
                Err(_) => capture.broken = true,
            }
        }
        node.map(|_| tail)
    }

    fn captured(&mut self, line: Line, order: Order) -> Answer<u64> {
        let Some(Capture { graph, after, broken, .. }) = self.graphs.captures.get(&line) else {
            return Err(status::INVALID_HANDLE.into());
        };
        if *broken {
            return Err(status::STREAM_CAPTURE_INVALIDATED.into());
        }
        let (graph, after) = (*graph, after.clone());
        graph::add(self, graph, &after, Task::of(order.what, order.work)?)
    }
}

/// `cuThreadExchangeStreamCaptureMode`: sets the thread's mode, and gives the one that it had.
pub fn exchange_mode(number: u32) -> Answer<u32> {
    Ok(THREAD.replace(Mode::of(number)?) as u32)
}

/// `cuStreamBeginCapture` where `graph` is none, and `cuStreamBeginCaptureToGraph`: what comes next in the stream comes
/// after the nodes `after`.
pub fn begin(driver: &mut Driver, stream: usize, graph: Option<u64>, after: Vec<u64>, mode: u32) -> Answer {
    let mode = Mode::of(mode)?;
    let (line, gpu) = driver.line_to_use(stream)?;
    if driver.gpus[gpu].null == line {
        return Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, "the default stream cannot be captured"));
    }
    if driver.graphs.captures.contains_key(&line) {
        return Err(misuse(status::ILLEGAL_STATE, format!("the stream {stream:#x} is being captured already")));
    }
    if let Some(graph) = graph {
        driver.graphs.graph(graph)?;
        after.iter().try_for_each(|&node| driver.graphs.member(graph, node))?;
    }
    let graph = graph.unwrap_or_else(|| graph::create(driver));
    let thread = thread::current().id();
    driver.graphs.captures.insert(line, Capture { mode, thread, graph, after, broken: false });
    Ok(())
}

/// `cuStreamEndCapture`: the graph.
pub fn end(driver: &mut Driver, stream: usize) -> Answer<u64> {
    let (line, _) = driver.line_to_use(stream)?;
    let idle = || misuse(status::ILLEGAL_STATE, format!("the stream {stream:#x} is not being captured"));
    let Capture { graph, broken, .. } = driver.graphs.captures.remove(&line).ok_or_else(idle)?;
    if broken { Err(status::STREAM_CAPTURE_INVALIDATED.into()) } else { Ok(graph) }
}
