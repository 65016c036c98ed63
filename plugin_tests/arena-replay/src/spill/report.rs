//! What is told of a trace of executions and a policy.

use std::fmt;

use pjrt_arena::units::Bytes;
use serde::Serialize;

use crate::report::write_table;

/// The figures of one policy. `None` is what does not apply.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SpillReport {
    pub(crate) trace: String,
    pub(crate) policy: &'static str,
    pub(crate) peak_live_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) launches: u64,
    pub(crate) failed: u64,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_back: u64,
    pub(crate) bytes_moved: u64,
    pub(crate) ratio_to_belady: Option<f64>,
}

const COLUMNS: [&str; 10] =
    ["trace", "policy", "peak live", "capacity", "launches", "failed", "out", "back", "moved", "to belady"];

impl SpillReport {
    fn cells(&self) -> [String; COLUMNS.len()] {
        let bytes = |bytes| Bytes::new(bytes).to_string();
        [
            self.trace.clone(),
            self.policy.to_owned(),
            bytes(self.peak_live_bytes),
            bytes(self.capacity_bytes),
            self.launches.to_string(),
            self.failed.to_string(),
            bytes(self.bytes_out),
            bytes(self.bytes_back),
            bytes(self.bytes_moved),
            self.ratio_to_belady.map_or_else(|| "-".into(), |ratio| format!("{ratio:.3}")),
        ]
    }
}

/// Reports as a table.
pub(crate) struct SpillTable<'a>(pub(crate) &'a [SpillReport]);

impl fmt::Display for SpillTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(f, COLUMNS, self.0.iter().map(SpillReport::cells))
    }
}
