//! What is known of the arrays that a device spills: how many went and came back, and when they are used.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    memory::next_use::{NextUse, UseHistory, UseKey},
    units::Bytes,
};

/// Arrays that were moved one way, counted.
#[derive(Debug, Default)]
pub struct TransferCounts {
    arrays: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl TransferCounts {
    /// Counts one more.
    pub fn add(&self, bytes: Bytes, took: Duration) {
        self.arrays.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.get(), Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// So many arrays.
    pub fn arrays(&self) -> u64 {
        self.arrays.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes.load(Ordering::Relaxed))
    }

    /// How long that took, summed over the threads that waited for it.
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

/// An argument or a result of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    /// Which array.
    pub key: UseKey,
    /// Its size.
    pub bytes: Bytes,
    /// Whether the program may consume it.
    pub donated: bool,
}

/// A launch, for `arena-replay`.
#[derive(Clone, Debug)]
pub struct Launched {
    /// The device's number of it.
    pub step: u32,
    /// The program's name.
    pub program: Arc<str>,
    /// Its arguments.
    pub arguments: Vec<Used>,
    /// Its results.
    pub results: Vec<Used>,
}

/// So many launches are kept for `arena-replay`.
const LAUNCHES: usize = 4096;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct SpillRecord {
    past: Mutex<Past>,
    /// Arrays that were copied out.
    pub out: TransferCounts,
    /// Arrays that went without being copied, because their copy was in the tier still.
    pub clean: TransferCounts,
    /// Arrays that came back.
    pub back: TransferCounts,
    /// Those of them that came before a launch needed them. Without times.
    pub prefetched: TransferCounts,
    /// Spilled arrays that were used when it had been expected.
    pub right: AtomicU64,
    /// Spilled arrays that were used at another step than expected.
    pub wrong: AtomicU64,
}

#[derive(Debug, Default)]
struct Past {
    history: UseHistory,
    /// The last launches.
    launches: VecDeque<Launched>,
    /// When arrays that are spilled were expected to be used.
    expected: FxHashMap<UseKey, NextUse>,
}

/// Expectations of arrays that never came back are forgotten beyond so many.
const EXPECTATIONS: usize = 1 << 16;

impl SpillRecord {
    /// Notes a launch of the program of this number.
    pub fn launched(&self, program: u64, launch: Launched) {
        let mut past = self.past.lock();
        past.history.launched(launch.step, program, launch.arguments.iter().map(|used| used.key));
        // One that waits for memory tries more than once.
        if past.launches.back().is_some_and(|last| last.step == launch.step) {
            return;
        }
        if past.launches.len() == LAUNCHES {
            past.launches.pop_front();
        }
        past.launches.push_back(launch);
    }

    /// The last launches, the oldest first.
    pub fn launches(&self) -> Vec<Launched> {
        self.past.lock().launches.iter().cloned().collect()
    }

    /// When each of these arrays is used next.
    pub fn next_uses(&self, arrays: &[UseKey]) -> Vec<NextUse> {
        let mut past = self.past.lock();
        arrays.iter().map(|&array| past.history.next_use(array)).collect()
    }

    /// An array of so many bytes was spilled; it was copied, which took so long, or its copy was there.
    pub fn spilled(&self, bytes: Bytes, copied: Option<Duration>) {
        match copied {
            Some(took) => self.out.add(bytes, took),
            None => self.clean.add(bytes, Duration::ZERO),
        }
    }

    /// A spilled array is expected to be used at `next`.
    pub fn expect(&self, array: UseKey, next: NextUse) {
        let mut past = self.past.lock();
        if past.expected.len() >= EXPECTATIONS {
            past.expected.clear();
        }
        past.expected.insert(array, next);
    }

    /// An array of so many bytes came back for the launch of this `step`, or for none, which took so long.
    pub fn came_back(&self, array: Option<UseKey>, step: Option<u32>, bytes: Bytes, took: Duration) {
        self.back.add(bytes, took);
        let expected = array.and_then(|array| self.past.lock().expected.remove(&array));
        if let (Some(NextUse::At(expected)), Some(step)) = (expected, step) {
            let counter = if expected == step { &self.right } else { &self.wrong };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}
