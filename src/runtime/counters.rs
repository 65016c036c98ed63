//! Programs and results, counted: was the program rewritten, did its results land in our memory, and if not why.
//!
//! Counting costs the hot path one addition per execution: what a program's results should do is known when it is
//! compiled, so only the executions and the rare misses are counted as they happen.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// What one client counted, without the programs that are still alive.
#[derive(Default)]
pub struct Counters {
    tally: Mutex<Tally>,
}

/// Counts by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Programs that got destinations for their results.
    pub programs_rewritten: u64,
    /// Programs that need none or can have none, and why.
    pub programs_not_rewritten: BTreeMap<String, u64>,
    /// Executions, counted per device.
    pub executions: u64,
    /// Those of them, on GPUs, that found their arrays at other addresses than the one before.
    pub address_changes: u64,
    /// Results that a program wrote straight into a block of ours.
    pub results_placed: u64,
    /// Results that lie in the memory of an argument that was donated.
    pub results_donated: u64,
    /// Results that should have been placed, but lie in memory of the engine.
    pub results_missed: BTreeMap<String, u64>,
    /// Results for which the rules allow no destination.
    pub results_skipped: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.programs_rewritten += other.programs_rewritten;
        self.executions += other.executions;
        self.address_changes += other.address_changes;
        self.results_placed += other.results_placed;
        self.results_donated += other.results_donated;
        for (mine, theirs) in [
            (&mut self.programs_not_rewritten, &other.programs_not_rewritten),
            (&mut self.results_missed, &other.results_missed),
            (&mut self.results_skipped, &other.results_skipped),
        ] {
            for (reason, count) in theirs {
                *mine.entry(reason.clone()).or_default() += count;
            }
        }
    }
}

impl Counters {
    /// Adds to what is counted.
    pub fn add(&self, tally: &Tally) {
        self.tally.lock().add(tally);
    }

    /// What was counted so far.
    pub fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }
}

/// Why a result lies elsewhere than planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// The engine did not write it into its destination.
    Destination,
    /// The engine did not consume the argument: somebody holds its address, or the caller forbade it.
    Argument,
}

impl Miss {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Destination, Self::Argument];

    /// The reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Destination => "the engine put the result elsewhere",
            Self::Argument => "the donated argument was not consumed",
        }
    }
}

/// Executions of one program.
#[derive(Default)]
pub struct Executions {
    /// Runs, counted per device.
    pub runs: AtomicU64,
    /// Runs on GPUs that found their arrays at other addresses than the one before.
    pub address_changes: AtomicU64,
    missed: [AtomicU64; Miss::ALL.len()],
}

impl Executions {
    /// Counts one run on one device.
    pub fn count(&self) {
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one result that lies elsewhere than planned.
    pub fn miss(&self, miss: Miss) {
        self.missed[miss as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Results that lay elsewhere than planned for this reason.
    pub fn missed(&self, miss: Miss) -> u64 {
        self.missed[miss as usize].load(Ordering::Relaxed)
    }
}
