//! What one execution costs in instructions: `make instructions`, or `cargo bench -p plugin_tests --bench
//! instructions`.
//!
//! Counted by `valgrind --tool=callgrind`, so that a busy machine changes nothing. What is pjrt-arena's own repeats to
//! the instruction where the engine runs a program inline; the engine's share varies with what its threads do while
//! they wait, and libc's by some percent with how the heap happens to lie. The bench runs itself once under valgrind:
//!
//! ```text
//!  for each program, on the bare engine and on pjrt-arena, as jaxlib calls it and waited for:
//!      warm up -> counts to a file of its own -> 400 executions -> counts to a file -> a line of the table
//! ```
//!
//! An execution is what jaxlib does for one call of a jitted function (`plugin_tests::dispatch`); the client that does
//! it is left out of the table. A word after `--` picks the programs whose name holds it.

use std::{
    env, fs,
    hint::black_box,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use plugin_tests::{
    Plugin, Value,
    callgrind::{Cost, Profile},
    dispatch::{self, Lane},
    plugin::{engine_path, library_path, plugin},
};

/// Says that this process runs under valgrind.
const COUNTED: &str = "PJRT_ARENA_COUNTED";
const EXECUTIONS: u64 = 400;
/// Functions of ours that are listed.
const LISTED: usize = 12;

/// Valgrind writes its counts to the next file, and begins anew, when this is called.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn pjrt_arena_counts() {
    black_box(());
}

/// How an execution goes on after Execute has returned.
#[derive(Clone, Copy)]
enum Manner {
    AsJaxlib,
    Waited,
}

impl Manner {
    const ALL: [(Self, &'static str); 2] =
        [(Self::AsJaxlib, "as jaxlib calls, not waited for"), (Self::Waited, "waited for")];

    fn run(self, lane: &Lane) {
        match self {
            Self::AsJaxlib => lane.run_as_jaxlib(),
            Self::Waited => lane.run_and_wait(),
        }
    }
}

fn wanted() -> Vec<dispatch::Case> {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    dispatch::small().into_iter().filter(|case| words.iter().all(|word| case.0.contains(word.as_str()))).collect()
}

/// Runs everything once, under valgrind.
fn be_counted() {
    let bare: &'static Plugin = Box::leak(Box::new(Plugin::load(&engine_path()).expect("the engine")));
    for case in wanted() {
        for (manner, _) in Manner::ALL {
            for plugin in [bare, plugin()] {
                // Time passes slowly under valgrind, and what is long leaves the caller's thread.
                let inline = [("asynchronous", Value::Bool(false))];
                let takes_it = plugin.version().1 >= 115;
                let lane = Lane::new(plugin, &case, if takes_it { &inline } else { &[] });
                // Some for the first learns of the program, and more for the engine's threads to be as they will be.
                (0..100).for_each(|_| manner.run(&lane));
                lane.run_and_wait();
                pjrt_arena_counts();
                (0..EXECUTIONS).for_each(|_| manner.run(&lane));
                pjrt_arena_counts();
            }
        }
    }
}

fn main() -> ExitCode {
    if env::var_os(COUNTED).is_some() {
        be_counted();
        return ExitCode::SUCCESS;
    }
    let folder = tempfile();
    let out = folder.join("out");
    let outcome = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-bus=yes", "--dump-before=pjrt_arena_counts", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe().expect("the bench has a path"))
        .args(env::args().skip(1).filter(|word| !word.starts_with('-')))
        .env(COUNTED, "1")
        // Of the engine's own logging only errors, which go to its standard error.
        .env("TF_CPP_MIN_LOG_LEVEL", "3")
        .stderr(Stdio::piped())
        .output();
    let output = match outcome {
        Ok(output) => output,
        Err(error) => {
            eprintln!("instructions: counting needs valgrind, which could not be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        eprintln!("instructions: the run under valgrind failed ({})", output.status);
        return ExitCode::FAILURE;
    }
    report(&out);
    drop(fs::remove_dir_all(folder));
    ExitCode::SUCCESS
}

fn tempfile() -> PathBuf {
    let folder = env::temp_dir().join(format!("pjrt-arena-instructions-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for what valgrind writes");
    folder
}

/// One execution's share of what was counted.
fn each(count: u64) -> f64 {
    count as f64 / EXECUTIONS as f64
}

fn report(out: &Path) {
    let file_name = |path: &Path| path.file_name().expect("a file").to_string_lossy().into_owned();
    let (ours, engine) = (file_name(&library_path()), file_name(&engine_path()));
    let is_ours = |object: &str| object.ends_with(&ours);
    let is_engine = |object: &str| object.ends_with(&engine) || object.is_empty() || object == "???";
    let client = file_name(&env::current_exe().expect("the bench has a path"));
    let is_libc = |object: &str| !is_ours(object) && !is_engine(object) && !object.ends_with(&client);

    println!(
        "per execution                       plugin        instructions = engine +  pjrt-arena +   libc  \
         allocations: engine, pjrt-arena   atomics: engine, pjrt-arena"
    );
    // What comes before each measurement is in a file of its own.
    let mut dumps = (1..).map(|number| {
        let path = out.with_extension((2 * number).to_string());
        Profile::parse(&fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    });
    for (name, ..) in wanted() {
        for (_, manner) in Manner::ALL {
            println!("{name}, {manner}");
            let mut totals = Vec::new();
            let mut last = Profile::default();
            for plugin in ["bare engine", "pjrt-arena"] {
                let profile = dumps.next().expect("a dump for each");
                let parts = [profile.sum(is_engine), profile.sum(is_ours), profile.sum(is_libc)];
                let total: u64 = parts.iter().map(|part| part.instructions).sum();
                println!(
                    "{:35} {plugin:12} {:13.0} {:8.0} {:12.0} {:8.0} {:21.2} {:11.2} {:17.2} {:11.2}",
                    "",
                    each(total),
                    each(parts[0].instructions),
                    each(parts[1].instructions),
                    each(parts[2].instructions),
                    each(profile.allocations(is_engine)),
                    each(profile.allocations(is_ours)),
                    each(parts[0].atomics + parts[2].atomics),
                    each(parts[1].atomics),
                );
                totals.push(total);
                last = profile;
            }
            println!("{:35} {:12} {:13.3}", "", "ratio", totals[1] as f64 / totals[0] as f64);
            list(&last, is_ours);
        }
    }
}

/// The functions of ours that take most.
fn list(profile: &Profile, is_ours: impl Fn(&str) -> bool) {
    let mut functions: Vec<(&str, Cost)> = profile
        .own
        .iter()
        .filter(|((object, _), _)| is_ours(object))
        .map(|((_, name), &cost)| (&**name, cost))
        .collect();
    functions.sort_by_key(|&(_, cost)| std::cmp::Reverse(cost.instructions));
    for (name, cost) in functions.iter().take(LISTED).filter(|(_, cost)| cost.instructions >= EXECUTIONS) {
        println!("    {:8.1} instructions, {:5.2} atomics  {name}", each(cost.instructions), each(cost.atomics));
    }
}
