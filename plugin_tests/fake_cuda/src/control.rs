//! What a test asks the driver for: settings, calls that fail, counts and violations.

use std::{collections::BTreeMap, ffi::CString, str::FromStr, sync::Once, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    device,
    memory::User,
    state::{self, CHANGED, State},
    status::{self, Status},
    stream::Waits,
};

/// What can be set, each with the variable of the environment that `cuInit` reads.
const NAMES: [(&str, &str); 10] = [
    ("gpus", "FAKE_CUDA_GPUS"),
    ("memory", "FAKE_CUDA_MEMORY"),
    ("latency_us", "FAKE_CUDA_LATENCY_US"),
    ("peer", "FAKE_CUDA_PEER"),
    ("pools", "FAKE_CUDA_POOLS"),
    ("segment", "FAKE_CUDA_SEGMENT"),
    ("rdma", "FAKE_CUDA_RDMA"),
    ("fail", "FAKE_CUDA_FAIL"),
    ("strict", "FAKE_CUDA_STRICT"),
    ("guard", "FAKE_CUDA_GUARD"),
];

/// What segments of the pools are multiples of.
const UNIT: u64 = 2 << 20;

/// How the driver behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// GPUs.
    pub gpus: usize,
    /// Bytes of memory of each.
    pub memory: u64,
    /// How long a stream does nothing before each operation.
    pub latency: Duration,
    /// Whether the GPUs reach each other's memory.
    pub peer: bool,
    /// Whether the GPUs have memory pools.
    pub pools: bool,
    /// The unit in which the pools take memory of their GPUs. An H100's takes 32 MiB for one byte.
    pub segment: u64,
    /// Whether memory can be made that network cards may use.
    pub rdma: bool,
    /// Whether a violation is said at once, and ends the process with a status of its own.
    pub strict: bool,
    /// Whether the host may not touch a GPU's own memory while no operation runs: it is ended there.
    pub guard: bool,
    /// What was set by a call, which the environment does not change.
    set: Vec<String>,
    /// What the environment ordered to fail, until `cuInit` is done.
    faults: Vec<Fault>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gpus: 1,
            memory: 1 << 30,
            latency: Duration::ZERO,
            peer: true,
            pools: true,
            segment: UNIT,
            rdma: false,
            strict: false,
            guard: false,
            set: Vec::new(),
            faults: Vec::new(),
        }
    }
}

/// A call that fails by order.
#[derive(Clone, Debug)]
struct Fault {
    symbol: String,
    /// Calls until then; 1 is the next one.
    calls: u64,
    code: Status,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("fail is {text:?}, not symbol:n or symbol:n:code with n from 1 and a code from 1");
        let mut parts = text.split(':');
        let (symbol, calls, code) = (parts.next(), parts.next(), parts.next());
        let number = |part: &str| part.parse::<u32>().ok().filter(|&number| number > 0).ok_or_else(wrong);
        let symbol = symbol.filter(|symbol| crate::symbol(symbol).is_some()).ok_or_else(wrong)?;
        let calls = number(calls.ok_or_else(wrong)?)?;
        let code = code.map_or(Ok(status::OUT_OF_MEMORY), number)?;
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { symbol: symbol.to_owned(), calls: calls.into(), code })
    }
}

fn flag(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{name} is {text:?}, not 0 or 1")),
    }
}

/// A number of bytes, with `KiB`, `MiB` or `GiB` or without.
fn bytes(name: &str, text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)];
    let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let value = found.and_then(|(digits, shift)| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    value.ok_or_else(|| format!("{name} is {text:?}, not a number of bytes such as 1073741824, 64MiB or 2GiB"))
}

impl Settings {
    fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        match name {
            "gpus" => match text.parse() {
                Ok(gpus @ 0..=64) => self.gpus = gpus,
                _ => return Err(format!("gpus is {text:?}, not a number from 0 to 64")),
            },
            "memory" => self.memory = bytes(name, text)?,
            "latency_us" => match text.parse() {
                Ok(micros @ 0..=10_000_000) => self.latency = Duration::from_micros(micros),
                _ => return Err(format!("latency_us is {text:?}, not a number from 0 to 10000000")),
            },
            "peer" => self.peer = flag(name, text)?,
            "pools" => self.pools = flag(name, text)?,
            "segment" => match bytes(name, text)? {
                segment if segment > 0 && segment.is_multiple_of(UNIT) => self.segment = segment,
                _ => return Err(format!("segment is {text:?}, not a multiple of 2MiB from 2MiB on")),
            },
            "rdma" => self.rdma = flag(name, text)?,
            "strict" => {
                self.strict = flag(name, text)?;
                if self.strict {
                    exit_by_violations();
                }
            }
            "guard" => self.guard = flag(name, text)?,
            "fail" => self.faults.push(text.parse()?),
            _ => {
                let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
                return Err(format!("{name:?} cannot be set; what can is {}", names.join(", ")));
            }
        }
        self.set.push(name.to_owned());
        Ok(())
    }

    /// Sets what the environment says and no call has set.
    ///
    /// # Errors
    /// A sentence with the variable's value and what is allowed.
    pub fn read_environment(&mut self) -> Result<(), String> {
        for (name, variable) in NAMES {
            if let Ok(text) = std::env::var(variable)
                && !self.set.iter().any(|set| set == name)
            {
                self.set(name, &text).map_err(|why| format!("{variable}: {why}"))?;
            }
        }
        Ok(())
    }
}

/// What has happened.
#[derive(Debug, Default)]
pub struct Books {
    violations: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    faults: Vec<Fault>,
}

impl Books {
    /// Counts a call; gives its status if it fails by order.
    pub fn begin(&mut self, name: &'static str) -> Option<Status> {
        *self.counts.entry(name).or_default() += 1;
        let mut due = None;
        for fault in self.faults.iter_mut().filter(|fault| fault.symbol == name) {
            fault.calls -= 1;
            if fault.calls == 0 {
                due = Some(fault.code);
            }
        }
        self.faults.retain(|fault| fault.calls > 0);
        due
    }
}

impl State {
    /// Notes a violation.
    pub fn violation(&mut self, sentence: String) {
        if self.settings.strict {
            eprintln!("fake_cuda: violation: {sentence}");
        }
        self.books.violations.push(sentence);
    }

    /// Takes over what the environment ordered to fail.
    pub fn order_faults(&mut self) {
        let faults = std::mem::take(&mut self.settings.faults);
        self.books.faults.extend(faults);
    }
}

/// What a strict process that has violations ends with.
const EXIT: i32 = 70;

/// Sees to it that the process ends with [`EXIT`] if there are violations then.
fn exit_by_violations() {
    static ONCE: Once = Once::new();
    extern "C" fn leave() {
        let violations = match state::try_lock() {
            Some(driver) if driver.settings.strict => driver.books.violations.len(),
            _ => 0,
        };
        if violations > 0 {
            eprintln!("fake_cuda: {violations} violations");
            // SAFETY: these may be called in a handler of `atexit`; `_exit` is the way to end with another status
            // there.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(EXIT);
            }
        }
    }
    ONCE.call_once(|| {
        // SAFETY: the handler does not unwind, and this library stays: it has threads, and is not to be unloaded.
        unsafe { libc::atexit(leave) };
    });
}

/// Sets what a name stands for.
///
/// # Errors
/// A sentence with the value and what is allowed.
pub fn configure(name: &str, value: &str) -> Result<(), String> {
    let mut driver = state::lock();
    if name == "gpus" && driver.started {
        return Err("gpus can be set only before cuInit".to_owned());
    }
    driver.settings.set(name, value)?;
    driver.order_faults();
    Ok(())
}

/// The violations so far.
pub fn violations() -> Vec<String> {
    state::lock().books.violations.clone()
}

/// Forgets the violations, and what an illegal access has done to the contexts.
pub fn reset_violations() {
    let mut driver = state::lock();
    driver.books.violations.clear();
    driver.gpus.iter_mut().for_each(|gpu| gpu.poison = None);
}

/// Calls of a function so far.
pub fn count(symbol: &str) -> u64 {
    state::lock().books.counts.get(symbol).copied().unwrap_or_default()
}

/// Says that the host reads or writes a range now, which the driver cannot see. Pageable memory is left out.
pub fn host_access(address: u64, bytes: u64, write: bool) {
    if bytes == 0 {
        return;
    }
    let mut driver = state::lock();
    match driver.place(User::Host, address, bytes, write) {
        Ok(place) => driver.host_access(&place, write),
        Err(why) => driver.violation(format!("the host: {why}")),
    }
}

static SESSION: Mutex<()> = Mutex::new(());

/// A driver of its own for one test of many in a process: others wait until it is dropped.
#[derive(Debug)]
pub struct Session {
    _only: MutexGuard<'static, ()>,
}

impl Session {
    /// Waits for the others, and begins with a driver on which `cuInit` was not called.
    ///
    /// # Panics
    /// A setting is not known.
    pub fn begin(settings: &[(&str, &str)]) -> Self {
        let only = SESSION.lock();
        reset();
        for (name, value) in settings {
            if let Err(why) = configure(name, value) {
                panic!("{why}");
            }
        }
        Self { _only: only }
    }
}

/// Makes the driver what it was at first. All work that streams have is done before; handles from before stay unknown.
pub fn reset() {
    let mut driver = state::lock();
    for gpu in 0..driver.gpus.len() {
        driver.wait_for_gpu(gpu);
        driver.destroy_streams(gpu);
    }
    while !driver.streams.is_empty() {
        CHANGED.wait(&mut driver);
    }
    let spans: Vec<_> = driver.spans.iter().map(|(&start, span)| start..start + span.bytes).collect();
    for range in spans {
        driver.vacate(range, false);
    }
    let fresh = driver.cleared();
    *driver = fresh;
    device::forget_stack();
}

/// The sentences, one a line.
pub(crate) fn lines() -> (usize, CString) {
    let sentences = violations();
    let text = sentences.join("\n").replace('\0', "");
    (sentences.len(), CString::new(text).unwrap_or_default())
}
