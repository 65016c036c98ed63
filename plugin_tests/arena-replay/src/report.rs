//! What is told about a trace: as an object of JSON a line, or as a table.

use std::fmt;

use pjrt_arena::units::Bytes;
use serde::Serialize;

/// The figures of one trace. `None` is what was not asked for or does not apply.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) trace: String,
    pub(crate) policy: String,
    pub(crate) peak_live_bytes: u64,
    pub(crate) capacity_bytes: u64,
    pub(crate) min_capacity_bytes: Option<u64>,
    pub(crate) failed: u64,
    pub(crate) moves: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) compactions: u64,
    pub(crate) plan_ns_max: Option<u64>,
    pub(crate) ns_per_op: Option<f64>,
}

const COLUMNS: [&str; 11] = [
    "trace",
    "policy",
    "peak live",
    "capacity",
    "over peak",
    "least over",
    "failed",
    "moves",
    "moved",
    "longest plan",
    "per op",
];

impl Report {
    fn cells(&self) -> [String; COLUMNS.len()] {
        let over = |capacity: u64| match self.peak_live_bytes {
            0 => "-".to_owned(),
            peak => format!("{:+.2} %", (capacity as f64 / peak as f64 - 1.0) * 100.0),
        };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        [
            self.trace.clone(),
            self.policy.clone(),
            Bytes::new(self.peak_live_bytes).to_string(),
            Bytes::new(self.capacity_bytes).to_string(),
            over(self.capacity_bytes),
            or_dash(self.min_capacity_bytes.map(over)),
            self.failed.to_string(),
            self.moves.to_string(),
            Bytes::new(self.moved_bytes).to_string(),
            or_dash(self.plan_ns_max.map(|time| format!("{:.1} us", time as f64 / 1000.0))),
            or_dash(self.ns_per_op.map(|time| format!("{time:.1} ns"))),
        ]
    }
}

/// Reports as a table: names to the left, figures to the right.
pub(crate) struct Table<'a>(pub(crate) &'a [Report]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(f, COLUMNS, self.0.iter().map(Report::cells))
    }
}

/// Writes a table, the first two columns to the left, the others to the right.
pub(crate) fn write_table<const COLUMNS: usize>(
    f: &mut fmt::Formatter<'_>,
    head: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) -> fmt::Result {
    let rows: Vec<_> = [head.map(str::to_owned)].into_iter().chain(rows).collect();
    for row in &rows {
        let line: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| {
                let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
                if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            })
            .collect();
        writeln!(f, "{}", line.join("  "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            trace: "t".into(),
            policy: "bfc".into(),
            peak_live_bytes: 1000,
            capacity_bytes: 2048,
            min_capacity_bytes: None,
            failed: 1,
            moves: 0,
            moved_bytes: 0,
            compactions: 0,
            plan_ns_max: None,
            ns_per_op: Some(12.5),
        }
    }

    #[test]
    fn the_keys_stand_in_order_and_what_does_not_apply_is_null() {
        let expected = r#"{"trace":"t","policy":"bfc","peak_live_bytes":1000,"capacity_bytes":2048,"#.to_owned()
            + r#""min_capacity_bytes":null,"failed":1,"moves":0,"moved_bytes":0,"compactions":0,"#
            + r#""plan_ns_max":null,"ns_per_op":12.5}"#;
        assert_eq!(serde_json::to_string(&report()).expect("plain figures"), expected);
    }

    #[test]
    fn columns_are_aligned() {
        let long = Report {
            trace: "a_longer_name".into(),
            peak_live_bytes: 0,
            min_capacity_bytes: Some(0),
            plan_ns_max: Some(1500),
            ..report()
        };
        let near = Report { min_capacity_bytes: Some(1010), ..report() };
        let table = Table(&[report(), long, near]).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{table}");
        assert!(lines[1].contains("+104.80 %") && lines[1].ends_with("12.5 ns"), "{table}");
        assert!(lines[2].contains("1.5 us"), "{table}");
        assert!(lines[3].contains("+1.00 %"), "{table}");
    }
}
