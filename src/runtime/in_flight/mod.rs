//! What is under way in the engine, and what it keeps alive.
//!
//! ```text
//!  track ------- engine runs ------- completion event ------ next call into us
//!                                       |                       |
//!                                       the operation is done      it lands: blocks given up meanwhile are free,
//!                                                               small results become spares (spares.rs), consumed
//!                                                               handles and contexts are destroyed
//! ```
//!
//! The completion callback runs on a thread of the engine and only sets a flag, unless an allocation is waiting for
//! memory; then it frees the operation's blocks itself. Landing is left to the next call because it costs the caller less
//! than it costs two threads to meet, and because destroying a handle that a program was donated blocks until that
//! program is done (engine behaviour T3), inside its own callback for ever. Where no next call comes, [`InFlight::release_stale`] frees
//! the memory.
//!
//! A run that fails to start says so at once. Where the engine does one run after another, those before it may still use its
//! blocks then, and so may the kernels of its own that were launched before the one that was not: its resources goes into a
//! operation that ends with all that the device was given so far ([`Fence`]). One that fails later does so in its turn.

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

/// What a operation carries until it lands.
#[derive(Default)]
pub struct Resources {
    /// Buffers in use, each taken up with [`Buffer::begin_use`].
    pub buffers: SmallVec<[Arc<Buffer>; 4]>,
    /// Buffers that the operation writes, taken up as well.
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
    /// Ready once the results are there; only of operations that write large ones.
    results_ready: Option<EngineEvent>,
    done: AtomicBool,
    succeeded: AtomicBool,
    completions: Arc<Completions>,
    resources: Mutex<Resources>,
}

impl UnderWay for Operation {
    fn is_under_way(&self) -> bool {
        !self.done.load(Ordering::SeqCst)
    }
}

/// Rings when memory was given back while somebody waits for it.
#[derive(Default)]
struct Completions {
    epoch: Mutex<u64>,
    changed: Condvar,
    /// Flights that are done and in the queue. Below zero for a moment where one lands before its count is told.
    done: AtomicIsize,
    /// Allocations that wait for memory.
    waiters: AtomicUsize,
    /// Flights that are done or no longer in the queue, and whose memory some thread is giving back at this moment. Whoever
    /// waits must not take it for nothing under way.
    releasing: AtomicUsize,
}

impl Completions {
    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) != 0
    }

    /// So many operations are about to be unloaded: called before anybody can see that they are done, or miss them.
    fn begin(&self, operations: usize) {
        self.releasing.fetch_add(operations, Ordering::SeqCst);
    }

    /// Their memory is free. Who began to wait after the first look found it free, but may have seen the number.
    fn end(&self, operations: usize) {
        if !self.has_waiters() {
            self.releasing.fetch_sub(operations, Ordering::SeqCst);
            if self.has_waiters() {
                self.advance(0);
            }
        } else {
            self.advance(operations);
        }
    }

    fn advance(&self, operations: usize) {
        let mut epoch = self.epoch.lock();
        *epoch += 1;
        self.releasing.fetch_sub(operations, Ordering::SeqCst);
        drop(epoch);
        self.changed.notify_all();
    }
}

impl Resources {
    /// The handles that have to be destroyed before the engine's client is.
    fn handles(&mut self) -> Consumed {
        let mut handles = mem::take(&mut self.consumed);
        let recycling =
            self.buffers.iter().chain(&self.results).filter_map(|buffer| buffer.state().take_handle_of_recycling());
        handles.extend(recycling);
        handles
    }

    /// Gives up all memory, and hands each buffer to `home` that was to come home after this.
    fn release_memory(&mut self, succeeded: bool, mut home: impl FnMut(Recycled)) {
        self.leftovers.clear();
        self.scratch = None;
        for buffer in self.buffers.drain(..) {
            if let Some(recycled) = buffer.end_operation_use(false, self.user) {
                home(recycled);
            }
        }
        for result in self.results.drain(..) {
            if let Some(recycled) = result.end_operation_use(succeeded, self.user) {
                home(recycled);
            }
        }
    }
}

impl Operation {
    /// Frees the memory that only the operation still held. May run on any thread, one of the engine too.
    fn release_memory(&self) {
        // Locked to the end: who destroys the handles must find those of the buffers that came home here.
        let resources = &mut *self.resources.lock();
        let mut consumed = mem::take(&mut resources.consumed);
        resources.release_memory(self.succeeded.load(Ordering::Relaxed), |recycled| consumed.extend(recycled.free()));
        resources.consumed = consumed;
    }

    /// Ends the operation. Only from calls from outside.
    ///
    /// # Safety
    /// The engine's client must be alive.
    unsafe fn reap(&self, engine: &'static Engine) {
        let mut resources = mem::take(&mut *self.resources.lock());
        resources.release_memory(self.succeeded.load(Ordering::Relaxed), Recycled::keep);
        for handle in resources.consumed {
            // SAFETY: the operation owned the handle; nobody else destroys it.
            unsafe { views::destroy(engine, handle.0) };
        }
        drop(resources.context);
    }
}

impl Completion for Operation {
    fn engine(&self) -> &'static Engine {
        self.engine
    }

    /// The engine says that the operation is done.
    fn complete(&self, succeeded: bool) {
        self.succeeded.store(succeeded, Ordering::Relaxed);
        self.completions.begin(1);
        // Sequentially consistent on both sides: either this sees the waiter, or the waiter sees this operation done.
        self.done.store(true, Ordering::SeqCst);
        self.completions.done.fetch_add(1, Ordering::Relaxed);
        if self.completions.has_waiters() {
            self.release_memory();
        }
        self.completions.end(1);
    }
}

/// Takes what is done out of a queue.
fn all_done(operations: &mut VecDeque<Arc<Operation>>) -> SmallVec<[Arc<Operation>; 8]> {
    let mut done = SmallVec::new();
    operations.retain(|operation| {
        let under_way = operation.is_under_way();
        if !under_way {
            done.push(Arc::clone(operation));
        }
        under_way
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
        self.in_flight.reap_all(self.engine);
    }
}

/// All that is under way for one client.
#[derive(Default)]
pub struct InFlight {
    operations: Mutex<VecDeque<Arc<Operation>>>,
    /// Buffers whose handle the engine consumed and whose owner is gone.
    deferred: Mutex<Vec<Arc<Buffer>>>,
    /// How many deferred there are: mostly none, which is seen without the lock.
    deferred_count: AtomicUsize,
    /// What runs have left that failed to start, where the engine could not say when it is free.
    unfenced: Mutex<Vec<(ExecutionQueue, Resources)>>,
    /// Whether there may be some: seen without the lock.
    has_unfenced: AtomicBool,
    /// Flights, deferred and the unfenced.
    count: AtomicUsize,
    completions: Arc<Completions>,
}

impl InFlight {
    /// Watches over what ends with `event`, and whose results are there when `results_ready` is.
    pub fn track(&self, event: &EngineEvent, results_ready: Option<EngineEvent>, resources: Resources) {
        let operation = Arc::new(Operation {
            engine: event.engine(),
            results_ready,
            done: AtomicBool::new(false),
            succeeded: AtomicBool::new(false),
            completions: Arc::clone(&self.completions),
            resources: Mutex::new(resources),
        });
        self.count.fetch_add(1, Ordering::Release);
        self.operations.lock().push_back(Arc::clone(&operation));
        event.notify(operation);
    }

    /// Watches over what a run leaves that failed to start, until the device is done with all that it was given so far.
    /// Where the engine cannot say when that is, the next call asks again.
    ///
    /// # Safety
    /// The engine's client must be alive.
    #[cold]
    pub unsafe fn track_behind(&self, queue: ExecutionQueue, engine: &'static Engine, mut resources: Resources) {
        // It is not the run that ends well.
        resources.buffers.extend(resources.results.drain(..));
        // SAFETY: the caller's promise.
        match unsafe { Fence::of(queue, engine) } {
            Ok(tail) => {
                resources.consumed.push(tail.buffer);
                self.track(&tail.event, None, resources);
            }
            Err(error) => {
                log::warn!("no end of the runs before one that failed, so its memory waits: {}", error.message());
                self.count.fetch_add(1, Ordering::Release);
                self.unfenced.lock().push((queue, resources));
                self.has_unfenced.store(true, Ordering::Release);
            }
        }
    }

    /// Keeps a buffer whose handle cannot be destroyed yet.
    pub fn defer_destruction(&self, buffer: Arc<Buffer>) {
        self.count.fetch_add(1, Ordering::Release);
        let mut deferred = self.deferred.lock();
        deferred.push(buffer);
        self.deferred_count.store(deferred.len(), Ordering::Release);
    }

    /// Lands what is done at the head of the queue: executions of a device end in order. Where more are done than that, a long
    /// one of another device is before them, and they are looked for. One load if nothing is under way.
    pub fn reap_in_order(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.reap_some(engine, |operations| {
                let done = operations.iter().take_while(|operation| !operation.is_under_way()).count();
                let all = self.completions.done.load(Ordering::Relaxed);
                if all > done as isize { all_done(operations) } else { operations.drain(..done).collect() }
            });
        }
    }

    /// Lands everything that is done.
    pub fn reap_all(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.reap_some(engine, all_done);
        }
    }

    /// Frees the memory of what is done, if nothing was launched since the last call with the same `newest`; the rest of
    /// landing is left to the next call into us. For who looks from time to time, on any thread: of the engine it calls
    /// nothing but an event's end, where another thread lands the operation at the same moment.
    pub fn release_stale(&self, newest: &mut usize) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let done: SmallVec<[Arc<Operation>; 8]> = {
            let operations = self.operations.lock();
            let back = operations.back().map_or(0, |operation| Arc::as_ptr(operation).addr());
            if std::mem::replace(newest, back) != back {
                return;
            }
            let done: SmallVec<_> = operations.iter().filter(|operation| !operation.is_under_way()).cloned().collect();
            self.completions.begin(done.len());
            done
        };
        done.iter().for_each(|operation| operation.release_memory());
        self.completions.end(done.len());
    }

    /// Lands what is as good as done: waits for operations whose results are there already, at most 300 us.
    ///
    /// The engine tells who waits for a result before it tells us that the program is done, a few microseconds later,
    /// or more where threads are short of processors. A caller that dropped a result which it had waited for would miss
    /// its memory, and touch new memory instead.
    pub fn drain_ready(&self, engine: &'static Engine) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let completing: SmallVec<[Arc<Operation>; 4]> = {
            let operations = self.operations.lock();
            operations.iter().filter(|operation| operation.is_under_way()).cloned().collect()
        };
        let deadline = Instant::now() + MOMENT;
        for operation in completing {
            // No lock is held while the engine is asked.
            if operation.results_ready.as_ref().is_some_and(EngineEvent::is_ready) {
                while operation.is_under_way() && Instant::now() < deadline {
                    thread::yield_now();
                }
            }
        }
        self.reap_all(engine);
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
        // From here on completing operations release_memory by themselves.
        self.completions.waiters.fetch_add(1, Ordering::SeqCst);
        let destroy = |handles: Consumed| {
            for handle in handles {
                // SAFETY: the operation or its buffer owned the handle; the engine's client is still alive.
                unsafe { views::destroy(engine, handle.0) };
            }
        };
        let operations = mem::take(&mut *self.operations.lock());
        for operation in &operations {
            // No lock is held while the engine destroys: it may wait for the program, whose thread may be here at the same moment to
            // release_memory the operation. Nothing comes home after this, so what that finds has no handles.
            let handles = operation.resources.lock().handles();
            destroy(handles);
            if !operation.is_under_way() {
                operation.release_memory();
            }
        }
        let mut unfenced = mem::take(&mut *self.unfenced.lock());
        unfenced.iter_mut().for_each(|(_, resources)| destroy(resources.handles()));
        let deferred = mem::take(&mut *self.deferred.lock());
        self.deferred_count.store(0, Ordering::Release);
        deferred.iter().for_each(|buffer| buffer.destroy_handle());
        self.count.fetch_sub(operations.len() + unfenced.len() + deferred.len(), Ordering::Release);
    }

    /// Whether a program or a transfer is under way.
    pub fn is_busy(&self) -> bool {
        self.operations.lock().iter().any(|operation| operation.is_under_way())
    }

    /// Whether somebody waits for memory: what comes free is not to be kept then.
    pub fn has_waiters(&self) -> bool {
        self.completions.has_waiters()
    }

    /// A deadline from now on, which what is under way puts off, or not.
    pub fn deadline<'a>(&self, callbacks: &'a AtomicI64, prolonged: bool) -> Deadline<'a> {
        let under_way = |operation: &&Arc<Operation>| prolonged && operation.is_under_way();
        Deadline::new(callbacks, || {
            self.operations.lock().iter().filter(under_way).map(|operation| Arc::clone(operation) as _).collect()
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
        self.completions.waiters.fetch_add(1, Ordering::SeqCst);
        let _waiter = Waiter(&self.completions.waiters);
        self.reap_all(engine);
        loop {
            // Before the attempt: what completes while it looks for room is seen by the wait after it.
            let epoch = *self.completions.epoch.lock();
            let round = Round { in_flight: self, engine, deadline, epoch };
            if let ControlFlow::Break(outcome) = attempt(&round) {
                return outcome;
            }
        }
    }

    /// Waits for one more completion than `seen`, until the deadline; whether there was one, or may have been.
    fn wait_for_completion(&self, seen: u64, deadline: &Deadline<'_>) -> bool {
        let under_way = self.is_busy();
        let mut epoch = self.completions.epoch.lock();
        while *epoch == seen {
            let releasing = self.completions.releasing.load(Ordering::SeqCst) != 0;
            if !(under_way || releasing) {
                return *epoch != seen;
            }
            let late = self.completions.changed.wait_for(&mut epoch, deadline.left()).timed_out();
            if late && *epoch == seen && deadline.is_over() {
                return false;
            }
        }
        !deadline.is_over()
    }

    fn reap_some(
        &self,
        engine: &'static Engine,
        pick: impl FnOnce(&mut VecDeque<Arc<Operation>>) -> SmallVec<[Arc<Operation>; 8]>,
    ) {
        // No lock is held while the engine destroys.
        let reaped = {
            let mut operations = self.operations.lock();
            let reaped = pick(&mut operations);
            if !reaped.is_empty() {
                self.completions.done.fetch_sub(reaped.len() as isize, Ordering::Relaxed);
                self.completions.begin(reaped.len());
            }
            reaped
        };
        for operation in &reaped {
            // SAFETY: the in_flight belongs to a client, which calls only while the engine's client lives.
            unsafe { operation.reap(engine) };
        }
        if !reaped.is_empty() {
            self.completions.end(reaped.len());
        }
        let done = reaped.len() + self.destroy_deferred() + self.track_unfenced(engine);
        if done > 0 {
            self.count.fetch_sub(done, Ordering::Release);
        }
    }

    /// Asks once more how long what runs have left must wait; for how many.
    fn track_unfenced(&self, engine: &'static Engine) -> usize {
        if !self.has_unfenced.swap(false, Ordering::Acquire) {
            return 0;
        }
        let unfenced = mem::take(&mut *self.unfenced.lock());
        let count = unfenced.len();
        for (queue, resources) in unfenced {
            // SAFETY: as in `reap_some`.
            unsafe { self.track_behind(queue, engine, resources) };
        }
        count
    }

    /// Destroys the handles of deferred that nothing uses any more; how many.
    fn destroy_deferred(&self) -> usize {
        if self.deferred_count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let at_rest: SmallVec<[Arc<Buffer>; 4]> = {
            let mut deferred = self.deferred.lock();
            let at_rest = deferred.extract_if(.., |buffer| buffer.is_unused()).collect();
            self.deferred_count.store(deferred.len(), Ordering::Release);
            at_rest
        };
        at_rest.iter().for_each(|buffer| buffer.destroy_handle());
        at_rest.len()
    }
}
