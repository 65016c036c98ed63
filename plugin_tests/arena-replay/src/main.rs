//! `arena-replay`: replays traces of allocations against a memory manager's policy, without any device; and traces of
//! executions, for which `spill.rs` has a picture of its own.
//!
//! ```text
//!  trace file --trace--> events --replay--> policy: our arena, or XLA's BFC
//!  synthetic --^                   |           `-- shadow (debug): do blocks overlap?
//!                                  `--report--> a line of JSON, or a table
//! ```
//!
//! `arena-replay --help` explains the options and the figures. Exit status: 0 when every trace was replayed, whether or
//! not blocks found room; 1 for a trace that cannot be read; 2 for a wrong command line.

mod bfc;
mod cli;
mod policy;
mod replay;
mod report;
mod shadow;
mod spill;
mod synthetic;
mod trace;

use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
};

use pjrt_arena::{memory::Strategy, units::Bytes};
use serde::Serialize;

use self::{
    cli::{Command, Generated, Options, SpillOptions},
    policy::{ArenaPolicy, Policy, PolicyName},
    report::{Report, Table},
    spill::{Launches, SpillTable},
    trace::Trace,
};

/// Why the program ends early.
enum Failure {
    Trace(String),
    Output(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn main() -> ExitCode {
    let command = match cli::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("arena-replay: {message}\narena-replay --help explains the options");
            return ExitCode::from(2);
        }
    };
    match run(command, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Output(error)) => {
            eprintln!("arena-replay: cannot write: {error}");
            ExitCode::FAILURE
        }
        Err(Failure::Trace(message)) => {
            eprintln!("arena-replay: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, out: &mut impl Write) -> Result<(), Failure> {
    let options = match command {
        Command::Help => return Ok(write!(out, "{}", cli::help())?),
        Command::Generate { workload, seed } => {
            let text = match workload {
                Generated::Allocations(workload) => workload.generate(seed),
                Generated::Executions(workload) => workload.generate(seed),
            };
            return Ok(out.write_all(text.as_bytes())?);
        }
        Command::Spill(options) => return spill(&options, out),
        Command::Replay(options) => options,
    };
    let mut reports = Vec::new();
    for file in &options.files {
        let trace = read(file, Trace::parse).map_err(Failure::Trace)?;
        let report = report(&trace, &options).map_err(|why| Failure::Trace(format!("{}: {why}", file.display())))?;
        if options.json {
            write_line(&report, out)?;
        } else {
            reports.push(report);
        }
    }
    if !options.json {
        write!(out, "{}", Table(&reports))?;
    }
    Ok(())
}

/// Replays executions.
fn spill(options: &SpillOptions, out: &mut impl Write) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for file in &options.files {
        let trace = read(file, Launches::parse).map_err(Failure::Trace)?;
        let compared = spill::compare(&trace, &options.policies, options.capacity)
            .map_err(|why| Failure::Trace(format!("{}: {why}", file.display())))?;
        if options.json {
            compared.iter().try_for_each(|report| write_line(report, out))?;
        } else {
            reports.extend(compared);
        }
    }
    if !options.json {
        write!(out, "{}", SpillTable(&reports))?;
    }
    Ok(())
}

/// Writes a report as an object of JSON on a line.
fn write_line(report: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    let line = serde_json::to_string(report)?;
    writeln!(out, "{line}")?;
    out.flush()
}

/// Reads a trace by `parse`; its name is the file's, without folder and extension.
fn read<T>(file: &Path, parse: impl Fn(&str, &str, &[u8]) -> Result<T, String>) -> Result<T, String> {
    let (name, source, text) = if file == Path::new("-") {
        let mut text = Vec::new();
        let read = io::stdin().lock().read_to_end(&mut text).map(|_| text);
        ("stdin".to_owned(), "standard input".to_owned(), read)
    } else {
        let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        (name, file.display().to_string(), fs::read(file))
    };
    let text = text.map_err(|error| format!("cannot read {source}: {error}"))?;
    parse(&name, &source, &text)
}

fn report(trace: &Trace, options: &Options) -> Result<Report, String> {
    let arena = |strategy| move |capacity| ArenaPolicy::new(strategy, capacity);
    match options.policy {
        PolicyName::Preallocate => measure(trace, options, arena(Strategy::Preallocate)),
        PolicyName::Growing => measure(trace, options, arena(Strategy::Growing)),
        PolicyName::Tpu => measure(trace, options, arena(Strategy::Tpu)),
        PolicyName::Bfc => measure(trace, options, |capacity| Ok(bfc::Bfc::new(capacity))),
    }
}

fn measure<P: Policy>(
    trace: &Trace,
    options: &Options,
    policy: impl Fn(Bytes) -> Result<P, String>,
) -> Result<Report, String> {
    let capacity = options.capacity.of(trace.peak)?;
    let outcome = replay::replay(trace, &mut policy(capacity)?, options.pin_every);
    let ns_per_op = replay::ns_per_op(trace, &mut policy(capacity)?);
    let min_capacity =
        if options.min_capacity { replay::min_capacity(trace, &policy, options.pin_every)? } else { None };
    Ok(Report {
        trace: trace.name.clone(),
        policy: options.policy.to_string(),
        peak_live_bytes: trace.peak.get(),
        capacity_bytes: capacity.get(),
        min_capacity_bytes: min_capacity.map(Bytes::get),
        failed: outcome.failed,
        moves: outcome.work.moves,
        moved_bytes: outcome.work.moved.get(),
        compactions: outcome.work.compactions,
        plan_ns_max: outcome.work.plan_ns_max,
        // Two decimals: the clock and the machine's other work give no more.
        ns_per_op: ns_per_op.map(|time| (time * 100.0).round() / 100.0),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use serde_json::Value;

    use super::*;

    fn output(arguments: &[&str]) -> Result<String, String> {
        let mut out = Vec::new();
        match run(cli::parse(arguments.iter().map(OsString::from))?, &mut out) {
            Ok(()) => Ok(String::from_utf8(out).expect("text")),
            Err(Failure::Trace(message)) => Err(message),
            Err(Failure::Output(error)) => Err(error.to_string()),
        }
    }

    #[test]
    fn every_policy_reports_every_file_in_json_and_in_a_table() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
        let (first, second) = (path("first.run.ev"), path("second"));
        fs::write(&first, "a 1 1000\na 2 300\nf 1\na 3 500\n").expect("written");
        fs::write(&second, "").expect("written");
        for policy in PolicyName::ALL {
            let policy = policy.to_string();
            let lines = output(&["--json", "--policy", &policy, "--min-capacity", "--pin-every", "2", &first, &second]);
            let lines = lines.expect("good traces");
            let objects: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            let [one, two] = &objects[..] else { panic!("{lines}") };
            let figures =
                (&one["trace"], &one["policy"], &one["peak_live_bytes"], &one["capacity_bytes"], &one["failed"]);
            let (name, policy) = ("first.run".into(), policy.into());
            assert_eq!(figures, (&name, &policy, &1536.into(), &3072.into(), &0.into()));
            assert!(one["min_capacity_bytes"].as_u64().is_some_and(|least| (1536..3072).contains(&least)), "{lines}");
            // Of the three blocks the second is pinned, out of the way if need be.
            let planned = policy == "tpu";
            assert!(one["ns_per_op"].is_f64() && one["plan_ns_max"].is_u64() == planned, "{lines}");
            assert_eq!((&two["peak_live_bytes"], &two["min_capacity_bytes"]), (&0.into(), &0.into()));
            assert!(two["ns_per_op"].is_null(), "{lines}");
        }
        let table = output(&["--policy", "bfc", &first]).expect("a good trace");
        assert_eq!(table.lines().count(), 2, "{table}");
    }

    #[test]
    fn every_policy_of_spilling_is_reported_in_json_and_in_a_table() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("layers.json");
        fs::write(&path, output(&["--generate", "layers-8"]).expect("a workload")).expect("written");
        let path = path.to_str().expect("a plain name");
        let lines = output(&["--json", "--spill", "all", path]).expect("a good trace");
        let objects: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(objects.len(), 5);
        for object in &objects {
            let bytes = |key: &str| object[key].as_u64().expect("a number");
            assert_eq!(
                (&object["trace"], &object["launches"], &object["failed"]),
                (&"layers".into(), &500.into(), &0.into())
            );
            assert_eq!(bytes("bytes_moved"), bytes("bytes_out") + bytes("bytes_back"));
            assert!(bytes("bytes_out") != 0 && object["ratio_to_belady"].is_f64(), "{object}");
        }
        let table = output(&["--spill", "belady", "--capacity", "1x", path]).expect("a good trace");
        let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert!(lines.len() == 2 && lines[1].ends_with(&["0B", "0B", "0B", "-"]), "{table}");
        // A trace of the other kind.
        fs::write(path, "a 1 2\n").expect("written");
        assert!(
            output(&["--spill", "all", path])
                .is_err_and(|error| error.contains("layers.json: expected value at line 1"))
        );
    }

    #[test]
    fn a_bad_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bad.ev");
        let path = path.to_str().expect("a plain name");
        assert!(output(&["--policy", "bfc", path]).is_err_and(|error| error.starts_with("cannot read ")));
        fs::write(path, "a 1 2\nf 2\n").expect("written");
        let error = output(&["--policy", "bfc", path]).expect_err("a bad trace");
        assert!(error.contains("bad.ev:2: `f 2`: no block `2` is held here"), "{error}");
    }

    #[test]
    fn what_is_generated_can_be_replayed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jitted.ev");
        fs::write(&path, output(&["--generate", "jitted", "--seed", "3"]).expect("a workload")).expect("written");
        let line = output(&["--json", "--policy", "preallocate", path.to_str().expect("a plain name")]);
        let report: Value = serde_json::from_str(&line.expect("a good trace")).expect("JSON");
        assert_eq!(report["failed"], 0);
    }
}
