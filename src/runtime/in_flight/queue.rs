//! The operations under way, and how allocations that wait for memory learn of their ends.
//!
//! An operation that completes only sets a flag, unless an allocation waits: that one reaps what it finds done. Whoever
//! frees memory while an allocation waits, or takes operations out of the queue, announces it before another thread can
//! see that they are done, or miss them, and wakes those that wait when the memory is free. So an allocation gives up
//! only when nothing is under way, nothing is to be reaped, and nobody is about to free anything.

use std::{collections::VecDeque, mem, ops::ControlFlow, sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering},
};

/// What ends, and then frees memory.
pub(super) trait Ends {
    /// Its end.
    fn end(&self) -> &End;

    /// Frees the memory that only the operation used. May run on any thread, one of the engine's too, and more than
    /// once.
    fn release_memory(&self);

    /// Ends the operation. Only in calls of the C API, not on the engine's threads.
    fn reap(&self);
}

/// The end of an operation: whether it is done, and who learns of it.
pub(super) struct End {
    done: AtomicBool,
    completions: Arc<Completions>,
}

impl End {
    /// Whether the operation is done.
    pub(super) fn has_come(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// The operation is done. Calls `release_memory` if an allocation waits.
    pub(super) fn come(&self, release_memory: impl FnOnce()) {
        let completions = &*self.completions;
        // Mostly nobody waits. Then nothing is announced: the caller's thread reads the line that this would write.
        let announced = completions.has_waiters();
        if announced {
            completions.begin(1);
        }
        // Sequentially consistent on both sides: either this sees the waiter, or the waiter sees this operation done.
        self.done.store(true, Ordering::SeqCst);
        completions.done.fetch_add(1, Ordering::Relaxed);
        if completions.has_waiters() {
            release_memory();
            completions.advance(usize::from(announced));
        } else if announced {
            completions.end(1);
        }
    }
}

/// Wakes allocations that wait, when an operation has freed memory.
#[derive(Default)]
struct Completions {
    epoch: Mutex<u64>,
    changed: Condvar,
    /// Operations that are done and in the queue. Below zero for a moment if one is reaped before it is counted.
    done: AtomicIsize,
    /// Allocations that wait for memory.
    waiters: AtomicUsize,
    /// Operations that are done or no longer in the queue, and whose memory a thread frees at this moment. An
    /// allocation that waits must count them as under way.
    releasing: AtomicUsize,
}

impl Completions {
    fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) != 0
    }

    /// Announces that `operations` will be freed: called before another thread can see that they are done, or miss
    /// them.
    fn begin(&self, operations: usize) {
        self.releasing.fetch_add(operations, Ordering::SeqCst);
    }

    /// Their memory is free. An allocation that began to wait after the first look found the memory free, but may
    /// have seen the number.
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

/// The operations under way, in the order in which they were launched.
pub(super) struct Queue<T> {
    operations: Mutex<VecDeque<Arc<T>>>,
    completions: Arc<Completions>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { operations: Mutex::default(), completions: Arc::default() }
    }
}

impl<T: Ends> Queue<T> {
    /// Adds the operation that `begin` makes. It must [come](End::come) to its end.
    pub(super) fn push(&self, begin: impl FnOnce(End) -> T) -> Arc<T> {
        let end = End { done: AtomicBool::new(false), completions: Arc::clone(&self.completions) };
        let operation = Arc::new(begin(end));
        self.operations.lock().push_back(Arc::clone(&operation));
        operation
    }

    /// Whether an operation is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.look().0
    }

    /// Whether more than so many are under way.
    pub(super) fn is_longer(&self, most: usize) -> bool {
        let operations = self.operations.lock();
        operations.iter().filter(|operation| !operation.end().has_come()).nth(most).is_some()
    }

    /// Whether an operation is under way, and whether one is done, but not yet reaped.
    fn look(&self) -> (bool, bool) {
        let operations = self.operations.lock();
        let under_way = operations.iter().filter(|operation| !operation.end().has_come()).count();
        (under_way > 0, operations.len() > under_way)
    }

    /// Those that are under way.
    pub(super) fn under_way<C: FromIterator<Arc<T>>>(&self) -> C {
        self.operations.lock().iter().filter(|operation| !operation.end().has_come()).cloned().collect()
    }

    /// Whether an allocation waits for memory.
    pub(super) fn has_waiters(&self) -> bool {
        self.completions.has_waiters()
    }

    /// Reaps the operations that are done at the head of the queue, or all that are done where more are; how many.
    pub(super) fn reap_in_order(&self) -> usize {
        self.reap_some(|operations| {
            let done = operations.iter().take_while(|operation| operation.end().has_come()).count();
            let all = self.completions.done.load(Ordering::Relaxed);
            if all > done as isize { all_done(operations) } else { operations.drain(..done).collect() }
        })
    }

    /// Reaps all operations that are done; how many.
    pub(super) fn reap_all(&self) -> usize {
        self.reap_some(all_done)
    }

    fn reap_some(&self, pick: impl FnOnce(&mut VecDeque<Arc<T>>) -> SmallVec<[Arc<T>; 8]>) -> usize {
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
            operation.reap();
        }
        if !reaped.is_empty() {
            self.completions.end(reaped.len());
        }
        reaped.len()
    }

    /// Frees the memory of the operations that are done, and leaves them in the queue, if nothing was launched since
    /// the last call with the same `newest`.
    pub(super) fn release_stale(&self, newest: &mut usize) {
        let done: SmallVec<[Arc<T>; 8]> = {
            let operations = self.operations.lock();
            let back = operations.back().map_or(0, |operation| Arc::as_ptr(operation).addr());
            if mem::replace(newest, back) != back {
                return;
            }
            let done: SmallVec<_> = operations.iter().filter(|operation| operation.end().has_come()).cloned().collect();
            self.completions.begin(done.len());
            done
        };
        done.iter().for_each(|operation| operation.release_memory());
        self.completions.end(done.len());
    }

    /// Takes all operations out, calls `take_leave` with each, and frees the memory of those that are done; from here
    /// on operations that complete free their memory themselves. Gives back the operations.
    pub(super) fn close(&self, take_leave: impl Fn(&T)) -> VecDeque<Arc<T>> {
        self.completions.waiters.fetch_add(1, Ordering::SeqCst);
        let operations = mem::take(&mut *self.operations.lock());
        for operation in &operations {
            take_leave(operation);
            if operation.end().has_come() {
                operation.release_memory();
            }
        }
        operations
    }

    /// Calls `attempt` until it breaks, while operations that complete free their memory at once, and `reap` before
    /// that. An attempt that failed [waits](Self::wait) for one more completion than the number that it is given.
    pub(super) fn wait_until<O>(&self, reap: impl FnOnce(), mut attempt: impl FnMut(u64) -> ControlFlow<O>) -> O {
        struct Waiter<'a>(&'a AtomicUsize);
        impl Drop for Waiter<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.completions.waiters.fetch_add(1, Ordering::SeqCst);
        let _waiter = Waiter(&self.completions.waiters);
        reap();
        loop {
            // Read before the attempt: an operation that completes during the attempt ends the wait after it.
            let epoch = *self.completions.epoch.lock();
            if let ControlFlow::Break(outcome) = attempt(epoch) {
                return outcome;
            }
        }
    }

    /// Waits for one more completion than `seen`, until no time is `left`; whether there was one, or may have been, in
    /// time. `false` at once if nothing is under way. Each time that so long has passed without one, `look` is called,
    /// without a lock.
    pub(super) fn wait(&self, seen: u64, left: impl Fn() -> Duration, look: impl Fn()) -> bool {
        let (under_way, done) = self.look();
        if !under_way && done {
            // Such an operation may have completed unannounced, and nobody else may free its memory.
            return !left().is_zero();
        }
        let mut epoch = self.completions.epoch.lock();
        while *epoch == seen {
            let releasing = self.completions.releasing.load(Ordering::SeqCst) != 0;
            if !(under_way || releasing) {
                return false;
            }
            let late = self.completions.changed.wait_for(&mut epoch, left()).timed_out();
            if late && *epoch == seen {
                if left().is_zero() {
                    return false;
                }
                drop(epoch);
                look();
                epoch = self.completions.epoch.lock();
            }
        }
        !left().is_zero()
    }
}

/// Takes the operations that are done out of a queue.
fn all_done<T: Ends>(operations: &mut VecDeque<Arc<T>>) -> SmallVec<[Arc<T>; 8]> {
    let mut done = SmallVec::new();
    operations.retain(|operation| {
        let ended = operation.end().has_come();
        if ended {
            done.push(Arc::clone(operation));
        }
        !ended
    });
    done
}
