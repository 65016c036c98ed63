//! Which edges of the code an input reached: the counters of LLVM's SanitizerCoverage, which `make fuzz` compiles in.
//!
//! Each edge has a counter of one byte and a row in a table of addresses. A build without them has no edges; then
//! nothing is new, and the corpus does not grow.

use std::{
    slice,
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

static COUNTERS: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());
static EDGES: AtomicUsize = AtomicUsize::new(0);
static ROWS: AtomicPtr<Row> = AtomicPtr::new(std::ptr::null_mut());

/// A row of the table: where the edge leads to, and flags.
#[repr(C)]
struct Row {
    address: usize,
    _flags: usize,
}

/// Called by each instrumented object before `main`, with the counters of all of them.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut AtomicU8, stop: *mut AtomicU8) {
    COUNTERS.store(start, Ordering::Relaxed);
    EDGES.store(stop.addr() - start.addr(), Ordering::Relaxed);
}

/// As above, with the table, which has a row for each counter in the same order.
#[unsafe(no_mangle)]
extern "C" fn __sanitizer_cov_pcs_init(start: *mut Row, _stop: *mut Row) {
    ROWS.store(start, Ordering::Relaxed);
}

unsafe extern "C" {
    /// Where the program begins in memory; the linker defines it.
    static __executable_start: u8;
}

fn counters() -> &'static [AtomicU8] {
    let start = COUNTERS.load(Ordering::Relaxed);
    if start.is_null() {
        return &[];
    }
    // SAFETY: the linker put so many counters there, for as long as the program runs. Only instrumented code writes to
    // them besides, and a worker has one thread.
    unsafe { slice::from_raw_parts(start, EDGES.load(Ordering::Relaxed)) }
}

/// Edges that were compiled in.
pub(crate) fn edges() -> usize {
    counters().len()
}

/// Where each edge leads to, from the beginning of the program.
pub(crate) fn addresses() -> Vec<usize> {
    let rows = ROWS.load(Ordering::Relaxed);
    if rows.is_null() {
        return Vec::new();
    }
    // SAFETY: there is a row for each counter, never written to, for as long as the program runs.
    let rows = unsafe { slice::from_raw_parts(rows.cast_const(), edges()) };
    let base = (&raw const __executable_start).addr();
    rows.iter().map(|row| row.address - base).collect()
}

/// Sets all counters to 0.
pub(crate) fn clear() {
    let counters = counters();
    // SAFETY: of a slice of bytes with interior mutability all may be written; a worker has one thread.
    unsafe { counters.as_ptr().cast::<u8>().cast_mut().write_bytes(0, counters.len()) }
}

/// How often each edge was passed by any input so far: a bit for 1, 2, 3, and for 4, 8, 16, 32 and 128 times and more.
pub(crate) struct Seen(Vec<u8>);

impl Seen {
    pub(crate) fn new() -> Self {
        Self(vec![0; edges()])
    }

    /// Whether an edge was passed by any input.
    pub(crate) fn reached(&self) -> impl Iterator<Item = bool> {
        self.0.iter().map(|&bits| bits != 0)
    }

    /// Adds what was passed since [`clear`]; whether some of it is new.
    pub(crate) fn add(&mut self) -> bool {
        // SAFETY: eight counters without padding are as good as an atomic number of eight bytes, if aligned, which
        // `align_to` sees to.
        let (head, words, tail) = unsafe { counters().align_to::<AtomicU64>() };
        let mut new = false;
        let mut see = |at: usize, count: u8| {
            let bit = match count {
                0 => 0,
                1..4 => 1 << (count - 1),
                4..8 => 1 << 3,
                8..16 => 1 << 4,
                16..32 => 1 << 5,
                32..128 => 1 << 6,
                128.. => 1 << 7,
            };
            new |= self.0[at] & bit != bit;
            self.0[at] |= bit;
        };
        head.iter().enumerate().for_each(|(at, counter)| see(at, counter.load(Ordering::Relaxed)));
        for (word, passed) in words.iter().enumerate() {
            let passed = passed.load(Ordering::Relaxed);
            if passed != 0 {
                let at = head.len() + 8 * word;
                passed.to_le_bytes().iter().enumerate().for_each(|(byte, &count)| see(at + byte, count));
            }
        }
        let at = head.len() + 8 * words.len();
        tail.iter().enumerate().for_each(|(byte, counter)| see(at + byte, counter.load(Ordering::Relaxed)));
        new
    }
}
