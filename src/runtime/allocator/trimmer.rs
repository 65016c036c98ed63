//! Idle memory goes back to the system, though no call comes: one thread per client that sleeps.
//!
//! ```text
//!  allocate: the client's use reaches 64 MiB  ---> the thread starts
//!                                                    |
//!  each 0.5 s: the peak of use since the last time -> the rule (memory/idle.rs) -> keep so much
//!                                                    |
//!              16 MiB of holes at a time, each under the arena's lock; a pause; the next, unless use rises meanwhile
//! ```
//!
//! ```text
//!  each 31 ms to 0.5 s: the size of the process -> the rule (Growth) -> larger than ever: what is unused since the last
//!              look, of arrays and scratch; and what malloc keeps free
//! ```
//!
//! Users, libraries and the compiler grow beside the arena without a call. And malloc keeps what a thread has freed for
//! that thread; where arrays are malloc's own, they use it.
//!
//! Operations that ended after the last call of the C API still hold their arrays, because the next call reaps them
//! (`in_flight`). Where no call comes, the thread frees that memory.
//!
//! The thread runs nothing in the engine, and keeps nothing alive: it has weak references to the devices. It ends
//! with its client, or with the process if that ends first.
//!
//! A child after `fork` has no such thread, and trims nothing. But no thread that the child lacks may hold the
//! arena's lock, so `fork` waits for the piece that is trimmed at that moment (`crate::fork`).

use std::{
    mem, process,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    device::host,
    engine::scratch,
    fork,
    memory::{
        AddressRange, Arena,
        idle::{self, Growth, Idle, Look},
    },
    runtime::{
        allocator::discard::{LEAST, discard_surplus},
        device_memory::DeviceMemory,
        in_flight::InFlight,
    },
    units::Bytes,
};

/// The thread's name, as the system shows it.
pub const THREAD: &str = "arena-idle";

/// How often the thread wakes, and how long use must be low at first.
#[derive(Clone, Copy, Debug)]
pub struct TrimInterval {
    /// From one wake-up to the next.
    pub tick: Duration,
    /// See [`idle::DELAY`].
    pub delay: Duration,
}

impl Default for TrimInterval {
    fn default() -> Self {
        Self { tick: Duration::from_millis(500), delay: idle::DELAY }
    }
}

/// How often the thread looks between two wake-ups while the process grows; else it looks half as often each time.
const LOOKS: u32 = 16;

/// How long the thread pauses after a piece, so that threads that wait for the arena's lock get it.
const PAUSE: Duration = Duration::from_millis(1);

/// The thread of one client, which may not have started yet.
#[derive(Debug, Default)]
pub struct Trimmer {
    awake: AtomicBool,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<(u32, JoinHandle<()>)>>,
}

impl Trimmer {
    /// Whether the thread has started.
    #[inline]
    pub fn is_awake(&self) -> bool {
        self.awake.load(Ordering::Relaxed)
    }

    /// Starts the thread, once, to trim `devices`, what `in_flight` still uses of them, and the engine's scratch.
    #[cold]
    pub fn wake<'a>(
        &self,
        devices: impl Iterator<Item = &'a Arc<DeviceMemory>>,
        in_flight: &Arc<InFlight>,
        interval: TrimInterval,
    ) {
        if self.awake.swap(true, Ordering::Relaxed) {
            return;
        }
        let round = Round {
            devices: devices.map(|memory| (Arc::downgrade(memory), Watched::new(interval.delay))).collect(),
            in_flight: Arc::downgrade(in_flight),
            newest: 0,
            scratch: None,
            process: Growth::default(),
            delay: interval.delay,
        };
        fork::register_handlers();
        let stop = Arc::clone(&self.stop);
        let body = move || round.run_until(&stop, interval.tick);
        match thread::Builder::new().name(THREAD.to_owned()).stack_size(256 << 10).spawn(body) {
            Ok(handle) => *self.thread.lock() = Some((process::id(), handle)),
            Err(error) => log::info!("memory that is not used stays: no thread to give it back ({error})"),
        }
    }

    /// Ends the thread, and waits for the piece that it trims at this moment. No other thread starts.
    pub fn end(&self) {
        self.awake.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
        let Some((process, handle)) = self.thread.lock().take() else { return };
        // A child after a fork has no such thread.
        if process == process::id() {
            handle.thread().unpark();
            if handle.join().is_err() {
                log::error!("the thread that gives idle memory back panicked; this is a bug");
            }
        }
    }
}

/// What the thread keeps between wake-ups.
struct Round {
    devices: Vec<(Weak<DeviceMemory>, Watched)>,
    in_flight: Weak<InFlight>,
    /// For [`InFlight::release_stale`].
    newest: usize,
    scratch: Option<(ScratchLease, Watched)>,
    process: Growth,
    delay: Duration,
}

/// What is known of an arena whose idle memory goes back.
#[derive(Debug)]
struct Watched {
    rule: Idle,
    /// The highest use in this window, up to the last look.
    peak: Bytes,
    /// What was resident, and unused since the last look.
    unused: Bytes,
}

impl Watched {
    fn new(delay: Duration) -> Self {
        Self { rule: Idle::new(delay), peak: Bytes::ZERO, unused: Bytes::ZERO }
    }

    fn look(&mut self, arena: &Arena) {
        let peak = arena.end_window();
        self.peak = self.peak.max(peak);
        self.unused = arena.warm().1.saturating_sub(peak);
    }

    /// Gives back what is unused, if it is worth a call; how much, and what stays.
    fn give_back(
        &self,
        arena: &Arena,
        discard: &dyn Fn(AddressRange) -> Bytes,
        enough: &dyn Fn() -> bool,
    ) -> Option<(Bytes, Bytes)> {
        let stays = arena.warm().1.saturating_sub(self.unused);
        let given = || discard_surplus(arena, arena.surplus(stays), self.unused, discard, enough);
        (self.unused >= LEAST).then(|| (given(), stays))
    }
}

impl Round {
    fn run_until(mut self, stop: &AtomicBool, tick: Duration) {
        let (mut now, mut woken) = (Duration::ZERO, Instant::now());
        let (mut window, mut pause) = (Duration::ZERO, tick / LOOKS);
        while !stop.load(Ordering::Acquire) {
            thread::park_timeout(pause.saturating_sub(woken.elapsed()));
            if woken.elapsed() < pause {
                continue;
            }
            // While the process was stopped, nothing could use memory.
            now += woken.elapsed().min(2 * pause);
            woken = Instant::now();
            let enough = || stop.load(Ordering::Acquire);
            let longest = match self.look(&enough) {
                Look::Quiet => 2 * pause,
                Look::Grows | Look::Exceeds => Duration::ZERO,
            };
            if now.saturating_sub(window) >= tick {
                window = now;
                self.trim(now, &enough);
            }
            // A look ends each window.
            pause = longest.min((window + tick).saturating_sub(now)).max(tick / LOOKS);
        }
    }

    /// Looks at the process, and gives back what is free if it is larger than ever.
    fn look(&mut self, enough: &dyn Fn() -> bool) -> Look {
        let look = host::resident().map_or(Look::Quiet, |resident| self.process.look(resident));
        let scratch = scratch::memory().zip(self.scratch.as_mut().map(|(_, watched)| watched));
        let mut given = Bytes::ZERO;
        if let Some(((arena, discard), watched)) = scratch {
            watched.look(arena);
            if look == Look::Exceeds
                && let Some((bytes, stays)) = watched.give_back(arena, discard, enough)
            {
                scratch::cooled(stays);
                given += bytes;
            }
        }
        for (memory, watched) in &mut self.devices {
            let Some(memory) = memory.upgrade() else { continue };
            watched.look(&memory);
            if look == Look::Exceeds {
                // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
                let discard = |hole| unsafe { memory.discard(hole) };
                given += watched.give_back(&memory, &discard, enough).map_or(Bytes::ZERO, |(bytes, _)| bytes);
            }
        }
        if look == Look::Exceeds {
            let (start, before) = (Instant::now(), host::resident());
            host::trim_malloc();
            let after = host::resident();
            if let (Some(before), Some(after)) = (before, after) {
                let of_malloc = before.saturating_sub(after);
                log::debug!(
                    "the process grew to {before}: {given} of idle memory went back to the system, then {of_malloc} of \
                     malloc's in {:?}",
                    start.elapsed()
                );
                self.process.record_release(after);
            }
        }
        look
    }

    /// Ends a window, at `now` since the first one began.
    fn trim(&mut self, now: Duration, enough: &dyn Fn() -> bool) {
        if let Some(in_flight) = self.in_flight.upgrade() {
            fork::passing(|| in_flight.release_stale(&mut self.newest));
        }
        for (memory, watched) in &mut self.devices {
            let Some(memory) = memory.upgrade() else { continue };
            // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
            let discard = |hole| unsafe { memory.discard(hole) };
            trim_arena(&memory, watched, now, &discard, enough);
        }
        let Some((arena, discard)) = scratch::memory() else { return };
        // One thread of the process trims the scratch that all its clients share.
        if self.scratch.is_none() {
            self.scratch = ScratchLease::take().map(|lease| (lease, Watched::new(self.delay)));
            // Scratch that is warm already may have been used before the first window.
            if let (Some((_, watched)), Some(usage)) = (&mut self.scratch, scratch::usage()) {
                watched.rule.end_window(now, usage.warm);
            }
        }
        if let Some((_, watched)) = &mut self.scratch
            && let Some(keep) = trim_arena(arena, watched, now, discard, enough)
        {
            scratch::cooled(keep);
        }
    }
}

/// Ends a window of one arena, and trims what the rule says. Returns what was to be kept, if it was time.
fn trim_arena(
    arena: &Arena,
    watched: &mut Watched,
    now: Duration,
    discard: &dyn Fn(AddressRange) -> Bytes,
    enough: &dyn Fn() -> bool,
) -> Option<Bytes> {
    watched.look(arena);
    let idle = &mut watched.rule;
    let keep = idle.end_window(now, mem::take(&mut watched.peak))?;
    let start = Instant::now();
    let (mut surplus, mut pages) = (arena.surplus(keep), Bytes::ZERO);
    while !enough() {
        let piece = fork::passing(|| arena.discard_next(&mut surplus, discard));
        let Some(bytes) = piece else { break };
        pages += bytes;
        if !bytes.is_zero() {
            thread::sleep(PAUSE);
        }
    }
    // Quick, because there are no pages to unmap.
    let regions = if enough() { Bytes::ZERO } else { fork::passing(|| arena.trim_to(keep)) };
    idle.record_release(pages, keep);
    if !(pages + regions).is_zero() {
        let (name, used) = (arena.name(), arena.used());
        log::debug!(
            "{name}: {pages} of idle memory went back to the system in {:?}, and {regions} of empty regions; {used} in use, \
             {keep} of it at most for {:?} before",
            start.elapsed(),
            idle.delay()
        );
    }
    Some(keep)
}

/// The right to trim the engine's scratch.
#[derive(Debug)]
struct ScratchLease(());

static LEASED: AtomicBool = AtomicBool::new(false);

impl ScratchLease {
    fn take() -> Option<Self> {
        (!LEASED.swap(true, Ordering::Acquire)).then_some(Self(()))
    }
}

impl Drop for ScratchLease {
    fn drop(&mut self) {
        LEASED.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
