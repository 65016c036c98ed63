//! Damages programs, HLO, compile options and cached plans at random, and feeds them to what reads them.
//!
//! ```text
//!  make fuzz MINUTES=5          all targets in turn, each with the corpus of plugin_tests/data
//!  cargo run --release --package plugin_tests --example fuzz -- MINUTES [SEED]
//! ```
//!
//! The sequence is that of the seed. An input that is refused for a reason not met before joins the corpus: without
//! the compiler's help that stands for coverage. A finding is a panic, an input that takes longer than [`LONGEST`], or
//! more memory than [`PER_BYTE`] bytes for each of its own; it is written to `target/fuzz/`, and the end is not zero.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::HashSet,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use pjrt_arena::{
    program::{Policy, add_destinations, hlo, inspect, names_one, options, without_annotations},
    runtime::executable::{
        loaded::{Plan, ResultPlacement},
        serialized,
    },
};

/// The longest that an input of the corpus's size may take.
const LONGEST: Duration = Duration::from_secs(10);
/// The budget of a program is 128; tables and what is written take the rest.
const PER_BYTE: usize = 512;
/// And so much for any input.
const FREE: usize = 8 << 20;
/// Inputs longer than this are cut.
const LONGEST_INPUT: usize = 1 << 18;
/// Inputs that join the corpus of a target.
const MOST_JOINED: usize = 2000;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counting;

// SAFETY: every block comes from the system's allocator, and goes back to it with the same layout.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the block came from the system's allocator with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The input that is being read, and since when: for the thread that watches for hangs.
static READING: Mutex<Option<(Instant, PathBuf, Vec<u8>)>> = Mutex::new(None);

/// Reads an input; why it was refused, once for each who refused it.
type Read = fn(&[u8], &mut Rng) -> Vec<String>;

struct Target {
    name: &'static str,
    read: Read,
    corpus: Vec<Vec<u8>>,
    seen: HashSet<String>,
    executions: u64,
    refused: u64,
    findings: u64,
}

fn read_program(input: &[u8], rng: &mut Rng) -> Vec<String> {
    let policy = Policy {
        skip_sub_byte: rng.bool(),
        tie_unspecified_shardings: rng.bool(),
        place_pinned_host: rng.bool(),
        one_memory: rng.bool(),
    };
    names_one(input, |text| text == b"main");
    let mut refused = Vec::new();
    refused.extend(inspect(input).err().map(|why| why.reason().to_owned()));
    refused.extend(without_annotations(input).err().map(|why| why.reason().to_owned()));
    match add_destinations(input, &policy) {
        Ok(rewritten) => {
            let again = inspect(&rewritten.bytes);
            let more = rewritten.signature.parameters.len() + rewritten.destinations;
            assert!(
                again.is_ok_and(|again| again.parameters.len() == more),
                "a program that was rewritten cannot be read"
            );
        }
        Err(why) => refused.push(why.reason().to_owned()),
    }
    refused
}

fn read_hlo(input: &[u8], rng: &mut Rng) -> Vec<String> {
    let visible = rng.usize(0..6);
    let read = |format| hlo::hide_parameters(input, format, visible).err().map(|why| why.reason().to_owned());
    [hlo::Format::Hlo, hlo::Format::HloWithConfig].into_iter().filter_map(read).collect()
}

fn read_options(input: &[u8], rng: &mut Rng) -> Vec<String> {
    let (parameters, added) = (rng.usize(0..6), rng.usize(0..6));
    let refused = [
        options::CompileOptions::read(input).map(|_| ()),
        options::add_parameters(input, parameters, added).map(|_| ()),
        options::drop_fusion_types_above(input, rng.u64(0..4)).map(|_| ()),
        options::without_xnnpack(input).map(|_| ()),
        options::with_counts(input).map(|_| ()),
    ];
    refused.into_iter().filter_map(Result::err).map(|why| why.reason().to_owned()).collect()
}

fn read_plan(input: &[u8], _: &mut Rng) -> Vec<String> {
    // Its reason quotes the input and has numbers in it: the other words tell reasons apart.
    let words =
        |text: &str| text.split('`').step_by(2).flat_map(str::chars).filter(char::is_ascii_alphabetic).collect();
    serialized::open(input).err().map(|error| words(&error.message)).into_iter().collect()
}

/// The files of a folder of the corpus with one of these endings.
fn files(folder: &str, endings: &[&str]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(folder);
    let mut paths: Vec<PathBuf> =
        fs::read_dir(&folder).expect("the corpus").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let wanted = |path: &&PathBuf| path.extension().is_some_and(|of| endings.iter().any(|ending| of == *ending));
    paths.iter().filter(wanted).map(|path| fs::read(path).expect("a file")).collect()
}

fn plans() -> Vec<Vec<u8>> {
    let mut plan = Plan::unmodified("a reason");
    let first = serialized::seal(&plan, b"blob");
    plan.arguments = Some(2);
    plan.placements = vec![
        ResultPlacement::Destination(0),
        ResultPlacement::Argument(1),
        ResultPlacement::Anywhere("a reason".to_owned()),
    ];
    (plan.destinations, plan.released, plan.user_options) = (vec![0], vec![1], vec![1, 2, 3]);
    [first, serialized::seal(&plan, b"blob")].into_iter().map(|sealed| sealed.expect("a plan is written")).collect()
}

impl Target {
    fn new(name: &'static str, read: Read, corpus: Vec<Vec<u8>>) -> Self {
        assert!(!corpus.is_empty(), "{name} has no corpus");
        Self { name, read, corpus, seen: HashSet::new(), executions: 0, refused: 0, findings: 0 }
    }

    fn one(&mut self, rng: &mut Rng) {
        let input = self.input(rng);
        let file = finding(self.name, &input);
        let start = Instant::now();
        *READING.lock().unwrap_or_else(PoisonError::into_inner) = Some((start, file.clone(), input.clone()));
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let read = catch_unwind(AssertUnwindSafe(|| (self.read)(&input, rng)));
        let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        *READING.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.executions += 1;
        let bound = PER_BYTE * input.len() + FREE;
        if taken > bound {
            self.found(&file, &input, &format!("{taken} bytes for an input of {}; at most {bound}", input.len()));
        }
        match read {
            Err(_) => self.found(&file, &input, "a panic"),
            Ok(reasons) => {
                self.refused += u64::from(!reasons.is_empty());
                let new = reasons.into_iter().filter(|reason| self.seen.insert(reason.clone())).count();
                if new > 0 && self.corpus.len() < MOST_JOINED {
                    self.corpus.push(input);
                }
            }
        }
    }

    fn found(&mut self, file: &Path, input: &[u8], what: &str) {
        self.findings += 1;
        save(file, input);
        eprintln!("{}: {what}: {}", self.name, file.display());
    }

    /// An input of the corpus, damaged in a few places.
    fn input(&self, rng: &mut Rng) -> Vec<u8> {
        let mut input = self.corpus[rng.usize(0..self.corpus.len())].clone();
        let sections = Sections::of(&input);
        match sections {
            // Behind lengths that still fit, damage gets further.
            Some(mut sections) if rng.u8(0..4) != 0 => {
                let at = rng.usize(0..sections.payloads.len());
                self.damage(&mut sections.payloads[at].1, rng);
                input = sections.bytes();
            }
            _ => self.damage(&mut input, rng),
        }
        input.truncate(LONGEST_INPUT);
        input
    }

    fn damage(&self, bytes: &mut Vec<u8>, rng: &mut Rng) {
        const TELLING: [u8; 10] = [0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff, 0x40, 0x09];
        for _ in 0..1 + rng.usize(0..4) {
            let at = rng.usize(0..=bytes.len());
            let longest = 1 << rng.u32(0..10);
            let length = rng.usize(0..=longest.min(bytes.len() - at));
            match rng.u8(0..8) {
                0 if at < bytes.len() => bytes[at] ^= 1 << rng.u32(0..8),
                1 if at < bytes.len() => bytes[at] = TELLING[rng.usize(0..TELLING.len())],
                2 if at < bytes.len() => bytes[at] = rng.u8(..),
                3 => bytes.insert(at, TELLING[rng.usize(0..TELLING.len())]),
                4 => _ = bytes.drain(at..at + length),
                5 => {
                    let piece = bytes[at..at + length].repeat(1 + rng.usize(0..8));
                    bytes.splice(at..at, piece);
                }
                6 => {
                    let other = &self.corpus[rng.usize(0..self.corpus.len())];
                    let from = rng.usize(0..=other.len());
                    let piece = other[from..(from + 1 + rng.usize(0..64)).min(other.len())].to_vec();
                    bytes.splice(at..at + length, piece);
                }
                _ => bytes.truncate(bytes.len() - length.min(bytes.len())),
            }
        }
    }
}

/// A file of MLIR bytecode, taken apart at its sections.
struct Sections {
    head: Vec<u8>,
    payloads: Vec<(u8, Vec<u8>)>,
}

impl Sections {
    fn of(file: &[u8]) -> Option<Self> {
        let producer = file.strip_prefix(b"ML\xefR")?.get(1..)?;
        let head = 5 + producer.iter().position(|&byte| byte == 0)? + 1;
        let (mut rest, mut payloads) = (file.get(head..)?, Vec::new());
        while let Some((&id, tail)) = rest.split_first() {
            let first = *tail.first()?;
            let bytes = (first.trailing_zeros() as usize + 1).min(9);
            let mut word = [0; 8];
            let read = tail.get(..bytes.min(8))?;
            word[..read.len()].copy_from_slice(read);
            let length = usize::try_from(u64::from_le_bytes(word) >> bytes.min(8)).ok()?;
            let payload = tail.get(bytes..)?.get(..length)?;
            payloads.push((id, payload.to_vec()));
            rest = &tail[bytes + length..];
        }
        (!payloads.is_empty()).then(|| Self { head: file[..head].to_vec(), payloads })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = self.head.clone();
        for (id, payload) in &self.payloads {
            // A length of eight bytes is as good as a short one.
            out.extend([*id, 0]);
            out.extend((payload.len() as u64).to_le_bytes());
            out.extend(payload);
        }
        out
    }
}

fn finding(target: &str, input: &[u8]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/fuzz/{target}-{:016x}", hasher.finish()))
}

fn save(file: &Path, input: &[u8]) {
    let folder = file.parent().expect("a folder of findings");
    if let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(file, input)) {
        eprintln!("{} cannot be written: {error}", file.display());
    }
}

/// Ends the process when an input takes too long.
fn watch() {
    loop {
        thread::sleep(Duration::from_millis(200));
        let reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, file, input)) = &*reading
            && since.elapsed() > LONGEST
        {
            save(file, input);
            eprintln!("an input takes longer than {LONGEST:?}: {}", file.display());
            std::process::exit(1);
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let minutes: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let seed: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let programs = || [files("artifacts", &["mlir"]), files("programs", &["mlir"])].concat();
    let mut targets = [
        Target::new("programs", read_program, programs()),
        Target::new("hlo", read_hlo, files("hlo", &["pb"])),
        Target::new("options", read_options, files("programs", &["opts"])),
        Target::new("plans", read_plan, plans()),
    ];
    thread::spawn(watch);
    let mut rng = Rng::with_seed(seed);
    let deadline = Instant::now() + Duration::from_secs_f64(60.0 * minutes.clamp(0.0, 1e6));
    while Instant::now() < deadline {
        for target in &mut targets {
            (0..100).for_each(|_| target.one(&mut rng));
        }
    }
    println!("seed {seed}, {minutes} minutes");
    println!(
        "{:<10} {:>12} {:>12} {:>8} {:>8} {:>9}",
        "target", "executions", "refused", "reasons", "corpus", "findings"
    );
    for Target { name, executions, refused, seen, corpus, findings, .. } in &targets {
        println!("{name:<10} {executions:>12} {refused:>12} {:>8} {:>8} {findings:>9}", seen.len(), corpus.len());
    }
    match targets.iter().map(|target| target.findings).sum::<u64>() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
