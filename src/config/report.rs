//! Says what was decided: one line for the log, a table for `python -m jax_plugins.arena`.

use std::fmt;
use std::path::Path;

use crate::{
    config::{
        Bytes, COMPACT, CUDA_DRIVER, DEVICES, ENGINE, Environment, GPU_SCRATCH, HEADROOM, HIP_DRIVER, HISTORY,
        HUGE_PAGES, LIMIT, LOG, OOM_REPORT, OptionValue, PINNED_LIMIT, REWRITE, Reading, Row, SCRATCH, STRATEGY,
        Setting, Settings, Source, TABLE, TPU_TILES, ZERO_COPY, limit::show, strategy_name,
    },
    error::Result,
};

/// What the settings led to on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The limit of each device.
    pub limit_bytes: Bytes,
    /// What programs' scratch has of it for good, where it has.
    pub scratch_bytes: Option<Bytes>,
    /// The engine that was loaded.
    pub engine: &'a Path,
}

impl Settings {
    /// One line: every setting with its source, what it led to, and what was overridden.
    ///
    /// ```text
    /// strategy=growing (XLA_PYTHON_CLIENT_PREALLOCATE), limit=40% = 6.40GiB per device (PJRT_ARENA_LIMIT), ...
    /// ```
    pub fn summary(&self, outcome: Option<Outcome<'_>>) -> String {
        let clauses = [
            clause(&STRATEGY, strategy_name(self.strategy.value), &self.strategy, None),
            clause(
                &LIMIT,
                self.limit.value,
                &self.limit,
                outcome.map(|outcome| format!("{} per device", show(outcome.limit_bytes))),
            ),
            clause(&COMPACT, self.compact.value, &self.compact, None),
            clause(&TPU_TILES, self.tpu_tiles.value, &self.tpu_tiles, None),
            clause(&HUGE_PAGES, self.huge_pages.value, &self.huge_pages, None),
            clause(
                &ENGINE,
                &self.engine.value,
                &self.engine,
                outcome.map(|outcome| outcome.engine.display().to_string()),
            ),
            clause(&CUDA_DRIVER, &self.cuda_driver.value, &self.cuda_driver, None),
            clause(&HIP_DRIVER, &self.hip_driver.value, &self.hip_driver, None),
            clause(&HEADROOM, self.headroom.value, &self.headroom, None),
            clause(
                &GPU_SCRATCH,
                self.gpu_scratch.value,
                &self.gpu_scratch,
                outcome.and_then(|outcome| outcome.scratch_bytes).map(|bytes| format!("{} per device", show(bytes))),
            ),
            clause(&PINNED_LIMIT, self.pinned_limit.value, &self.pinned_limit, None),
            clause(&DEVICES, self.devices.value, &self.devices, None),
            clause(&REWRITE, self.rewrite.value, &self.rewrite, None),
            clause(&SCRATCH, self.scratch.value, &self.scratch, None),
            clause(&ZERO_COPY, self.zero_copy.value, &self.zero_copy, None),
            clause(&HISTORY, self.history.value, &self.history, None),
            clause(&OOM_REPORT, &self.oom_report.value, &self.oom_report, None),
            clause(&LOG, &self.log.value, &self.log, None),
        ];
        let mut line = clauses.join(", ");
        if !self.overridden.is_empty() {
            line.push_str("; overridden: ");
            line.push_str(&self.overridden.join(", "));
        }
        line
    }
}

/// `name=value = result (source)`; the result is left out where it says the same as the value.
fn clause<T>(row: &Row, value: impl fmt::Display, setting: &Setting<T>, result: Option<String>) -> String {
    let value = value.to_string();
    let result = result.filter(|result| *result != value).map(|result| format!(" = {result}")).unwrap_or_default();
    format!("{}={value}{result} ({})", row.name, setting.source)
}

/// The columns of the table with their widths, and the space between them: 100 characters in all.
const COLUMNS: [(&str, usize); 4] = [("setting", 12), ("value", 15), ("from", 38), ("allowed", 29)];
const GAP: &str = "  ";

/// What was found out about a setting on this machine; the table shows it below the setting.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The setting.
    pub row: &'static Row,
    /// What there is to say.
    pub what: Found,
}

/// What a [`Finding`] says.
#[derive(Clone, Debug)]
pub enum Found {
    /// What the setting led to, such as `6.4 GiB per device`, or why it leads nowhere.
    Led(Result<String>),
    /// What the machine offers, whatever the setting says.
    Offer(String),
}

/// Every setting with its value, source, allowed values and explanation, as a text of at most 100 columns. A setting
/// that is not valid shows its error instead; the others are shown all the same.
pub fn doctor(environment: &Environment, options: &[(String, OptionValue)], findings: &[Finding]) -> String {
    let reading = Reading::new(environment, options);
    let cells = [
        cells(&reading.strategy, |strategy| strategy_name(*strategy).to_owned()),
        cells(&reading.limit, ToString::to_string),
        cells(&reading.compact, ToString::to_string),
        cells(&reading.tpu_tiles, ToString::to_string),
        cells(&reading.huge_pages, ToString::to_string),
        cells(&reading.engine, ToString::to_string),
        cells(&reading.cuda_driver, ToString::to_string),
        cells(&reading.hip_driver, ToString::to_string),
        cells(&reading.headroom, ToString::to_string),
        cells(&reading.gpu_scratch, ToString::to_string),
        cells(&reading.pinned_limit, ToString::to_string),
        cells(&reading.devices, ToString::to_string),
        cells(&reading.rewrite, ToString::to_string),
        cells(&reading.scratch, ToString::to_string),
        cells(&reading.zero_copy, ToString::to_string),
        cells(&reading.history, ToString::to_string),
        cells(&reading.oom_report, ToString::to_string),
        cells(&reading.log, ToString::to_string),
    ];
    let mut text = String::new();
    push_columns(&mut text, COLUMNS.map(|(title, _)| title));
    for (row, cells) in TABLE.iter().zip(&cells) {
        text.push('\n');
        let fits = cells.value.chars().count() <= COLUMNS[1].1;
        push_columns(&mut text, [row.name, if fits { &cells.value } else { "(below)" }, &cells.source, row.allowed]);
        if !fits {
            push_indented(&mut text, "value: ", &cells.value);
        }
        if let Some(error) = &cells.error {
            push_indented(&mut text, "ERROR: ", error);
        }
        for finding in findings.iter().filter(|finding| finding.row.name == row.name) {
            match &finding.what {
                Found::Led(Ok(result)) => push_indented(&mut text, "= ", result),
                Found::Led(Err(error)) => push_indented(&mut text, "ERROR: ", &error.message),
                Found::Offer(offer) => push_indented(&mut text, "here: ", offer),
            }
        }
        push_indented(&mut text, "", row.doc);
        push_indented(&mut text, "set by: ", &names(row));
    }
    for (title, notes) in [("warning: ", &reading.warnings), ("overridden: ", &reading.overridden)] {
        for note in notes {
            text.push('\n');
            push_wrapped(&mut text, "", title, note);
        }
    }
    text
}

/// Every name of a setting, strongest first.
fn names(row: &Row) -> String {
    let (options, others): (Vec<Source>, Vec<Source>) =
        row.names.iter().partition(|name| matches!(name, Source::Option(_)));
    let options: Vec<&str> = options.into_iter().map(Source::name).collect();
    let others: Vec<String> = others.iter().map(ToString::to_string).collect();
    let plural = if options.len() > 1 { "s" } else { "" };
    format!("client option{plural} {}; {}", options.join(", "), others.join(", "))
}

/// What the table shows of one setting.
struct Cells {
    value: String,
    source: String,
    error: Option<String>,
}

fn cells<T>(setting: &Result<Setting<T>>, show: impl Fn(&T) -> String) -> Cells {
    match setting {
        Ok(setting) => Cells { value: show(&setting.value), source: setting.source.to_string(), error: None },
        Err(error) => {
            Cells { value: "(not valid)".to_owned(), source: String::new(), error: Some(error.message.clone()) }
        }
    }
}

/// One row, each cell wrapped to its column.
fn push_columns(text: &mut String, cells: [&str; COLUMNS.len()]) {
    let wrapped: Vec<_> = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| textwrap::wrap(cell, width)).collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..height {
        let mut row = String::new();
        for (lines, (_, width)) in wrapped.iter().zip(COLUMNS) {
            let cell = lines.get(line).map_or("", |cell| cell.as_ref());
            row.push_str(&format!("{cell:width$}{GAP}"));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
}

/// A line under a row, below its second column.
fn push_indented(text: &mut String, title: &str, line: &str) {
    let indent = " ".repeat(COLUMNS[0].1 + GAP.len());
    push_wrapped(text, &indent, title, line);
}

fn push_wrapped(text: &mut String, indent: &str, title: &str, line: &str) {
    let first = format!("{indent}{title}");
    let rest = " ".repeat(first.len());
    let width: usize = COLUMNS.iter().map(|(_, width)| width + GAP.len()).sum::<usize>() - GAP.len();
    let options = textwrap::Options::new(width).initial_indent(&first).subsequent_indent(&rest);
    text.push_str(&textwrap::fill(line, options));
    text.push('\n');
}
