//! What is under way in the engine, and what it keeps alive.
//!
//! ```text
//!  launch ------- engine runs ------- completion event ------ next call into us
//!                                       |                       |
//!                                       the flight is done      it lands: blocks given up meanwhile are free,
//!                                                               small results become spares (spares.rs), consumed
//!                                                               handles and contexts are destroyed
//! ```
//!
//! The completion callback runs on a thread of the engine and only sets a flag, unless an allocation is waiting for
//! memory; then it frees the flight's blocks itself. Landing is left to the next call because it costs the caller less
//! than it costs two threads to meet, and because destroying a handle that a program was donated blocks until that
//! program is done (trap T3), inside its own callback for ever. Where no next call comes, [`InFlight::unload_stale`] frees
//! the memory.
//!
//! A run that fails to start says so at once. Where the engine does one run after another, those before it may still use its
//! blocks then, and so may the kernels of its own that were launched before the one that was not: its cargo goes into a
//! flight that ends with all that the device was given so far ([`Fence`]). One that fails later does so in its turn.

use std::{
    any::Any,
    collections::VecDeque,
    mem,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::{
    engine::{
        Engine, EngineEvent, Raw,
        fence::{ExecutionQueue, Fence},
        handles::Completion,
        views,
    },
    runtime::{
        buffer::{Buffer, Recycled, usage::User},
        device_memory::{Allocation, ScratchReservation},
        in_flight::deadline::{Deadline, UnderWay},
    },
    sys,
};

pub mod deadline;

/// Handles of the engine that a program consumed: donated, but still to be destroyed.
pub type Consumed = SmallVec<[Raw<sys::PJRT_Buffer>; 4]>;

/// How long [`InFlight::drain_ready`] waits: touching a MiB of new memory takes as long.
const MOMENT: Duration = Duration::from_micros(300);

/// How long who runs ahead is held back: a program that computes a few MiB takes as long, and who waits for one that
/// takes longer does not lose by it, because the device is busy anyway.
pub const THROTTLE: Duration = Duration::from_millis(2);

/// What a flight carries until it lands.
#[derive(Default)]
pub struct Resources {
    /// Buffers in use, each taken up with [`Buffer::take_up`].
    pub buffers: SmallVec<[Arc<Buffer>; 4]>,
    /// Buffers that the flight writes, taken up as well.
    pub results: SmallVec<[Arc<Buffer>; 2]>,
    /// Blocks that no buffer took, but that the engine may still use.
    pub leftovers: Vec<Allocation>,
    /// What the buffers were taken up for.
    pub user: User,
    /// What the arena keeps for its scratch.
    pub scratch: Option<ScratchReservation>,
    /// Handles to destroy.
    pub consumed: Consumed,
    /// The execute context, which the program may still look into.
    pub context: Option<Arc<dyn Any + Send + Sync>>,
}

/// One execution or transfer on one device.
struct Operation {
    engine: &'static Engine,
    /// Ready once the results are there; only of flights that write large ones.
    results_ready: Option<EngineEvent>,
    done: AtomicBool,
    succeeded: AtomicBool,
    bell: Arc<Completions>,
    cargo: Mutex<Resources>,
}

impl UnderWay for Operation {
    fn is_under_way(&self) -> bool {
        !self.done.load(Ordering::SeqCst)
    }
}

/// Rings when memory was given back while somebody waits for it.
#[derive(Default)]
struct Completions {
    arrivals: Mutex<u64>,
    rung: Condvar,
    /// Flights that are done and in the queue. Below zero for a moment where one lands before its count is told.
    done: AtomicIsize,
    /// Allocations that wait for memory.
    waiters: AtomicUsize,
    /// Flights that are done or no longer in the queue, and whose memory some thread is giving back at this moment. Whoever
    /// waits must not take it for nothing under way.
    unloading: AtomicUsize,
}

impl Completions {
    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) != 0
    }

    /// So many flights are about to be unloaded: called before anybody can see that they are done, or miss them.
    fn begin(&self, flights: usize) {
        self.unloading.fetch_add(flights, Ordering::SeqCst);
    }

    /// Their memory is free. Who began to wait after the first look found it free, but may have seen the number.
    fn end(&self, flights: usize) {
        if !self.has_waiters() {
            self.unloading.fetch_sub(flights, Ordering::SeqCst);
            if self.has_waiters() {
                self.ring(0);
            }
        } else {
            self.ring(flights);
        }
    }

    fn ring(&self, flights: usize) {
        let mut arrivals = self.arrivals.lock();
        *arrivals += 1;
        self.unloading.fetch_sub(flights, Ordering::SeqCst);
        drop(arrivals);
        self.rung.notify_all();
    }
}

impl Resources {
    /// The handles that have to be destroyed before the engine's client is.
    fn handles(&mut self) -> Consumed {
        let mut handles = mem::take(&mut self.consumed);
        let homing = self.buffers.iter().chain(&self.results).filter_map(|buffer| buffer.state().turn_away());
        handles.extend(homing);
        handles
    }

    /// Gives up all memory, and hands each buffer to `home` that was to come home after this.
    fn unload(&mut self, succeeded: bool, mut home: impl FnMut(Recycled)) {
        self.leftovers.clear();
        self.scratch = None;
        for buffer in self.buffers.drain(..) {
            if let Some(homecomer) = buffer.arrive(false, self.user) {
                home(homecomer);
            }
        }
        for result in self.results.drain(..) {
            if let Some(homecomer) = result.arrive(succeeded, self.user) {
                home(homecomer);
            }
        }
    }
}

impl Operation {
    /// Frees the memory that only the flight still held. May run on any thread, one of the engine too.
    fn unload(&self) {
        // Locked to the end: who destroys the handles must find those of the buffers that came home here.
        let cargo = &mut *self.cargo.lock();
        let mut consumed = mem::take(&mut cargo.consumed);
        cargo.unload(self.succeeded.load(Ordering::Relaxed), |homecomer| consumed.extend(homecomer.free()));
        cargo.consumed = consumed;
    }

    /// Ends the flight. Only from calls from outside.
    ///
    /// # Safety
    /// The engine's client must be alive.
    unsafe fn land(&self, engine: &'static Engine) {
        let mut cargo = mem::take(&mut *self.cargo.lock());
        cargo.unload(self.succeeded.load(Ordering::Relaxed), Recycled::keep);
        for handle in cargo.consumed {
            // SAFETY: the flight owned the handle; nobody else destroys it.
            unsafe { views::destroy(engine, handle.0) };
        }
        drop(cargo.context);
    }
}

impl Completion for Operation {
    fn engine(&self) -> &'static Engine {
        self.engine
    }

    /// The engine says that the operation is done.
    fn complete(&self, succeeded: bool) {
        self.succeeded.store(succeeded, Ordering::Relaxed);
        self.bell.begin(1);
        // Sequentially consistent on both sides: either this sees the waiter, or the waiter sees this operation done.
        self.done.store(true, Ordering::SeqCst);
        self.bell.done.fetch_add(1, Ordering::Relaxed);
        if self.bell.has_waiters() {
            self.unload();
        }
        self.bell.end(1);
    }
}

/// Takes what is done out of a queue.
fn all_done(flights: &mut VecDeque<Arc<Operation>>) -> SmallVec<[Arc<Operation>; 8]> {
    let mut done = SmallVec::new();
    flights.retain(|flight| {
        let flying = flight.is_under_way();
        if !flying {
            done.push(Arc::clone(flight));
        }
        flying
    });
    done
}

/// One attempt of [`InFlight::wait_until`].
pub struct Round<'a> {
    in_flight: &'a InFlight,
    engine: &'static Engine,
    /// When waiting is over.
    pub deadline: &'a Deadline<'a>,
    epoch: u64,
}

impl Round<'_> {
    /// Waits for an operation that completes after this round began, and reaps what is done; `false` if none is under way, or if
    /// the deadline has passed.
    pub fn wait(&self) -> bool {
        let changed = self.in_flight.wait_for_completion(self.epoch, self.deadline);
        if changed {
            self.reap();
        }
        changed
    }

    /// Reaps what is done.
    pub fn reap(&self) {
        self.in_flight.sweep(self.engine);
    }
}

/// All that is under way for one client.
#[derive(Default)]
pub struct InFlight {
    flights: Mutex<VecDeque<Arc<Operation>>>,
    /// Buffers whose handle the engine consumed and whose owner is gone.
    orphans: Mutex<Vec<Arc<Buffer>>>,
    /// How many orphans there are: mostly none, which is seen without the lock.
    orphaned: AtomicUsize,
    /// What runs have left that failed to start, where the engine could not say when it is free.
    stranded: Mutex<Vec<(ExecutionQueue, Resources)>>,
    /// Whether there may be some: seen without the lock.
    has_stranded: AtomicBool,
    /// Flights, orphans and the stranded.
    count: AtomicUsize,
    bell: Arc<Completions>,
}

impl InFlight {
    /// Watches over what ends with `event`, and whose results are there when `results_ready` is.
    pub fn launch(&self, event: &EngineEvent, results_ready: Option<EngineEvent>, cargo: Resources) {
        let flight = Arc::new(Operation {
            engine: event.engine(),
            results_ready,
            done: AtomicBool::new(false),
            succeeded: AtomicBool::new(false),
            bell: Arc::clone(&self.bell),
            cargo: Mutex::new(cargo),
        });
        self.count.fetch_add(1, Ordering::Release);
        self.flights.lock().push_back(Arc::clone(&flight));
        event.notify(flight);
    }

    /// Watches over what a run leaves that failed to start, until the device is done with all that it was given so far.
    /// Where the engine cannot say when that is, the next call asks again.
    ///
    /// # Safety
    /// The engine's client must be alive.
    #[cold]
    pub unsafe fn launch_behind(&self, queue: ExecutionQueue, engine: &'static Engine, mut cargo: Resources) {
        // It is not the run that ends well.
        cargo.buffers.extend(cargo.results.drain(..));
        // SAFETY: the caller's promise.
        match unsafe { Fence::of(queue, engine) } {
            Ok(tail) => {
                cargo.consumed.push(tail.buffer);
                self.launch(&tail.event, None, cargo);
            }
            Err(error) => {
                log::warn!("no end of the runs before one that failed, so its memory waits: {}", error.message());
                self.count.fetch_add(1, Ordering::Release);
                self.stranded.lock().push((queue, cargo));
                self.has_stranded.store(true, Ordering::Release);
            }
        }
    }

    /// Keeps a buffer whose handle cannot be destroyed yet.
    pub fn adopt_orphan(&self, buffer: Arc<Buffer>) {
        self.count.fetch_add(1, Ordering::Release);
        let mut orphans = self.orphans.lock();
        orphans.push(buffer);
        self.orphaned.store(orphans.len(), Ordering::Release);
    }

    /// Lands what is done at the head of the queue: executions of a device end in order. Where more are done than that, a long
    /// one of another device is before them, and they are looked for. One load if nothing is under way.
    pub fn tend(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.land_some(engine, |flights| {
                let done = flights.iter().take_while(|flight| !flight.is_under_way()).count();
                let all = self.bell.done.load(Ordering::Relaxed);
                if all > done as isize { all_done(flights) } else { flights.drain(..done).collect() }
            });
        }
    }

    /// Lands everything that is done.
    pub fn sweep(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.land_some(engine, all_done);
        }
    }

    /// Frees the memory of what is done, if nothing was launched since the last call with the same `newest`; the rest of
    /// landing is left to the next call into us. For who looks from time to time, on any thread: of the engine it calls
    /// nothing but an event's end, where another thread lands the flight at the same moment.
    pub fn unload_stale(&self, newest: &mut usize) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let done: SmallVec<[Arc<Operation>; 8]> = {
            let flights = self.flights.lock();
            let back = flights.back().map_or(0, |flight| Arc::as_ptr(flight).addr());
            if std::mem::replace(newest, back) != back {
                return;
            }
            let done: SmallVec<_> = flights.iter().filter(|flight| !flight.is_under_way()).cloned().collect();
            self.bell.begin(done.len());
            done
        };
        done.iter().for_each(|flight| flight.unload());
        self.bell.end(done.len());
    }

    /// Lands what is as good as done: waits for flights whose results are there already, at most 300 us.
    ///
    /// The engine tells who waits for a result before it tells us that the program is done, a few microseconds later,
    /// or more where threads are short of processors. A caller that dropped a result which it had waited for would miss
    /// its memory, and touch new memory instead.
    pub fn drain_ready(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let arriving: SmallVec<[Arc<Operation>; 4]> = {
            let flights = self.flights.lock();
            flights.iter().filter(|flight| flight.is_under_way()).cloned().collect()
        };
        let deadline = Instant::now() + MOMENT;
        for flight in arriving {
            // No lock is held while the engine is asked.
            if flight.results_ready.as_ref().is_some_and(EngineEvent::is_ready) {
                while flight.is_under_way() && Instant::now() < deadline {
                    thread::yield_now();
                }
            }
        }
        self.sweep(engine);
    }

    /// Waits until `enough`, at most as long as `bound`, while programs end one after another.
    pub fn throttle(&self, engine: &'static Engine, bound: Duration, enough: impl Fn() -> bool) {
        let deadline = Deadline::at(Instant::now() + bound);
        self.wait_until(engine, &deadline, |round| {
            if enough() || !round.wait() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    /// Ends the watch, because the client ends: destroys every consumed handle, waiting for the programs that hold them.
    /// What is still under way then frees its memory when it arrives.
    pub fn end(&self, engine: &'static Engine) {
        // From here on arriving flights unload by themselves.
        self.bell.waiters.fetch_add(1, Ordering::SeqCst);
        let destroy = |handles: Consumed| {
            for handle in handles {
                // SAFETY: the flight or its buffer owned the handle; the engine's client is still alive.
                unsafe { views::destroy(engine, handle.0) };
            }
        };
        let flights = mem::take(&mut *self.flights.lock());
        for flight in &flights {
            // No lock is held while the engine destroys: it may wait for the program, whose thread may be here at the same moment to
            // unload the flight. Nothing comes home after this, so what that finds has no handles.
            let handles = flight.cargo.lock().handles();
            destroy(handles);
            if !flight.is_under_way() {
                flight.unload();
            }
        }
        let mut stranded = mem::take(&mut *self.stranded.lock());
        stranded.iter_mut().for_each(|(_, cargo)| destroy(cargo.handles()));
        let orphans = mem::take(&mut *self.orphans.lock());
        self.orphaned.store(0, Ordering::Release);
        orphans.iter().for_each(|orphan| orphan.destroy_handle());
        self.count.fetch_sub(flights.len() + stranded.len() + orphans.len(), Ordering::Release);
    }

    /// Whether a program or a transfer is under way.
    pub fn is_busy(&self) -> bool {
        self.flights.lock().iter().any(|flight| flight.is_under_way())
    }

    /// Whether somebody waits for memory: what comes free is not to be kept then.
    pub fn has_waiters(&self) -> bool {
        self.bell.has_waiters()
    }

    /// A deadline from now on, which what is under way puts off, or not.
    pub fn deadline<'a>(&self, callbacks: &'a AtomicI64, prolonged: bool) -> Deadline<'a> {
        let under_way = |flight: &&Arc<Operation>| prolonged && flight.is_under_way();
        Deadline::new(callbacks, || {
            self.flights.lock().iter().filter(under_way).map(|flight| Arc::clone(flight) as _).collect()
        })
    }

    /// Calls `attempt` until it breaks, while operations that complete free their memory at once. Everything that waits for memory
    /// waits here: an attempt that failed calls [`Round::wait`], and continues if that says that something has changed.
    pub fn wait_until<T>(
        &self,
        engine: &'static Engine,
        deadline: &Deadline<'_>,
        mut attempt: impl FnMut(&Round<'_>) -> ControlFlow<T>,
    ) -> T {
        struct Waiter<'a>(&'a AtomicUsize);
        impl Drop for Waiter<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.bell.waiters.fetch_add(1, Ordering::SeqCst);
        let _waiter = Waiter(&self.bell.waiters);
        self.sweep(engine);
        loop {
            // Before the attempt: what completes while it looks for room is seen by the wait after it.
            let epoch = *self.bell.arrivals.lock();
            let round = Round { in_flight: self, engine, deadline, epoch };
            if let ControlFlow::Break(outcome) = attempt(&round) {
                return outcome;
            }
        }
    }

    /// Waits for one more completion than `seen`, until the deadline; whether there was one, or may have been.
    fn wait_for_completion(&self, seen: u64, deadline: &Deadline<'_>) -> bool {
        let flying = self.is_busy();
        let mut arrivals = self.bell.arrivals.lock();
        while *arrivals == seen {
            let unloading = self.bell.unloading.load(Ordering::SeqCst) != 0;
            if !(flying || unloading) {
                return *arrivals != seen;
            }
            let late = self.bell.rung.wait_for(&mut arrivals, deadline.left()).timed_out();
            if late && *arrivals == seen && deadline.is_over() {
                return false;
            }
        }
        !deadline.is_over()
    }

    fn land_some(
        &self,
        engine: &'static Engine,
        pick: impl FnOnce(&mut VecDeque<Arc<Operation>>) -> SmallVec<[Arc<Operation>; 8]>,
    ) {
        // No lock is held while the engine destroys.
        let landed = {
            let mut flights = self.flights.lock();
            let landed = pick(&mut flights);
            if !landed.is_empty() {
                self.bell.done.fetch_sub(landed.len() as isize, Ordering::Relaxed);
                self.bell.begin(landed.len());
            }
            landed
        };
        for flight in &landed {
            // SAFETY: the in_flight belongs to a client, which calls only while the engine's client lives.
            unsafe { flight.land(engine) };
        }
        if !landed.is_empty() {
            self.bell.end(landed.len());
        }
        let done = landed.len() + self.end_orphans() + self.relaunch_stranded(engine);
        if done > 0 {
            self.count.fetch_sub(done, Ordering::Release);
        }
    }

    /// Asks once more how long what runs have left must wait; for how many.
    fn relaunch_stranded(&self, engine: &'static Engine) -> usize {
        if !self.has_stranded.swap(false, Ordering::Acquire) {
            return 0;
        }
        let stranded = mem::take(&mut *self.stranded.lock());
        let count = stranded.len();
        for (queue, cargo) in stranded {
            // SAFETY: as in `land_some`.
            unsafe { self.launch_behind(queue, engine, cargo) };
        }
        count
    }

    /// Destroys the handles of orphans that nothing uses any more; how many.
    fn end_orphans(&self) -> usize {
        if self.orphaned.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let at_rest: SmallVec<[Arc<Buffer>; 4]> = {
            let mut orphans = self.orphans.lock();
            let at_rest = orphans.extract_if(.., |orphan| orphan.is_at_rest()).collect();
            self.orphaned.store(orphans.len(), Ordering::Release);
            at_rest
        };
        at_rest.iter().for_each(|orphan| orphan.destroy_handle());
        at_rest.len()
    }
}
