//! Forced compactions under load: threads that make, check, run, lend and destroy arrays in a device memory that is
//! nearly full, so that most allocations have to move somebody else's arrays first.
//!
//! ```text
//!  thread 0 .. n   own arrays: each filled by its seed, each checked element by element whenever it is read
//!        |         the pool: arrays that all threads read and run on at once, so that they move between two runs
//!        v
//!  one client, strategy tpu, a few MiB a device: holes are small, and an array in pieces does not exist
//! ```
//!
//! An array that an outsider refers to is read at its address as well: if it moved, that reads another array's bytes.

mod worker;

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use worker::Worker;

use crate::{
    Buffer, Client, Device, Loaded, Program, Value,
    counters::{sum, wait_until_empty},
    event::HANG,
};

/// Elements of a small array: most programs' argument.
const SMALL: usize = 1024;
/// Elements of a large one, 1 MiB.
const LARGE: usize = 262_144;
/// Parts of a thread's budget that are used; the rest is left to rounding and to what is about to be freed.
const FULL: f64 = 0.97;

/// How many times what a device has is held where arrays are spilled.
const OVER: usize = 3;

/// `x + 1` on 1 MiB, with `x` donated.
const DONATE_LARGE: &str = "module @donate_large {
  func.func public @main(%x: tensor<262144xf32> {tf.aliasing_output = 0 : i32}) -> tensor<262144xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<262144xf32>
    %y = stablehlo.add %x, %one : tensor<262144xf32>
    return %y : tensor<262144xf32>
  }
}";

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Devices of the client.
    pub devices: i64,
    /// Bytes of each device.
    pub limit: u64,
    /// Threads.
    pub threads: usize,
    /// What makes arrays move.
    pub pressure: Pressure,
    /// Ends once the devices have been compacted so often, all together; with [`Pressure::Spilled`], once so many
    /// arrays have been spilled.
    pub compactions: u64,
    /// Chooses what the threads do.
    pub seed: u64,
}

/// Why arrays move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// The arrays fill the devices: what fits in no hole has room made for it.
    Full,
    /// As that, and each allocation and each launch first moves all that can move (`compact=always`).
    Always,
    /// The arrays take three times what the devices have, and are spilled.
    Spilled,
}

impl Pressure {
    /// What the threads hold at most, as a multiple of what the devices have.
    const fn held(self) -> usize {
        match self {
            Self::Full | Self::Always => 1,
            Self::Spilled => OVER,
        }
    }

    /// The counter of what [`Load::compactions`] asks for.
    const fn counter(self) -> &'static str {
        match self {
            Self::Full | Self::Always => "compactions",
            Self::Spilled => "spill/spilled",
        }
    }

    /// Client options besides the strategy and the limit.
    fn options(self, limit: u64) -> Vec<(&'static str, String)> {
        match self {
            Self::Full => Vec::new(),
            Self::Always => vec![("compact", "always".into())],
            Self::Spilled => {
                vec![("spill", "host".into()), ("spill_limit", (limit * OVER as u64).to_string())]
            }
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Compactions that moved something.
    pub compactions: u64,
    /// Arrays spilled, and brought back.
    pub spilled: (u64, u64),
    /// Arrays moved.
    pub moves: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// From begin to end.
    pub time: Duration,
    /// Arrays whose contents were compared.
    pub checks: u64,
    /// Bytes compared.
    pub checked_bytes: u64,
    /// How often each thing was done.
    pub done: BTreeMap<&'static str, u64>,
    /// Allocations that failed, although the threads never hold more than fits: by what could not move.
    pub refused: BTreeMap<String, u64>,
    /// Resident memory in KiB after a tenth of the work.
    pub resident_early: u64,
    /// The same at the end, before the client goes.
    pub resident_late: u64,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.checks += other.checks;
        self.checked_bytes += other.checked_bytes;
        other.done.into_iter().for_each(|(what, times)| *self.done.entry(what).or_default() += times);
        other.refused.into_iter().for_each(|(why, times)| *self.refused.entry(why).or_default() += times);
    }
}

/// Does `load`, and asserts that every byte was right and nothing is left at the end.
///
/// # Panics
/// On a wrong byte, an unexpected error, a leak, or when nothing happens for [`HANG`] (it ends the process then,
/// because its threads cannot be ended).
pub fn run(load: Load) -> Outcome {
    let start = Instant::now();
    let site = Arc::new(Site::new(load));
    let workers: Vec<_> = (0..load.threads)
        .map(|number| {
            let site = Arc::clone(&site);
            thread::spawn(move || {
                let outcome =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Worker::new(&site, number).work()));
                if outcome.is_err() {
                    site.enough.store(true, Relaxed);
                }
                outcome
            })
        })
        .collect();
    let resident_early = site.watch(&workers);
    let mut outcome = Outcome { resident_early, ..Outcome::default() };
    for worker in workers {
        match worker.join().expect("panics are caught") {
            Ok(part) => outcome.add(part),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    site.pool.iter().for_each(|shared| shared.check(&mut outcome));
    let site = Arc::into_inner(site).expect("the threads are done");
    outcome.resident_late = resident();
    site.finish(&mut outcome);
    outcome.time = start.elapsed();
    outcome
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of status");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number of KiB")
}

/// Element `i` of an array.
fn element(seed: u32, steps: u32, i: usize) -> f32 {
    (seed.wrapping_add(i as u32) & 0xFFFF) as f32 + steps as f32
}

/// One array and what must be in it.
struct Item {
    buffer: Buffer,
    len: usize,
    seed: u32,
    /// How often a program added one.
    steps: u32,
    device: usize,
    references: u32,
    /// Where it lies, if it must not move.
    address: Option<usize>,
}

impl Item {
    fn bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    /// Compares every element.
    fn check(&self, outcome: &mut Outcome) {
        let values = self.buffer.read::<f32>().unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        self.compare(&values, 0, outcome);
        if let Some(address) = self.address {
            assert_eq!(self.buffer.opaque_pointer().expect("its address").addr(), address, "{} moved", self.name());
            let there = std::ptr::with_exposed_provenance::<f32>(address);
            // SAFETY: the address was given out for as many elements, and stays valid while it is referred to.
            let there = unsafe { std::slice::from_raw_parts(there, self.len) };
            self.compare(there, 0, outcome);
        }
    }

    /// It must not move from now on.
    fn stays_at(&mut self, address: usize) {
        let before = *self.address.get_or_insert(address);
        assert_eq!(before, address, "{} moved", self.name());
    }

    fn compare(&self, values: &[f32], first: usize, outcome: &mut Outcome) {
        let right = |(i, value): (usize, &f32)| value.to_bits() == element(self.seed, self.steps, first + i).to_bits();
        if let Some(wrong) = values.iter().enumerate().position(|pair| !right(pair)) {
            let expected = element(self.seed, self.steps, first + wrong);
            panic!("{}: element {} is {}, not {expected}", self.name(), first + wrong, values[wrong]);
        }
        outcome.checks += 1;
        outcome.checked_bytes += size_of_val(values) as u64;
    }

    fn name(&self) -> String {
        format!(
            "the array f32[{}] of seed {} after {} steps on device {}",
            self.len, self.seed, self.steps, self.device
        )
    }
}

/// What all threads share.
struct Site {
    load: Load,
    client: Client,
    devices: Vec<Device>,
    add_one: Loaded,
    add_one_large: Loaded,
    donate: Loaded,
    donate_large: Loaded,
    two_results: Loaded,
    temp_heavy: Loaded,
    iterate: Loaded,
    /// An argument of `iterate` and `temp_heavy`, and what they make of it.
    waves: [(Buffer, Vec<f32>); 2],
    pool: Vec<Item>,
    operations: AtomicU64,
    enough: AtomicBool,
    /// `pjrt_arena_compact` acts on all devices: one thread at a time is enough.
    packing: Mutex<()>,
}

impl Site {
    fn new(load: Load) -> Self {
        let mut options = vec![("strategy", "tpu".to_owned()), ("limit", load.limit.to_string())];
        options.extend(load.pressure.options(load.limit));
        let options: Vec<_> = options.iter().map(|(name, value)| (*name, Value::from(value.as_str()))).collect();
        let client = Client::create(load.devices, &options).expect("a client");
        let compile = |program: &Program| client.compile(program).expect("the program compiles");
        let item = |number: usize, len| {
            let values: Vec<f32> = (0..len).map(|i| element(number as u32, 0, i)).collect();
            let buffer = client.put(&values, &[len as i64]).expect("room at the beginning");
            Item { buffer, len, seed: number as u32, steps: 0, device: 0, references: 0, address: None }
        };
        let wave = |program: &Loaded, dims: &[i64]| {
            let values: Vec<f32> = (0..dims.iter().product::<i64>()).map(|i| (i % 97) as f32 / 97.0).collect();
            let x = client.put(&values, dims).expect("room at the beginning");
            let y = program.run1(&[&x]).expect("it runs").read::<f32>().expect("its result");
            (x, y)
        };
        let (iterate, temp_heavy) = (compile(&Program::iterate()), compile(&Program::temp_heavy()));
        Self {
            load,
            add_one: compile(&Program::add_one()),
            add_one_large: compile(&Program::add_one_1m()),
            donate: compile(&Program::donate()),
            donate_large: compile(&Program::text(DONATE_LARGE)),
            two_results: compile(&Program::two_results()),
            waves: [wave(&iterate, &[SMALL as i64]), wave(&temp_heavy, &[256, 256])],
            pool: (0..6).map(|number| item(number, if number % 2 == 0 { SMALL } else { LARGE })).collect(),
            devices: client.addressable_devices(),
            iterate,
            temp_heavy,
            client,
            operations: AtomicU64::new(0),
            enough: AtomicBool::new(false),
            packing: Mutex::new(()),
        }
    }

    /// Bytes that one thread may have on one device.
    fn budget(&self) -> usize {
        let shared: usize = self.pool.iter().map(Item::bytes).sum::<usize>() + (1 << 20);
        ((self.load.limit as usize * self.load.pressure.held() - shared) as f64 * FULL) as usize / self.load.threads
    }

    /// Says when it is enough; resident memory in KiB after a tenth of that.
    fn watch<T>(&self, workers: &[thread::JoinHandle<T>]) -> u64 {
        let (mut early, mut before, mut since) = (0, 0, Instant::now());
        while !workers.iter().all(thread::JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(20));
            let operations = self.operations.load(Relaxed);
            if operations != before {
                (before, since) = (operations, Instant::now());
            } else if since.elapsed() > HANG {
                eprintln!("nothing happened for {HANG:?} after {operations} operations: {:?}", self.load);
                std::process::abort();
            }
            let compactions = sum(self.load.pressure.counter());
            if early == 0 && compactions >= self.load.compactions / 10 {
                early = resident();
            }
            if compactions >= self.load.compactions {
                self.enough.store(true, Relaxed);
            }
        }
        early
    }

    /// Gives everything back and sees that nothing is left.
    fn finish(self, outcome: &mut Outcome) {
        (outcome.compactions, outcome.moves) = (sum("compactions"), sum("moved_blocks"));
        outcome.moved_bytes = sum("moved_bytes");
        let spills = self.load.pressure == Pressure::Spilled;
        if spills {
            outcome.spilled = (sum("spill/spilled"), sum("spill/brought_back"));
        }
        let Self { client, pool, waves, .. } = self;
        drop((pool, waves));
        wait_until_empty();
        if spills {
            assert_eq!(sum("spill/in_use_bytes"), 0, "bytes spilled");
        }
        for device in client.addressable_devices() {
            let stats = device.stats().expect("statistics");
            assert_eq!(stats.bytes_in_use, 0, "{stats:?}");
        }
        client.destroy().expect("the client goes");
    }
}
