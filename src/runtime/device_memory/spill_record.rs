//! What is known of the arrays that a device spills: how many went and came back, and when they are used.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::{
    memory::next_use::{NextUse, UseHistory, UseKey},
    units::Bytes,
};

/// What was spilled and came back, counted.
#[derive(Debug, Default)]
struct Traffic {
    arrays: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    fn add(&self, bytes: Bytes) {
        self.arrays.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.get(), Ordering::Relaxed);
    }

    fn get(&self) -> (u64, Bytes) {
        (self.arrays.load(Ordering::Relaxed), Bytes::new(self.bytes.load(Ordering::Relaxed)))
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct SpillRecord {
    history: Mutex<UseHistory>,
    out: Traffic,
    back: Traffic,
}

impl SpillRecord {
    /// Notes that `program` is launched as the device's `step` and uses these arrays.
    pub fn launched(&self, step: u32, program: u64, arrays: impl Iterator<Item = UseKey>) {
        self.history.lock().launched(step, program, arrays);
    }

    /// When each of these arrays is used next.
    pub fn next_uses(&self, arrays: impl Iterator<Item = UseKey>) -> Vec<NextUse> {
        let mut history = self.history.lock();
        arrays.map(|array| history.next_use(array)).collect()
    }

    /// An array of so many bytes was spilled.
    pub fn count_out(&self, bytes: Bytes) {
        self.out.add(bytes);
    }

    /// An array of so many bytes came back.
    pub fn count_back(&self, bytes: Bytes) {
        self.back.add(bytes);
    }

    /// Arrays that were spilled so far, and their bytes.
    pub fn spilled_out(&self) -> (u64, Bytes) {
        self.out.get()
    }

    /// Arrays that came back so far, and their bytes.
    pub fn brought_back(&self) -> (u64, Bytes) {
        self.back.get()
    }
}
