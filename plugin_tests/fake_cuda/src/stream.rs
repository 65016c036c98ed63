//! Streams: a thread each, which does one operation after another.
//!
//! ```text
//!  host    issue(kernel)  issue(wait)  issue(copy)        returns at once; the clock of the stream goes on here
//!             |               |            |
//!             v               v            v
//!  stream  [ operation ] -> [ operation ] -> [ operation ]   a thread: waits for what each comes after, and for the
//!                                 ^                          latency, then does it
//!  other   [ record ] ------------'
//! ```
//!
//! What it is made of is in [`crate::operation`], and how it is done in [`crate::perform`].

use std::{collections::VecDeque, ops::Range, sync::Arc, thread};

use parking_lot::Condvar;

use crate::{
    clock::{Clock, HOST, Line, Point},
    memory::Place,
    operation::{Callback, Operation, Order, Work},
    perform::perform,
    state::{self, CHANGED, Driver, State},
    status::{self, Answer, misuse},
};

/// One stream.
#[derive(Debug)]
pub struct Stream {
    /// Its GPU.
    pub gpu: usize,
    /// The addresses that what runs now uses.
    pub running: Vec<Range<u64>>,
    /// What has happened before whatever is put into it next, but for what the host sees meanwhile.
    pub clock: Clock,
    /// Tells its thread that there is more to do.
    wake: Arc<Condvar>,
    /// Whether it keeps order with the legacy default stream.
    blocking: bool,
    queue: VecDeque<Operation>,
    /// The number of its last operation.
    issued: u64,
    /// The number of the last one that is done.
    done: u64,
    /// Whether it goes when all is done.
    dying: bool,
}

impl Stream {
    /// Lets the thread end when all is done.
    fn end(&mut self) {
        self.dying = true;
        self.wake.notify_all();
    }
}

/// The handles of the legacy default stream.
const LEGACY: [usize; 2] = [0, 1];

/// What a handle of a stream is made of.
const STEP: usize = 0x100;

impl State {
    /// A new stream, by number.
    pub fn new_stream(&mut self, gpu: usize, blocking: bool) -> Answer<Line> {
        let line = self.number();
        let wake = Arc::new(Condvar::new());
        let stream = Stream {
            gpu,
            running: Vec::new(),
            clock: Clock::default(),
            wake: Arc::clone(&wake),
            blocking,
            queue: VecDeque::new(),
            issued: 0,
            done: 0,
            dying: false,
        };
        let spawned = thread::Builder::new().name(format!("fake stream {line}")).spawn(move || run(line, &wake));
        spawned.map_err(|_| status::OUT_OF_MEMORY)?;
        self.streams.insert(line, stream);
        Ok(line)
    }

    /// The number of the stream that a handle is; the default stream is that of the current context.
    pub fn line(&self, handle: usize) -> Answer<Line> {
        if LEGACY.contains(&handle) {
            return Ok(self.gpus[self.current()?].null);
        }
        let line = (handle / STEP) as Line;
        let unknown = || misuse(status::INVALID_HANDLE, format!("{handle:#x} is no stream, or was destroyed before"));
        let found = handle.is_multiple_of(STEP) && self.streams.get(&line).is_some_and(|stream| !stream.dying);
        if found { Ok(line) } else { Err(unknown()) }
    }

    /// As [`Self::line`], for an operation: the stream's context must be the current one.
    pub fn line_to_use(&self, handle: usize) -> Answer<(Line, usize)> {
        let current = self.working()?;
        let line = self.line(handle)?;
        let gpu = self.streams[&line].gpu;
        if gpu != current {
            let why = format!("the stream {handle:#x} is of GPU {gpu}, but the current context of GPU {current}");
            return Err(misuse(status::INVALID_HANDLE, why));
        }
        Ok((line, gpu))
    }

    /// As [`Self::line`], for the pools' functions, which need a context for the default stream alone.
    pub fn line_of_pool(&self, handle: usize) -> Answer<(Line, usize)> {
        if !self.settings.pools {
            return Err(status::NOT_SUPPORTED.into());
        }
        let line = self.line(handle)?;
        let gpu = self.streams[&line].gpu;
        self.healthy(gpu)?;
        Ok((line, gpu))
    }

    /// Whether an operation is done.
    pub fn is_done(&self, point: Point) -> bool {
        self.streams.get(&point.line).is_none_or(|stream| stream.done >= point.number)
    }

    /// The last operation of a stream so far.
    pub fn tail(&self, line: Line) -> Point {
        Point { line, number: self.streams.get(&line).map_or(0, |stream| stream.issued) }
    }

    /// The last operations of all streams of a GPU so far.
    pub fn tails(&self, gpu: usize) -> Vec<Point> {
        let of_gpu = self.streams.iter().filter(|(_, stream)| stream.gpu == gpu);
        of_gpu.map(|(&line, stream)| Point { line, number: stream.issued }).collect()
    }

    /// Puts an operation into a stream.
    pub fn issue(&mut self, line: Line, mut order: Order) -> Answer<Point> {
        let (gpu, blocking) = self.streams.get(&line).map_or((0, false), |stream| (stream.gpu, stream.blocking));
        self.healthy(gpu)?;
        self.refuse_capture(line)?;
        order.seen.join(&self.host);
        // The legacy default stream comes after all work of the blocking ones, and they after its.
        let null = self.gpus[gpu].null;
        let others = self.streams.iter().filter(|(other, stream)| {
            **other != line && stream.gpu == gpu && blocking && stream.blocking && (line == null || **other == null)
        });
        for (&other, stream) in others {
            order.seen.join(&stream.clock);
            order.after.push(Point { line: other, number: stream.issued });
        }
        let stream = self.streams.get_mut(&line).ok_or(status::INVALID_HANDLE)?;
        stream.clock.join(&order.seen);
        let point = stream.clock.tick(line);
        stream.issued = point.number;
        let clock = stream.clock.clone();
        let mut ranges = Vec::new();
        for (place, write) in &order.uses {
            ranges.extend(place.pieces.iter().map(|piece| (piece.address..piece.address + piece.bytes, *write)));
            let found = self.races.access(point, &clock, order.what, &place.pieces, *write);
            found.into_iter().for_each(|sentence| self.violation(sentence));
        }
        let operation = Operation { point, after: order.after, work: order.work, ranges, clock };
        if let Some(stream) = self.streams.get_mut(&line) {
            stream.queue.push_back(operation);
            stream.wake.notify_all();
        }
        Ok(point)
    }

    /// The host has seen `clock`.
    pub fn observe(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    /// A call that synchronises has waited for these points: pools may give back what was freed until then.
    pub fn has_waited_for(&mut self, points: &[Point]) {
        points.iter().for_each(|&point| self.waited_for.see(point));
        self.release_idle_pools();
    }

    /// An access of the host itself.
    pub fn host_access(&mut self, place: &Place, write: bool) {
        let point = self.host.tick(HOST);
        let found = self.races.access(point, &self.host, "the host", &place.pieces, write);
        found.into_iter().for_each(|sentence| self.violation(sentence));
    }

    /// Memory goes away now, as far as the host has seen: whatever uses it must have been seen to end.
    pub fn retire(&mut self, space: u64, range: &Range<u64>, verb: &str) {
        let found = self.races.retire(&self.host, space, range, verb);
        found.into_iter().for_each(|sentence| self.violation(sentence));
    }

    /// Lets the streams of a GPU end; their contexts are gone.
    pub fn destroy_streams(&mut self, gpu: usize) {
        self.streams.values_mut().filter(|stream| stream.gpu == gpu).for_each(Stream::end);
    }
}

/// Waiting, which lets go of the lock.
pub trait Waits {
    /// Waits until operations are done.
    fn wait_for(&mut self, points: &[Point]);

    /// Waits for all work of a GPU so far, and has seen it.
    fn wait_for_gpu(&mut self, gpu: usize);
}

impl Waits for Driver {
    fn wait_for(&mut self, points: &[Point]) {
        while !points.iter().all(|&point| self.is_done(point)) {
            CHANGED.wait(self);
        }
    }

    fn wait_for_gpu(&mut self, gpu: usize) {
        let of = |stream: &&Stream| stream.gpu == gpu;
        let mut seen = Clock::default();
        self.streams.values().filter(of).for_each(|stream| seen.join(&stream.clock));
        let tails = self.tails(gpu);
        self.wait_for(&tails);
        self.observe(&seen);
        self.has_waited_for(&tails);
    }
}

/// `cuStreamCreate`.
pub fn create(driver: &mut Driver, flags: u32) -> Answer<usize> {
    let gpu = driver.working()?;
    if flags > 1 {
        return Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}, not 0 or CU_STREAM_NON_BLOCKING, 1")));
    }
    Ok(driver.new_stream(gpu, flags == 0)? as usize * STEP)
}

/// `cuStreamDestroy`: what is in the stream is still done.
pub fn destroy(driver: &mut Driver, handle: usize) -> Answer {
    driver.current()?;
    if LEGACY.contains(&handle) {
        return Err(misuse(status::INVALID_HANDLE, "the default stream cannot be destroyed"));
    }
    let line = driver.line(handle)?;
    if let Some(stream) = driver.streams.get_mut(&line) {
        stream.end();
    }
    Ok(())
}

/// `cuStreamSynchronize`.
pub fn synchronize(driver: &mut Driver, handle: usize) -> Answer {
    driver.working()?;
    let line = driver.line(handle)?;
    driver.refuse_capture(line)?;
    if LEGACY.contains(&handle) {
        // Of the default stream, this waits for the streams that it keeps order with.
        driver.issue(line, Order::new("cuStreamSynchronize", Work::Nothing))?;
    }
    let (tail, clock, gpu) = (driver.tail(line), driver.streams[&line].clock.clone(), driver.streams[&line].gpu);
    driver.wait_for(&[tail]);
    driver.observe(&clock);
    driver.has_waited_for(&[tail]);
    driver.healthy(gpu)
}

/// `cuStreamQuery`.
pub fn query(driver: &mut Driver, handle: usize) -> Answer {
    driver.working()?;
    let line = driver.line(handle)?;
    driver.refuse_capture(line)?;
    if !driver.is_done(driver.tail(line)) {
        return Err(status::NOT_READY.into());
    }
    let clock = driver.streams[&line].clock.clone();
    driver.observe(&clock);
    Ok(())
}

/// `cuCtxSynchronize`.
pub fn synchronize_context(driver: &mut Driver) -> Answer {
    let gpu = driver.working()?;
    driver.refuse_captures_of(gpu)?;
    driver.wait_for_gpu(gpu);
    driver.healthy(gpu)
}

/// `cuLaunchHostFunc`.
pub fn launch_host(driver: &mut Driver, handle: usize, callback: Callback) -> Answer {
    let (line, _) = driver.line_to_use(handle)?;
    driver.issue(line, Order::new("cuLaunchHostFunc", Work::Host(callback)))?;
    Ok(())
}

/// The thread of a stream.
fn run(line: Line, wake: &Condvar) {
    let mut driver = state::lock();
    loop {
        let Some(stream) = driver.streams.get(&line) else { return };
        let Some(next) = stream.queue.front() else {
            if stream.dying {
                driver.streams.remove(&line);
                CHANGED.notify_all();
                return;
            }
            wake.wait(&mut driver);
            continue;
        };
        let after = next.after.clone();
        driver.wait_for(&after);
        let latency = driver.settings.latency;
        if !latency.is_zero() {
            parking_lot::MutexGuard::unlocked(&mut driver, || thread::sleep(latency));
        }
        let Some(operation) = driver.streams.get_mut(&line).and_then(|stream| stream.queue.pop_front()) else { return };
        let point = operation.point;
        perform(&mut driver, operation);
        if let Some(stream) = driver.streams.get_mut(&line) {
            stream.running.clear();
            stream.done = point.number;
        }
        driver.sweep();
        CHANGED.notify_all();
    }
}
