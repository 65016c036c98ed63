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

use std::{
    collections::VecDeque,
    ffi::c_void,
    ops::Range,
    ptr,
    sync::{Arc, OnceLock},
    thread,
    time::Instant,
};

use parking_lot::Condvar;

use crate::{
    clock::{Clock, HOST, Line, Point},
    device::context_handle,
    memory::{Home, Place},
    state::{self, CHANGED, Driver, State},
    status::{self, Answer, misuse},
};

/// A function of the program with what it is given.
pub type Callback = (unsafe extern "C" fn(*mut c_void), usize);

/// What an operation does.
#[derive(Debug)]
pub enum Work {
    /// Nothing: a place in the order.
    Nothing,
    /// Copies between ranges that both stay until it is done.
    Copy {
        /// The destination.
        to: u64,
        /// The source.
        from: u64,
        /// How much.
        bytes: u64,
    },
    /// Copies what was staged.
    Staged {
        /// The destination.
        to: u64,
        /// The bytes.
        from: Vec<u8>,
    },
    /// Sets each byte.
    Fill {
        /// Where.
        to: u64,
        /// To what.
        value: u8,
        /// How many.
        bytes: u64,
    },
    /// Runs a function that plays a kernel.
    Kernel(Callback),
    /// Runs a function on the host that may not call the driver.
    Host(Callback),
    /// Notes the time.
    Record(Arc<OnceLock<Instant>>),
}

/// What is put into a stream.
#[derive(Debug)]
pub struct Order {
    /// The name of the function that asked for it.
    pub what: &'static str,
    /// What it uses, and whether it writes there.
    pub uses: Vec<(Place, bool)>,
    /// What it does.
    pub work: Work,
    /// Operations of other streams that it waits for.
    pub after: Vec<Point>,
    /// What it comes after, besides its stream and the host.
    pub seen: Clock,
}

impl Order {
    /// An operation that uses no memory and waits for nothing.
    pub fn new(what: &'static str, work: Work) -> Self {
        Self { what, uses: Vec::new(), work, after: Vec::new(), seen: Clock::default() }
    }
}

/// An operation in a stream.
#[derive(Debug)]
struct Operation {
    point: Point,
    after: Vec<Point>,
    work: Work,
    /// The addresses that it uses and the driver knows, and whether it writes there.
    ranges: Vec<(Range<u64>, bool)>,
    clock: Clock,
}

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

    /// Puts an operation into a stream.
    pub fn issue(&mut self, line: Line, mut order: Order) -> Answer<Point> {
        let (gpu, blocking) = self.streams.get(&line).map_or((0, false), |stream| (stream.gpu, stream.blocking));
        self.healthy(gpu)?;
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

    /// An access of the host itself.
    pub fn host_access(&mut self, place: &Place, write: bool) {
        let point = self.host.tick(HOST);
        let clock = self.host.clone();
        let found = self.races.access(point, &clock, "the host", &place.pieces, write);
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
        let lines: Vec<_> =
            self.streams.iter().filter(|(_, stream)| stream.gpu == gpu).map(|(&line, _)| line).collect();
        let tails: Vec<_> = lines.into_iter().map(|line| self.tail(line)).collect();
        self.wait_for(&tails);
        self.observe(&seen);
        self.release_idle_pools();
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
    if LEGACY.contains(&handle) {
        // Of the default stream, this waits for the streams that it keeps order with.
        driver.issue(line, Order::new("cuStreamSynchronize", Work::Nothing))?;
    }
    let (tail, clock, gpu) = (driver.tail(line), driver.streams[&line].clock.clone(), driver.streams[&line].gpu);
    driver.wait_for(&[tail]);
    driver.observe(&clock);
    driver.release_idle_pools();
    driver.healthy(gpu)
}

/// `cuStreamQuery`.
pub fn query(driver: &mut Driver, handle: usize) -> Answer {
    driver.working()?;
    let line = driver.line(handle)?;
    if !driver.is_done(driver.tail(line)) {
        return Err(status::NOT_READY.into());
    }
    let clock = driver.streams[&line].clock.clone();
    driver.observe(&clock);
    Ok(())
}

/// `cuStreamGetCtx`.
pub fn context(driver: &Driver, handle: usize) -> Answer<usize> {
    driver.current()?;
    let line = driver.line(handle)?;
    Ok(context_handle(driver.streams[&line].gpu))
}

/// `cuCtxSynchronize`.
pub fn synchronize_context(driver: &mut Driver) -> Answer {
    let gpu = driver.working()?;
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

/// Does an operation, if its memory is still there: the violation was noted when that was taken away.
fn perform(driver: &mut Driver, operation: Operation) {
    let line = operation.point.line;
    let Some(gpu) = driver.streams.get(&line).map(|stream| stream.gpu) else { return };
    if let Work::Record(time) = &operation.work {
        let _ = time.set(Instant::now());
        return;
    }
    if !operation.ranges.iter().all(|(range, write)| driver.is_there(range, *write)) {
        driver.gpus[gpu].poison = Some(status::ILLEGAL_ADDRESS);
    }
    if driver.gpus[gpu].poison.is_some() {
        // After an error CUDA runs neither kernels nor functions of the host.
        return;
    }
    if let Some(stream) = driver.streams.get_mut(&line) {
        stream.running = operation.ranges.into_iter().map(|(range, _)| range).collect();
    }
    if let Work::Host(_) = operation.work {
        // The program learns here that all that came before in the stream is done, and may tell any thread.
        driver.observe(&operation.clock);
    }
    let before = operation.clock.before(operation.point);
    parking_lot::MutexGuard::unlocked(driver, || match operation.work {
        Work::Nothing | Work::Record(_) => {}
        // SAFETY: both ranges were found when this was put into the stream, and are there now; `running` keeps their pages
        // until this returns. What the program itself owns it promised to keep. They do not overlap, or it was refused.
        Work::Copy { to, from, bytes } => unsafe { ptr::copy(pointer(from).cast_const(), pointer(to), bytes as usize) },
        // SAFETY: as above; the source is ours.
        Work::Staged { to, from } => unsafe { ptr::copy_nonoverlapping(from.as_ptr(), pointer(to), from.len()) },
        // SAFETY: as above.
        Work::Fill { to, value, bytes } => unsafe { ptr::write_bytes(pointer(to), value, bytes as usize) },
        Work::Kernel((function, argument)) => state::as_kernel(before, || {
            // SAFETY: the caller promised that the function may be called once with this argument, on any thread.
            unsafe { function(ptr::with_exposed_provenance_mut(argument)) }
        }),
        Work::Host((function, argument)) => state::as_host_function(|| {
            // SAFETY: as above.
            unsafe { function(ptr::with_exposed_provenance_mut(argument)) }
        }),
    });
}

fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies the program's memory at a call.
pub fn stage(from: u64, bytes: u64) -> Vec<u8> {
    let mut staged = vec![0; bytes as usize];
    // SAFETY: the caller of the copy promised that so many bytes lie there.
    unsafe { ptr::copy_nonoverlapping(pointer(from).cast_const(), staged.as_mut_ptr(), staged.len()) };
    staged
}

/// A range of the program's that a kernel uses, as C has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FakeCudaRange {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// Puts a function into a stream that plays a kernel with these accesses.
pub fn launch(
    driver: &mut Driver,
    handle: usize,
    callback: Callback,
    reads: &[FakeCudaRange],
    writes: &[FakeCudaRange],
) -> Answer {
    let (line, gpu) = driver.line_to_use(handle)?;
    let mut order = Order::new("fake_cuda_kernel", Work::Kernel(callback));
    let ranges = reads.iter().map(|range| (range, false)).chain(writes.iter().map(|range| (range, true)));
    for (range, write) in ranges.filter(|(range, _)| range.bytes > 0) {
        let place = driver.place(crate::memory::User::Kernel(gpu), range.address, range.bytes, write);
        let place = place.map_err(|why| misuse(status::INVALID_VALUE, why))?;
        if place.home == Home::Pageable {
            let why = format!("{} bytes at {:#x} are no memory that a GPU reaches", range.bytes, range.address);
            return Err(misuse(status::INVALID_VALUE, why));
        }
        order.uses.push((place, write));
    }
    driver.issue(line, order).map(|_| ())
}
