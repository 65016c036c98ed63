//! Replaying a trace against a policy: what fails, the least capacity, and the time an operation takes.

use std::{
    num::NonZeroU64,
    time::{Duration, Instant},
};

use pjrt_arena::{memory::Move, units::Bytes};

use crate::{
    policy::{Policy, Work},
    shadow::Shadow,
    trace::{Event, Trace, UNIT},
};

/// Capacities are tried in steps of 1/2000 (0.05 %) of the peak.
const STEPS: u64 = 2000;
/// The largest capacity tried, in peaks.
const MOST_PEAKS: u64 = 64;

/// Rounds of which the median is the time.
const ROUNDS: usize = 9;
/// A round replays the trace until it has done so many operations, so that the clock's own cost does not count.
const OPERATIONS_A_ROUND: usize = 20_000;
/// After this time no further round is begun.
const AT_MOST: Duration = Duration::from_secs(2);

/// What became of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Blocks that found no room.
    pub(crate) failed: u64,
    pub(crate) work: Work,
}

/// Whether to go on after a block that found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnFailure {
    GoOn,
    Stop,
}

/// Replays the trace and frees what it leaves. Frees of blocks that found no room are passed over. Every `pin_every`th
/// block is pinned when it is taken.
///
/// # Panics
/// With debug assertions, when a naive model beside the policy notices blocks that overlap, or the policy's own books
/// do not agree at the end.
pub(crate) fn replay<P: Policy>(trace: &Trace, policy: &mut P, pin_every: Option<NonZeroU64>) -> Outcome {
    walk(trace, policy, pin_every, OnFailure::GoOn)
}

/// The smallest capacity, in steps of 0.05 % of the peak from the peak itself on, that replays the trace without
/// failure; `None` when 64 peaks are not enough. About 14 replays.
///
/// The search is a bisection, though a larger capacity may fail where a smaller one does not: every result does replay,
/// but a smaller one may, too. Differences below 0.3 % of the peak say little.
///
/// # Errors
/// Those of `policy`, which makes a policy of a given capacity.
pub(crate) fn min_capacity<P: Policy>(
    trace: &Trace,
    policy: impl Fn(Bytes) -> Result<P, String>,
    pin_every: Option<NonZeroU64>,
) -> Result<Option<Bytes>, String> {
    // In 128 bits, because a peak of 2^50 bytes times 2000 needs more than 64.
    let capacity = |steps: u64| {
        let above = u128::from(trace.peak.get()) * u128::from(steps) / u128::from(STEPS);
        let above = u64::try_from(above).map_err(|_| format!("{steps}/{STEPS} of the peak exceed 64 bits"))?;
        Ok::<_, String>(trace.peak + Bytes::new(above).round_down(UNIT))
    };
    let replays = |steps: u64| {
        let mut policy = policy(capacity(steps)?.max(UNIT))?;
        Ok::<_, String>(walk(trace, &mut policy, pin_every, OnFailure::Stop).failed == 0)
    };
    // First what a policy that moves blocks promises: that the peak is enough.
    let (mut low, mut high) = (1, STEPS);
    if replays(0)? {
        return capacity(0).map(Some);
    }
    while !replays(high)? {
        low = high + 1;
        high *= 2;
        if high > MOST_PEAKS * STEPS {
            return Ok(None);
        }
    }
    while low < high {
        let middle = low.midpoint(high);
        if replays(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    capacity(high).map(Some)
}

/// Nanoseconds per operation (taking or freeing one block), the median of several rounds; `None` for an empty trace.
///
/// Blocks are not pinned, nothing is checked, and no clock is read between operations. The trace's own steps, which
/// find the next event and remember the block, are part of the time.
pub(crate) fn ns_per_op<P: Policy>(trace: &Trace, policy: &mut P) -> Option<f64> {
    let mut held = vec![None; trace.blocks];
    let operations = pass(trace, policy, &mut held);
    if operations == 0 {
        return None;
    }
    let passes = OPERATIONS_A_ROUND.div_ceil(operations);
    let begin = Instant::now();
    let mut results = Vec::with_capacity(ROUNDS);
    while results.len() < ROUNDS && (results.is_empty() || begin.elapsed() < AT_MOST) {
        let start = Instant::now();
        let operations: usize = (0..passes).map(|_| pass(trace, policy, &mut held)).sum();
        results.push(start.elapsed().as_nanos() as f64 / operations as f64);
    }
    results.sort_by(f64::total_cmp);
    Some(results[results.len() / 2])
}

/// One replay without anything around it. Returns the operations: all takes, and the frees of what was had.
fn pass<P: Policy>(trace: &Trace, policy: &mut P, held: &mut [Option<P::Block>]) -> usize {
    let (mut next, mut operations) = (0, 0);
    for event in &trace.events {
        match *event {
            Event::Take(size) => {
                operations += 1;
                held[next] = policy.allocate(size, &mut |_| ()).map(|(block, _)| block);
                next += 1;
            }
            Event::Free(number) => {
                if let Some(block) = held[number.index()].take() {
                    operations += 1;
                    policy.free(block);
                }
            }
        }
    }
    for block in held.iter_mut().filter_map(Option::take) {
        operations += 1;
        policy.free(block);
    }
    operations
}

fn walk<P: Policy>(trace: &Trace, policy: &mut P, pin_every: Option<NonZeroU64>, on_failure: OnFailure) -> Outcome {
    let mut watch = Watch { trace, shadow: cfg!(debug_assertions).then(Shadow::default), moved: false };
    let mut held = vec![None; trace.blocks];
    let mut failed = 0;
    let mut next = 0;
    for event in &trace.events {
        match *event {
            Event::Take(size) => {
                let index = next;
                next += 1;
                let Some((block, address)) = policy.allocate(size, &mut |step| watch.relocate(&step)) else {
                    failed += 1;
                    if on_failure == OnFailure::Stop {
                        break;
                    }
                    continue;
                };
                watch.see(|shadow| shadow.take(index, address, size));
                held[index] = Some(block);
                if pin_every.is_some_and(|every| next as u64 % every == 0) {
                    policy.pin(block, &mut |step| watch.relocate(&step));
                    watch.see(|shadow| shadow.pin(index));
                }
                watch.compare(policy);
            }
            Event::Free(number) => {
                if let Some(block) = held[number.index()].take() {
                    watch.see(|shadow| shadow.free(number.index()));
                    policy.free(block);
                }
            }
        }
    }
    held.into_iter().flatten().for_each(|block| policy.free(block));
    if cfg!(debug_assertions) {
        policy.settled().unwrap_or_else(|error| panic!("{}: {error}", trace.name));
    }
    Outcome { failed, work: policy.work() }
}

/// The naive model, with debug assertions.
struct Watch<'a> {
    trace: &'a Trace,
    shadow: Option<Shadow>,
    /// Blocks moved since the last comparison.
    moved: bool,
}

impl Watch<'_> {
    fn see(&mut self, what: impl FnOnce(&mut Shadow) -> Result<(), String>) {
        if let Some(shadow) = &mut self.shadow {
            what(shadow).unwrap_or_else(|error| panic!("{}: {error}", self.trace.name));
        }
    }

    fn relocate(&mut self, step: &Move) {
        self.moved = true;
        self.see(|shadow| shadow.relocate(step));
    }

    /// Once blocks moved, the policy must know where each is.
    fn compare<P: Policy>(&mut self, policy: &P) {
        if std::mem::take(&mut self.moved) {
            self.see(|shadow| policy.places().map_or(Ok(()), |places| shadow.agrees(places)));
        }
    }
}

#[cfg(test)]
mod moving;
#[cfg(test)]
mod tests;
