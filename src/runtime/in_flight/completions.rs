//! How allocations that wait for memory learn of operations that complete.

use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// Wakes allocations that wait, when an operation has freed memory.
#[derive(Default)]
pub(super) struct Completions {
    pub(super) epoch: Mutex<u64>,
    pub(super) changed: Condvar,
    /// Operations that are done and in the queue. Below zero for a moment if one is reaped before it is counted.
    pub(super) done: AtomicIsize,
    /// Allocations that wait for memory.
    pub(super) waiters: AtomicUsize,
    /// Operations that are done or no longer in the queue, and whose memory a thread frees at this moment. An
    /// allocation that waits must count them as under way.
    pub(super) releasing: AtomicUsize,
}

impl Completions {
    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) != 0
    }

    /// Announces that `operations` will be freed: called before another thread can see that they are done, or miss
    /// them.
    pub(super) fn begin(&self, operations: usize) {
        self.releasing.fetch_add(operations, Ordering::SeqCst);
    }

    /// Their memory is free. An allocation that began to wait after the first look found the memory free, but may
    /// have seen the number.
    pub(super) fn end(&self, operations: usize) {
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
