//! Damages programs, HLO, compile options, cached plans and traces at random, and feeds them to what reads them.
//!
//! ```text
//!  make fuzz MINUTES=5                      all targets, as many processes as processors; then random JAX programs
//!  make fuzz-inputs MINUTES=25 SEED=7       the first of the two alone
//!  make fuzz-inputs READ="hlo FILE..."      reads saved findings again
//!
//!  main.rs      the processes, one seed each; those that hang or die
//!  worker.rs    one process: reads inputs, and keeps those that reach something new
//!  targets.rs   what reads inputs, what has to be true of what it gives, and the corpus to begin with
//!  mutate.rs    the damage
//!  coverage.rs  the counters of edges that were reached
//!  report.rs    the tables
//! ```
//!
//! A finding is a panic, a process that dies, an input that takes longer than [`LONGEST`], or more memory than the
//! input's size allows. It is written to `target/fuzz/`, and the end is not zero. A finding is
//! read again in every way that its reader may choose, so that it repeats.

mod coverage;
mod mutate;
mod report;
mod targets;
mod worker;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    thread,
    time::{Duration, Instant},
};

use plugin_tests::counting::Counting;

use crate::{
    targets::TARGETS,
    worker::{Reading, Told},
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The longest that an input may take.
const LONGEST: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: fuzz MINUTES [SEED [TARGET]], or fuzz read TARGET FILE...";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz");
    match words[..] {
        ["read", target, ref files @ ..] => read_again(target, files),
        ["worker", seed, seconds, only] => {
            let (Ok(seed), Ok(seconds)) = (seed.parse(), seconds.parse()) else { return usage() };
            let told = worker::run(seed, Duration::from_secs_f64(seconds), only, &folder);
            let text = serde_json::to_vec(&told).expect("numbers can be written");
            fs::write(told_by(seed, &folder), text).expect("the folder of findings can be written to");
            ExitCode::SUCCESS
        }
        [minutes, ref rest @ ..] if rest.len() <= 2 => {
            let seed = rest.first().map_or(Ok(1), |seed| seed.parse());
            let (Ok(minutes), Ok(seed)) = (minutes.parse::<f64>(), seed) else { return usage() };
            let only = rest.get(1).copied().unwrap_or_default();
            if !TARGETS.iter().any(|target| target.name.contains(only)) {
                eprintln!("no target's name holds `{only}`; there are {}", names());
                return ExitCode::FAILURE;
            }
            supervise(60.0 * minutes.clamp(0.0, 1e6), seed, only, &folder)
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}\ntargets: {}", names());
    ExitCode::FAILURE
}

fn names() -> String {
    TARGETS.map(|target| target.name).join(", ")
}

fn told_by(seed: u64, folder: &Path) -> PathBuf {
    folder.join(format!("{seed}.told"))
}

/// Reads files as a target's inputs, and says what comes of each.
fn read_again(target: &str, files: &[&str]) -> ExitCode {
    let Some(target) = TARGETS.iter().find(|known| known.name == target) else { return usage() };
    let mut status = ExitCode::SUCCESS;
    for file in files {
        let said = match fs::read(file) {
            Err(error) => Err(error.to_string()),
            Ok(input) => {
                let outcomes = (0..worker::CHOICES).map(|choice| worker::read(target, &input, choice));
                let accepted: Result<Vec<bool>, String> = outcomes.map(|outcome| outcome.accepted).collect();
                accepted
                    .map(|all| format!("accepted in {} of {} ways", all.iter().filter(|&&one| one).count(), all.len()))
            }
        };
        if said.is_err() {
            status = ExitCode::FAILURE;
        }
        println!("{file}: {}", said.unwrap_or_else(|what| what));
    }
    status
}

/// A worker, and when it was last seen to begin an input.
struct Worker {
    seed: u64,
    process: Child,
    count: u64,
    since: Instant,
}

/// Starts a worker on each processor, waits for them, and prints what they told.
fn supervise(seconds: f64, seed: u64, only: &str, folder: &Path) -> ExitCode {
    fs::create_dir_all(folder).expect("a folder for findings");
    let program = env::current_exe().expect("the path of this program");
    let processors = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let begun = Instant::now();
    let mut workers: Vec<Worker> = (0..processors)
        .map(|number| {
            let seed = seed.wrapping_mul(1000).wrapping_add(number);
            _ = fs::remove_file(told_by(seed, folder));
            let arguments = ["worker", &seed.to_string(), &seconds.to_string(), only];
            let process = Command::new(&program).args(arguments).spawn().expect("a worker starts");
            Worker { seed, process, count: 0, since: Instant::now() }
        })
        .collect();
    let (mut told, mut lost) = (Vec::new(), 0);
    while !workers.is_empty() {
        thread::sleep(Duration::from_millis(200));
        workers.retain_mut(|worker| match worker.look(folder) {
            None => true,
            Some(Ok(said)) => {
                told.push(said);
                false
            }
            Some(Err(what)) => {
                lost += 1;
                eprintln!("{what}");
                false
            }
        });
    }
    println!("seed {seed}, {processors} processes, {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0);
    let findings = lost + report::targets(&told);
    report::coverage(&told, folder);
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Worker {
    /// What it told, if it has ended; an error, if that was not its will.
    fn look(&mut self, folder: &Path) -> Option<Result<Told, String>> {
        let path = folder.join(format!("{}.reading", self.seed));
        let ended = self.process.try_wait().expect("a worker's status");
        if ended.is_some_and(|status| status.success())
            && let Ok(text) = fs::read(told_by(self.seed, folder))
            && let Ok(told) = serde_json::from_slice(&text)
        {
            _ = (fs::remove_file(told_by(self.seed, folder)), fs::remove_file(&path));
            return Some(Ok(told));
        }
        let (count, target, input) = Reading::of(&path).unwrap_or((0, "no target", Vec::new()));
        let what = match ended {
            Some(status) => format!("the process ended: {status}"),
            None if count != self.count => {
                (self.count, self.since) = (count, Instant::now());
                return None;
            }
            None if self.since.elapsed() < LONGEST => return None,
            None => {
                _ = (self.process.kill(), self.process.wait());
                format!("longer than {LONGEST:?}")
            }
        };
        let file = worker::save(folder, target, &input);
        Some(Err(format!("{target}, seed {}, input {count}: {what}: {}", self.seed, file.display())))
    }
}
