//! Streams that are captured, as engines and libraries capture theirs, and who spoils that.
//!
//! While a thread captures, it may not call what could wait for the stream that is captured, or change what its graph
//! means. By the capture's mode neither may other threads, unless they have said that they know what they do
//! (`cuThreadExchangeStreamCaptureMode`). A capture that was spoilt ends with an error.
//!
//! There are no graphs here: no work may be put into a captured stream, and what its end gives is a mere number.

use std::{
    cell::Cell,
    thread::{self, ThreadId},
};

use crate::{
    clock::Line,
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
const UNSAFE: [&str; 17] = [
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "hipEventSynchronize",
    "hipFree",
    "hipHostFree",
    "hipHostMalloc",
    "hipMalloc",
    "hipStreamSynchronize",
];

/// A stream that is being captured.
#[derive(Debug)]
pub struct Capture {
    mode: Mode,
    /// Who began it.
    thread: ThreadId,
    /// Whether it is spoilt.
    broken: bool,
}

impl State {
    /// Refuses a function that a capture keeps from this thread, and spoils the capture, as CUDA does.
    pub fn refuse_while_capturing(&mut self, name: &str) -> Answer {
        if self.captures.is_empty() || !UNSAFE.contains(&name) {
            return Ok(());
        }
        let (thread, mode) = (thread::current().id(), THREAD.get());
        let mut spoilt = 0;
        for capture in self.captures.values_mut() {
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

    /// Refuses work for a stream that is being captured, and what waits for it, and spoils the capture.
    pub fn refuse_capture(&mut self, line: Line) -> Answer {
        let Some(capture) = self.captures.get_mut(&line) else { return Ok(()) };
        capture.broken = true;
        let why = format!("the stream {:#x} is being captured, so nothing is put into it or waits for it", line << 8);
        Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, why))
    }

    /// Refuses what waits for all of a GPU while a stream of it is being captured, and spoils the captures, whatever
    /// the mode of the thread is (CUDA C++ programming guide, "Prohibited and unhandled operations").
    pub fn refuse_captures_of(&mut self, gpu: usize) -> Answer {
        let mut spoilt = 0;
        for (line, capture) in &mut self.captures {
            let of_gpu = self.streams.get(line).is_some_and(|stream| stream.gpu == gpu);
            capture.broken |= of_gpu;
            spoilt += usize::from(of_gpu);
        }
        if spoilt == 0 {
            return Ok(());
        }
        Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, format!("{spoilt} stream(s) of the GPU are being captured")))
    }
}

/// `cuThreadExchangeStreamCaptureMode`: sets the thread's mode, and gives the one that it had.
pub fn exchange_mode(number: u32) -> Answer<u32> {
    Ok(THREAD.replace(Mode::of(number)?) as u32)
}

/// `cuStreamBeginCapture`.
pub fn begin(driver: &mut Driver, stream: usize, mode: u32) -> Answer {
    let mode = Mode::of(mode)?;
    let (line, gpu) = driver.line_to_use(stream)?;
    if driver.gpus[gpu].null == line {
        return Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, "the default stream cannot be captured"));
    }
    if driver.captures.contains_key(&line) {
        return Err(misuse(status::ILLEGAL_STATE, format!("the stream {stream:#x} is being captured already")));
    }
    driver.captures.insert(line, Capture { mode, thread: thread::current().id(), broken: false });
    Ok(())
}

/// `cuStreamEndCapture`: a number in place of the graph, which no function takes.
pub fn end(driver: &mut Driver, stream: usize) -> Answer<u64> {
    let (line, _) = driver.line_to_use(stream)?;
    let idle = || misuse(status::ILLEGAL_STATE, format!("the stream {stream:#x} is not being captured"));
    let Capture { broken, .. } = driver.captures.remove(&line).ok_or_else(idle)?;
    if broken { Err(status::STREAM_CAPTURE_INVALIDATED.into()) } else { Ok(driver.number()) }
}
