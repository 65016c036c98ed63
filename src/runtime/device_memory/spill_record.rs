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
    memory::{
        Execution,
        next_use::{NextUse, UseHistory, UseKey},
    },
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

impl Launched {
    /// Its number is known: it is that of its results, too.
    fn number(&mut self, step: u32) {
        self.step = step;
        for result in &mut self.results {
            if let UseKey::Made(_, made) = &mut result.key {
                *made = step;
            }
        }
    }

    /// So many of [`ENTRIES`].
    fn entries(&self) -> usize {
        1 + self.arguments.len() + self.results.len()
    }
}

/// So many launches are kept for `arena-replay`.
const LAUNCHES: usize = 4096;
/// So many launches, arguments and results are kept, together, and the last launch in any case.
const ENTRIES: usize = 1 << 18;

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
    /// Their entries.
    entries: usize,
    /// When arrays that are spilled were expected to be used.
    expected: FxHashMap<UseKey, NextUse>,
}

impl Past {
    /// Keeps one launch more, and forgets the first ones beyond the bounds.
    fn keep(&mut self, launch: Launched) {
        self.entries += launch.entries();
        self.launches.push_back(launch);
        while self.launches.len() > LAUNCHES || self.entries > ENTRIES && self.launches.len() > 1 {
            let Some(first) = self.launches.pop_front() else { return };
            self.entries -= first.entries();
        }
    }
}

/// Expectations of arrays that never came back are forgotten beyond so many.
const EXPECTATIONS: usize = 1 << 16;

impl SpillRecord {
    /// Notes a launch of the program with this key, whose number it gets from `number`: the launches of several threads
    /// are noted in the order of their numbers. The number of `launch`, and of its results, is what it gets.
    pub fn launched(&self, program: u64, mut launch: Launched, number: impl FnOnce() -> Execution) -> Execution {
        let mut past = self.past.lock();
        let run = number();
        launch.number(run.step);
        past.history.launched(launch.step, program, launch.arguments.iter().map(|used| used.key));
        past.keep(launch);
        run
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

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU32, thread};

    use super::*;
    use crate::memory::OriginId;

    fn launch(arguments: usize) -> Launched {
        let used = |number| Used { key: UseKey::Other(number), bytes: Bytes::mib(1), donated: false };
        let made = Used { key: UseKey::Made(OriginId::new(1), 0), ..used(0) };
        Launched {
            step: 0,
            program: "train".into(),
            arguments: (0..arguments as u64).map(used).collect(),
            results: vec![made],
        }
    }

    #[test]
    fn launches_of_several_threads_are_noted_in_the_order_of_their_numbers() {
        let (record, runs) = (SpillRecord::default(), AtomicU32::new(0));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (record, runs) = (&record, &runs);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let begin_run =
                            || Execution { step: runs.fetch_add(1, Ordering::Relaxed) + 1, ..<_>::default() };
                        record.launched(thread, launch(2), begin_run);
                    }
                });
            }
        });
        let launches = record.launches();
        assert_eq!(launches.len(), 2000);
        for (number, launch) in (1..).zip(&launches) {
            assert_eq!(launch.step, number);
            assert_eq!(launch.results[0].key, UseKey::Made(OriginId::new(1), number));
        }
    }

    #[test]
    fn what_is_kept_of_launches_is_bounded() {
        let record = SpillRecord::default();
        let note = |arguments, step| record.launched(1, launch(arguments), || Execution { step, ..<_>::default() });
        for step in 1..1000 {
            note(998, step);
        }
        assert_eq!(record.launches().len(), ENTRIES / 1000);
        note(ENTRIES, 1000);
        assert_eq!(record.launches().len(), 1, "the last one is kept, however large it is");
        for step in 1001..10_000 {
            note(1, step);
        }
        assert_eq!(record.launches().len(), LAUNCHES);
    }
}
