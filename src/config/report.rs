//! Says what was decided: one line for the log, a table and JSON for the command `pjrt-arena doctor`.

use std::path::Path;

use serde_json::json;

use crate::{
    config::{
        environment::{Environment, OptionValue},
        limit::{Bytes, show},
        row::{Row, Source},
        settings::{ENGINE, GPU_SCRATCH, LIMIT, Reading, Settings, Shown},
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
        let led_to = |row: &Row| match row.name {
            name if name == LIMIT.name => outcome.map(|outcome| format!("{} per device", show(outcome.limit_bytes))),
            name if name == ENGINE.name => outcome.map(|outcome| outcome.engine.display().to_string()),
            name if name == GPU_SCRATCH.name => {
                let bytes = outcome.and_then(|outcome| outcome.scratch_bytes);
                bytes.map(|bytes| format!("{} per device", show(bytes)))
            }
            _ => None,
        };
        let clauses: Vec<String> =
            self.shown().into_iter().map(|(row, (value, source))| clause(row, &value, source, led_to(row))).collect();
        let mut line = clauses.join(", ");
        if !self.overridden.is_empty() {
            line.push_str("; overridden: ");
            line.push_str(&self.overridden.join(", "));
        }
        line
    }
}

/// `name=value = result (source)`; the result is left out where it says the same as the value.
fn clause(row: &Row, value: &str, source: Source, result: Option<String>) -> String {
    let result = result.filter(|result| result != value).map(|result| format!(" = {result}")).unwrap_or_default();
    format!("{}={value}{result} ({source})", row.name)
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
    let mut text = String::new();
    push_columns(&mut text, COLUMNS.map(|(title, _)| title));
    for Shown { row, value } in reading.shown() {
        text.push('\n');
        let (value, source, error) = match value {
            Ok((value, source)) => (value, source.to_string(), None),
            Err(error) => ("(not valid)".to_owned(), String::new(), Some(error.message)),
        };
        let fits = value.chars().count() <= COLUMNS[1].1;
        push_columns(&mut text, [row.name, if fits { &value } else { "(below)" }, &source, row.allowed]);
        if !fits {
            push_indented(&mut text, "value: ", &value);
        }
        if let Some(error) = error {
            push_indented(&mut text, "ERROR: ", &error);
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

/// The same as JSON: `settings`, an array with an object for each, and `warnings` and `overridden`, arrays of texts. A
/// setting has `name`, `variable`, `options`, `others` (XLA's variables and flags), `allowed`, `default`, `doc`;
/// `value` and `source`, or `error`; `led_to` and `here`, arrays of texts.
pub fn settings_as_json(
    environment: &Environment,
    options: &[(String, OptionValue)],
    findings: &[Finding],
) -> serde_json::Value {
    let reading = Reading::new(environment, options);
    let own = |name: &str| name.starts_with("PJRT_ARENA_");
    let one = |Shown { row, value }: Shown| {
        let (mut variable, mut options, mut others) = (None, Vec::new(), Vec::new());
        for name in row.names {
            match *name {
                Source::Environment(name) if own(name) => variable = Some(name),
                Source::Option(name) => options.push(name),
                other => others.push(other.to_string()),
            }
        }
        let (mut led_to, mut here) = (Vec::new(), Vec::new());
        for finding in findings.iter().filter(|finding| finding.row.name == row.name) {
            match &finding.what {
                Found::Led(Ok(text)) => led_to.push(text.clone()),
                Found::Led(Err(error)) => led_to.push(format!("ERROR: {}", error.message)),
                Found::Offer(text) => here.push(text.clone()),
            }
        }
        json!({
            "name": row.name,
            "variable": variable,
            "options": options,
            "others": others,
            "allowed": row.allowed,
            "default": row.default,
            "doc": row.doc,
            "value": value.as_ref().ok().map(|(value, _)| value),
            "source": value.as_ref().ok().map(|(_, source)| source.to_string()),
            "error": value.as_ref().err().map(|error| &error.message),
            "led_to": led_to,
            "here": here,
        })
    };
    let settings: Vec<_> = reading.shown().into_iter().map(one).collect();
    json!({ "settings": settings, "warnings": reading.warnings, "overridden": reading.overridden })
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
