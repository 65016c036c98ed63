//! Replays executions on a device that is too small for their arrays: what each policy of spilling copies.
//!
//! ```text
//!  trace file --launches--> arguments, results --device--> policy: pjrt-arena's prediction, LRU, FIFO, Belady
//!  synthetic --^                        |`-- floor: what no policy can save
//!                                       `--report--> a line of JSON, or a table
//! ```
//!
//! A launch has its arguments on the device, those in the tier being brought back before, and room for its results;
//! a consumed argument's block is a result's of its size. Sizes are added up: blocks have no places, and the tier has
//! room for all. An array that came back and goes again is not copied, since the tier has it still.

mod device;
mod floor;
mod launches;
mod report;
mod synthetic;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use pjrt_arena::units::Bytes;

use self::{
    device::{Moved, Order, replay},
    floor::floor,
};
pub(crate) use self::{
    launches::Launches,
    report::{SpillReport, SpillTable},
    synthetic::Executions,
};
use crate::cli::Capacity;

/// What `--spill` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpillPolicy {
    Predict,
    Lru,
    Fifo,
    Belady,
    Floor,
}

impl SpillPolicy {
    pub(crate) const ALL: [Self; 5] = [Self::Predict, Self::Lru, Self::Fifo, Self::Belady, Self::Floor];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Predict => "predict",
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Belady => "belady",
            Self::Floor => "floor",
        }
    }

    fn moved(self, trace: &Launches, capacity: Bytes) -> Moved {
        match self {
            Self::Predict => replay(trace, capacity, Order::Predict),
            Self::Lru => replay(trace, capacity, Order::Lru),
            Self::Fifo => replay(trace, capacity, Order::Fifo),
            Self::Belady => replay(trace, capacity, Order::Belady),
            Self::Floor => floor(trace, capacity),
        }
    }
}

/// The policies to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpillPolicies(pub(crate) Vec<SpillPolicy>);

impl FromStr for SpillPolicies {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("all") {
            return Ok(Self(SpillPolicy::ALL.into()));
        }
        let policy = SpillPolicy::ALL.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(text));
        policy.map(|policy| Self(vec![policy])).ok_or_else(|| {
            format!("--spill `{text}`: allowed are {}, and all", SpillPolicy::ALL.map(SpillPolicy::name).join(", "))
        })
    }
}

/// What each of the policies copies, on a device of `capacity` or of the trace's limit.
///
/// # Errors
/// A capacity that is too large.
pub(crate) fn compare(
    trace: &Launches,
    policies: &SpillPolicies,
    capacity: Option<Capacity>,
) -> Result<Vec<SpillReport>, String> {
    let capacity = capacity.unwrap_or(Capacity::Bytes(trace.limit)).of(trace.peak)?;
    let (fitting, failed) = trace.fitting(capacity);
    let all = |moved: Moved| (moved.out + moved.back).get();
    let belady = all(SpillPolicy::Belady.moved(&fitting, capacity));
    let report = |&policy: &SpillPolicy| {
        let moved = policy.moved(&fitting, capacity);
        // Three decimals.
        let ratio = |moved: u64| (moved as f64 / belady as f64 * 1000.0).round() / 1000.0;
        SpillReport {
            trace: trace.name.clone(),
            policy: policy.name(),
            peak_live_bytes: trace.peak.get(),
            capacity_bytes: capacity.get(),
            launches: trace.launches.len() as u64,
            failed,
            bytes_out: moved.out.get(),
            bytes_back: moved.back.get(),
            bytes_moved: all(moved),
            ratio_to_belady: (belady != 0).then(|| ratio(all(moved))),
        }
    };
    Ok(policies.0.iter().map(report).collect())
}
