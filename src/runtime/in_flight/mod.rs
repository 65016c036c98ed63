//! Operations that are under way in the engine, and what each of them keeps alive.
//!
//! ```text
//!  track ------- engine runs ------- completion event --- the next call of the C API
//!                                       |                    |
//!                                       operation is done    reap: the blocks that its buffers gave up are free, small
//!                                                            results go to the cache (allocator/output_cache.rs),
//!                                                            consumed handles and contexts are destroyed
//!
//!  resources.rs     what an operation keeps alive
//!  queue.rs         which operations there are, and how allocations that wait for memory learn of their ends
//!  deadline.rs      how long they wait
//!  launches.rs      what is over when the engine returns, and no operation
//!  deferred.rs      buffers whose handle cannot be destroyed yet
//! ```
//!
//! The completion callback runs on a thread of the engine and only sets a flag, unless an allocation waits for
//! memory; then it frees the operation's blocks itself. The next call reaps the operation: that costs its caller less
//! than it costs two threads to meet, and destroying a handle that was donated to a program blocks until that program
//! is done (engine behaviour T3), in the program's own callback for ever. Where no next call comes,
//! [`InFlight::release_stale`] frees the memory.
//!
//! An execution that fails to start reports that at once. On an engine that orders executions, the executions before
//! it may still use its blocks then, and so may those of its own kernels that were launched: its resources go into an
//! operation that ends with all that the device was given so far ([`Fence`]). An execution that fails later is an
//! operation like any other.

use std::{
    mem,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    engine::{
        Engine, EngineEvent,
        fence::{ExecutionQueue, Fence},
        handles::Completion,
    },
    runtime::{
        buffer::{Buffer, VacantBuffer},
        dispatch::{LastEnd, Timed},
        in_flight::{
            deadline::{Deadline, UnderWay},
            deferred::Deferred,
            launches::Launches,
            queue::{End, Ends, Queue},
        },
    },
};

pub mod deadline;
mod deferred;
mod launches;
mod queue;
mod resources;

pub use launches::Begun;
pub use resources::{Consumed, Resources};

/// One execution or transfer on one device.
struct Operation {
    engine: &'static Engine,
    /// Ready once the results are defined; only of operations that write large results.
    results_ready: Option<EngineEvent>,
    end: End,
    timed: Option<Timed>,
    succeeded: AtomicBool,
    resources: Mutex<Resources>,
}

impl UnderWay for Operation {
    fn is_under_way(&self) -> bool {
        !self.end.has_come()
    }
}

impl Ends for Operation {
    fn end(&self) -> &End {
        &self.end
    }

    fn release_memory(&self) {
        // Locked to the end: a thread that destroys the handles must find those of the buffers that are recycled
        // here.
        let resources = &mut *self.resources.lock();
        let mut consumed = mem::take(&mut resources.consumed);
        resources.release_memory(self.succeeded.load(Ordering::Relaxed), |vacant| consumed.extend(vacant.free()));
        resources.consumed = consumed;
    }

    fn reap(&self) {
        let mut resources = mem::take(&mut *self.resources.lock());
        resources.release_memory(self.succeeded.load(Ordering::Relaxed), VacantBuffer::keep);
        drop(resources.consumed);
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
        if let Some(timed) = &self.timed {
            timed.end();
        }
        self.end.come(|| self.release_memory());
    }
}

/// One attempt of [`InFlight::wait_until`].
pub struct Round<'a> {
    in_flight: &'a InFlight,
    /// When the wait ends.
    pub deadline: &'a Deadline<'a>,
    epoch: u64,
}

impl Round<'_> {
    /// Waits for an operation that completes after this round began, and reaps what is done; `false` if none is under
    /// way, or if the deadline has passed.
    pub fn wait(&self) -> bool {
        let deadline = self.deadline;
        let changed = self.in_flight.queue.wait(self.epoch, || deadline.left(), || deadline.look_for_signals());
        if changed {
            self.reap();
        }
        changed
    }

    /// Reaps the operations that are done.
    pub fn reap(&self) {
        self.in_flight.reap_all();
    }
}

/// All operations that are under way for one client.
#[derive(Default)]
pub struct InFlight {
    queue: Queue<Operation>,
    /// Buffers whose handle the engine consumed and whose owner is gone.
    deferred: Mutex<Deferred<Arc<Buffer>>>,
    /// The length of `deferred`: mostly zero, which is seen without the lock.
    deferred_count: AtomicUsize,
    /// Resources of executions that failed to start, where the engine could not say when they are free.
    unfenced: Mutex<Vec<(ExecutionQueue, Resources)>>,
    /// Whether `unfenced` may hold some: seen without the lock.
    has_unfenced: AtomicBool,
    /// What programs may use of which nobody will ever know whether they have ended: kept until the client is gone.
    stranded: Mutex<Vec<Resources>>,
    /// Operations, deferred buffers, unfenced and stranded resources, together.
    count: AtomicUsize,
    /// Launches that may become operations.
    launches: Launches,
    /// When the last of its timed operations ended.
    pub last_end: LastEnd,
}

impl InFlight {
    /// Keeps `resources` until `event`; the results are defined when `results_ready` is.
    pub fn track(&self, event: &EngineEvent, results_ready: Option<EngineEvent>, mut resources: Resources) {
        self.count.fetch_add(1, Ordering::Release);
        let timed = resources.timed.take();
        let (succeeded, resources) = (AtomicBool::new(false), Mutex::new(resources));
        let operation = self.queue.push(|end| Operation {
            engine: event.engine(),
            results_ready,
            end,
            timed,
            succeeded,
            resources,
        });
        event.notify(operation);
    }

    /// Keeps the `resources` of an execution that failed to start, until the device is done with all that it was
    /// given so far. Where the engine cannot say when that is, the next call asks again.
    #[cold]
    pub fn track_behind(&self, queue: ExecutionQueue, mut resources: Resources) {
        // The fence may succeed, but the execution did not: its results must not become defined.
        resources.buffers.extend(resources.results.drain(..));
        match Fence::of(queue) {
            Ok(fence) => {
                resources.consumed.push(fence.buffer);
                self.track(&fence.event, None, resources);
            }
            Err(error) => {
                log::warn!("no end of the runs before one that failed, so its memory waits: {}", error.message());
                self.count.fetch_add(1, Ordering::Release);
                self.unfenced.lock().push((queue, resources));
                self.has_unfenced.store(true, Ordering::Release);
            }
        }
    }

    /// Keeps what a program may use whose end cannot be known, until the client is gone: of a launch over several
    /// devices that failed on one of them, where the engine does not order executions.
    #[cold]
    pub fn strand(&self, resources: Resources) {
        self.count.fetch_add(1, Ordering::Release);
        self.stranded.lock().push(resources);
    }

    /// Keeps a buffer whose handle cannot be destroyed yet.
    pub fn defer_destruction(&self, buffer: Arc<Buffer>) {
        self.count.fetch_add(1, Ordering::Release);
        let mut deferred = self.deferred.lock();
        deferred.push(buffer);
        self.deferred_count.store(deferred.len(), Ordering::Release);
    }

    /// Before the engine is called for a launch: it has begun until what is returned is dropped.
    #[inline]
    pub fn begin_launch(&self) -> Begun<'_> {
        self.launches.begin()
    }

    /// Whether no other launch is under way, since this one began, and no operation either.
    #[inline]
    pub fn is_alone(&self, launch: &Begun<'_>) -> bool {
        launch.is_alone() && self.count.load(Ordering::Acquire) == 0
    }

    /// Reaps the operations that are done at the head of the queue: executions of a device end in order. If more are
    /// done than that, a long one of another device is before them, and the whole queue is searched. One load if
    /// nothing is under way.
    pub fn reap_in_order(&self) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.reaped(self.queue.reap_in_order());
        }
    }

    /// Reaps all operations that are done.
    pub fn reap_all(&self) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.reaped(self.queue.reap_all());
        }
    }

    /// Frees the memory of the operations that are done, if nothing was launched since the last call with the same
    /// `newest`; the next call of the C API does the rest of reaping. For a periodic caller on any thread: of the
    /// engine it calls nothing but an event's destructor, if another thread reaps the operation at the same moment.
    pub fn release_stale(&self, newest: &mut usize) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.queue.release_stale(newest);
        }
    }

    /// Reaps operations whose results are defined already, for which it waits so long at most.
    ///
    /// The engine tells a caller that a result is ready before it tells this library that the program is done: a few
    /// microseconds, or milliseconds where threads are short of processors. An allocation that follows a dropped
    /// result would miss its memory, and touch new memory instead; and one that finds no room would take for under way
    /// what has ended.
    pub fn drain_ready(&self, at_most: Duration) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let completing: SmallVec<[Arc<Operation>; 4]> = self.queue.under_way();
        let deadline = Instant::now() + at_most;
        for operation in completing {
            // No lock is held while the engine is asked.
            if operation.results_ready.as_ref().is_some_and(EngineEvent::is_ready) {
                while operation.is_under_way() && Instant::now() < deadline {
                    thread::yield_now();
                }
            }
        }
        self.reap_all();
    }

    /// Waits while `wanting`, until `deadline` at most, as programs end one after another.
    pub fn wait_while(&self, deadline: &Deadline, wanting: impl Fn() -> bool) {
        self.wait_until(deadline, |round| {
            if wanting() && round.wait() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }

    /// Ends with the client: destroys every consumed handle, and waits for the programs that use them. An operation
    /// that is still under way frees its memory when it completes.
    pub fn end(&self) {
        let operations = self.queue.close(|operation| {
            // No lock is held while the engine destroys a handle: it may wait for the program, whose thread may be
            // about to free the operation's memory. Nothing is recycled after this, so that thread finds no handles.
            let taken = operation.resources.lock().take_engine_buffers();
            drop(taken);
        });
        let mut unfenced = mem::take(&mut *self.unfenced.lock());
        unfenced.iter_mut().for_each(|(_, resources)| drop(resources.take_engine_buffers()));
        let deferred = self.deferred.lock().take_all();
        self.deferred_count.store(0, Ordering::Release);
        deferred.iter().for_each(|buffer| buffer.destroy_handle());
        self.count.fetch_sub(operations.len() + unfenced.len() + deferred.len(), Ordering::Release);
    }

    /// The programs and transfers that are under way.
    pub fn under_way(&self) -> Vec<Arc<dyn UnderWay>> {
        let operations: Vec<Arc<Operation>> = self.queue.under_way();
        operations.into_iter().map(|operation| operation as _).collect()
    }

    /// Whether more than so many programs and transfers are under way.
    pub fn is_under_way(&self, most: usize) -> bool {
        self.queue.is_longer(most)
    }

    /// Whether a program or a transfer is under way.
    pub fn is_busy(&self) -> bool {
        self.queue.is_busy()
    }

    /// Whether an allocation waits for memory: caches keep nothing then.
    pub fn has_waiters(&self) -> bool {
        self.queue.has_waiters()
    }

    /// A deadline from now on; operations under way put it off if `prolonged`.
    pub fn deadline<'a>(&self, callbacks: &'a AtomicI64, prolonged: bool) -> Deadline<'a> {
        Deadline::new(callbacks, || if prolonged { self.under_way() } else { Vec::new() })
    }

    /// Calls `attempt` until it breaks, while operations that complete free their memory at once. Every wait for
    /// memory is here: an attempt that failed calls [`Round::wait`], and continues if that says that something has
    /// changed.
    pub fn wait_until<T>(&self, deadline: &Deadline<'_>, mut attempt: impl FnMut(&Round<'_>) -> ControlFlow<T>) -> T {
        self.queue.wait_until(|| self.reap_all(), |epoch| attempt(&Round { in_flight: self, deadline, epoch }))
    }

    /// Does the rest of reaping, after this many operations.
    fn reaped(&self, operations: usize) {
        let done = operations + self.destroy_deferred() + self.track_unfenced();
        if done > 0 {
            self.count.fetch_sub(done, Ordering::Release);
        }
    }

    /// Asks the engine once more for a fence after the unfenced resources; how many there were.
    fn track_unfenced(&self) -> usize {
        // Mostly there is none: a load does not take the cache line from the engine's threads, as a swap would.
        if !self.has_unfenced.load(Ordering::Acquire) || !self.has_unfenced.swap(false, Ordering::Acquire) {
            return 0;
        }
        let unfenced = mem::take(&mut *self.unfenced.lock());
        let count = unfenced.len();
        for (queue, resources) in unfenced {
            self.track_behind(queue, resources);
        }
        count
    }

    /// Destroys the handles of deferred buffers that are unused now, as far as they are looked at; how many.
    fn destroy_deferred(&self) -> usize {
        if self.deferred_count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let unused = {
            let mut deferred = self.deferred.lock();
            let unused: SmallVec<[Arc<Buffer>; 4]> = deferred.take_ended(|buffer| buffer.is_unused()).collect();
            self.deferred_count.store(deferred.len(), Ordering::Release);
            unused
        };
        unused.iter().for_each(|buffer| buffer.destroy_handle());
        unused.len()
    }
}
