//! A fault at every call of the engine: for each function and each n, the n-th call fails, is late, throws before or
//! after its work, or gives an event with an error, while a workload runs. Whatever the workload's calls answer then,
//! an error names the cause, what was read is right, nothing stays behind, and the same workload runs without an error
//! right after.
//!
//! One test and one process, because the fault is armed for the process. A workload's calls come in the same order each
//! time but for those of other threads, so n is no name of one call; every call that there is gets its turn.

mod clients;
mod engine;
mod exceptions;
mod held;
mod launches;
mod spilling;
mod workloads;

use std::{
    collections::BTreeMap,
    env,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use engine::{Faulty, KINDS, Kind, TEXT};
use held::Note;
use plugin_tests::{event::HANG, plugin, plugin::engine_path};
use workloads::World;

/// A workload.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    run: fn(&World),
    /// Every call up to this one gets its turn; of those behind it one in so many.
    each: u64,
    kinds: &'static [Kind],
}

const WORKLOADS: [Workload; 6] = [
    Workload { name: "arrays", run: workloads::arrays, each: 30, kinds: &KINDS },
    Workload { name: "programs", run: workloads::programs, each: 30, kinds: &KINDS },
    Workload { name: "pressure", run: workloads::pressure, each: 30, kinds: &KINDS },
    // No exceptions: what a program reads that threw stays in its memory, and a device of a MiB is soon full.
    Workload { name: "spilling", run: workloads::spilling, each: 30, kinds: &[Kind::Fail, Kind::Delay, Kind::Event] },
    // These two take tens of milliseconds.
    Workload {
        name: "compiling",
        run: workloads::compiling,
        each: 2,
        kinds: &[Kind::Fail, Kind::Event, Kind::Throw, Kind::ThrowAfter],
    },
    Workload {
        name: "whole life",
        run: workloads::whole_life,
        each: 3,
        kinds: &[Kind::Fail, Kind::Event, Kind::ThrowAfter],
    },
];

/// What came of the faults at one function.
#[derive(Default)]
struct Row {
    calls: u64,
    injected: u64,
    /// Faults after which an error of the caller's named the cause.
    named: u64,
    /// Faults that no caller's call failed of.
    absorbed: u64,
    wrong: Vec<String>,
    leaks: Vec<String>,
    lost: Vec<String>,
}

/// What runs at this moment, and since when.
static RUNNING: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// Ends the process if one run does not end.
fn watch() {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(100));
            if let Some((what, since)) = &*RUNNING.lock().expect("no holder panics")
                && since.elapsed() > HANG / 10
            {
                eprintln!("a hang: {what}");
                std::process::abort();
            }
        }
    });
}

fn run(what: String, workload: Workload, world: &World) -> Vec<Note> {
    *RUNNING.lock().expect("no holder panics") = Some((what, Instant::now()));
    (workload.run)(world);
    *RUNNING.lock().expect("no holder panics") = None;
    held::notes()
}

/// What is held when nothing runs: bytes in use of each device, and handles of the engine by the function that gave
/// them.
fn books(world: &World) -> (Vec<i64>, Vec<usize>) {
    let bytes = world.devices.iter().map(|device| device.bytes_in_use().expect("statistics")).collect();
    (bytes, Faulty::get().live())
}

/// Waits until no more is held than `most`; else what.
fn settled(world: &World, most: &(Vec<i64>, Vec<usize>), names: &[&str]) -> Option<String> {
    let begun = Instant::now();
    loop {
        let now = books(world);
        let more = |slot: &usize| now.1[*slot] > most.1[*slot];
        let leaked: Vec<_> = (0..names.len())
            .filter(more)
            .map(|slot| format!("{} of {}", now.1[slot] - most.1[slot], names[slot]))
            .collect();
        if leaked.is_empty() && now.0.iter().zip(&most.0).all(|(now, most)| now <= most) {
            return None;
        }
        if begun.elapsed() > HANG / 30 {
            return Some(format!("{:?} bytes in use instead of {:?}, {leaked:?}", now.0, most.0));
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// The turns that calls get.
fn turns(calls: u64, each: u64) -> impl Iterator<Item = u64> {
    (1..=calls).filter(move |&n| n <= each || n.is_multiple_of(calls.div_ceil(each)))
}

fn inject(world: &World, workload: Workload, rows: &mut BTreeMap<usize, Row>, names: &[&str]) {
    let (name, faulty) = (workload.name, Faulty::get());
    let mut most = books(world);
    let mut calls = vec![0; names.len()];
    // Caches fill, and what they keep depends on who comes first.
    for round in 0..6 {
        let before: Vec<u64> = (0..names.len()).map(|slot| faulty.calls(slot)).collect();
        let notes = run(format!("{name} without a fault"), workload, world);
        assert!(notes.is_empty(), "{name} without a fault, round {round}: {notes:#?}");
        for slot in 0..names.len() {
            calls[slot] = calls[slot].max(faulty.calls(slot) - before[slot]);
        }
        let now = books(world);
        most.0.iter_mut().zip(now.0).for_each(|(most, now)| *most = now.max(*most));
        most.1.iter_mut().zip(now.1).for_each(|(most, now)| *most = now.max(*most));
    }
    for slot in 0..names.len() {
        let row = rows.entry(slot).or_default();
        row.calls += calls[slot];
        let kinds = faulty.kinds(slot).filter(|kind| workload.kinds.contains(kind));
        for (kind, n) in kinds.flat_map(|kind| turns(calls[slot], workload.each).map(move |n| (kind, n))) {
            let what = format!("{name}: {kind:?} at call {n} of {}", names[slot]);
            if env::var_os("FAULTS_VERBOSE").is_some() {
                eprintln!("{what}");
            }
            faulty.arm(slot, n, kind);
            let notes = run(what.clone(), workload, world);
            if !faulty.disarm() {
                continue;
            }
            row.injected += 1;
            judge(row, kind, &what, notes);
            let again = run(format!("{what}, and without it"), workload, world);
            row.lost.extend(again.iter().map(|note| format!("{what}: then {note:?}")));
            if let Some(leak) = settled(world, &most, names) {
                row.leaks.push(format!("{what}: {leak}"));
                most = books(world);
            }
        }
    }
}

/// Sorts what was noted in the run with the fault.
fn judge(row: &mut Row, kind: Kind, what: &str, notes: Vec<Note>) {
    let mut named = false;
    let failed = !notes.is_empty();
    for note in notes {
        match note {
            Note::Failed(_, failure) if kind != Kind::Delay && failure.message.contains(TEXT) => {
                named = true;
                if failure.message.contains("this is a bug") {
                    row.wrong.push(format!("{what}: {failure:?}"));
                }
            }
            Note::Failed(step, failure) => row.wrong.push(format!("{what}, in {step}: {failure:?}")),
            Note::Wrong(text) => row.lost.push(format!("{what}: {text}")),
        }
    }
    row.named += u64::from(named);
    row.absorbed += u64::from(!failed);
}

#[test]
fn a_fault_at_every_call_of_the_engine() {
    // SAFETY: the only test of this process; nothing else reads the environment yet.
    unsafe {
        env::set_var("FAULTY_ENGINE_BEHIND", engine_path());
        env::set_var("PJRT_ARENA_ENGINE", engine::library());
    }
    watch();
    plugin();
    let names = engine::functions();
    let begun = Instant::now();
    let mut rows = BTreeMap::new();
    let only = env::var("FAULTS_ONLY").unwrap_or_default();
    let nothing = Faulty::get().live();
    for strategy in ["tpu"] {
        let world = World::new(strategy).expect("a client without a fault");
        for workload in WORKLOADS.iter().filter(|workload| workload.name.contains(&only)) {
            let since = Instant::now();
            inject(&world, *workload, &mut rows, &names);
            println!("{strategy} {}: {:.1} s", workload.name, since.elapsed().as_secs_f32());
        }
        drop(world);
        let notes = held::notes();
        assert!(notes.is_empty(), "the end of a client: {notes:?}");
        let now = Faulty::get().live();
        let left: Vec<_> =
            (0..names.len()).filter(|&slot| now[slot] > nothing[slot]).map(|slot| (names[slot], now[slot])).collect();
        if !left.is_empty() {
            rows.entry(0).or_default().leaks.push(format!("after the client's end: {left:?}"));
        }
    }
    print(&rows, &names, begun.elapsed());
    let misuse = Faulty::get().misuse();
    assert!(misuse.is_empty(), "{misuse}");
    let bad: Vec<_> = rows.values().flat_map(|row| row.wrong.iter().chain(&row.leaks).chain(&row.lost)).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

fn print(rows: &BTreeMap<usize, Row>, names: &[&str], time: Duration) {
    println!("| function | calls | faults | errors right | no error | wrong | leaks | data lost |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let line =
        |name: &str, row: [u64; 7]| println!("| {name} | {} |", row.map(|number| number.to_string()).join(" | "));
    let of = |row: &Row| {
        let lists = [&row.wrong, &row.leaks, &row.lost].map(|list| list.len() as u64);
        [row.calls, row.injected, row.named, row.absorbed, lists[0], lists[1], lists[2]]
    };
    let mut total = [0; 7];
    for (&slot, row) in rows.iter().filter(|(_, row)| row.calls > 0) {
        line(names[slot], of(row));
        total = std::array::from_fn(|at| total[at] + of(row)[at]);
    }
    line("all", total);
    println!("{} kinds of faults, no hang, {:.1} s", KINDS.len(), time.as_secs_f32());
}
