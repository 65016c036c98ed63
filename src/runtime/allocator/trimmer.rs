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
//! Operations that ended after the last call of the C API still hold their arrays, because the next call reaps them
//! (`in_flight`). Where no call comes, the thread frees that memory.
//!
//! The thread runs nothing in the engine, and keeps nothing alive: it has weak references to the devices. It ends
//! with its client, or with the process if that ends first.
//!
//! A child after `fork` has no such thread, and trims nothing. But no thread that the child lacks may hold the
//! arena's lock, so `fork` waits for the piece that is trimmed at that moment (`crate::fork`).

use std::{
    process,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    engine::scratch,
    fork,
    memory::{
        AddressRange, Arena,
        idle::{self, Idle},
    },
    runtime::{device_memory::DeviceMemory, in_flight::InFlight},
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
            devices: devices.map(|memory| (Arc::downgrade(memory), Idle::new(interval.delay))).collect(),
            in_flight: Arc::downgrade(in_flight),
            newest: 0,
            scratch: None,
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
    devices: Vec<(Weak<DeviceMemory>, Idle)>,
    in_flight: Weak<InFlight>,
    /// For [`InFlight::release_stale`].
    newest: usize,
    scratch: Option<(ScratchLease, Idle)>,
    delay: Duration,
}

impl Round {
    fn run_until(mut self, stop: &AtomicBool, tick: Duration) {
        let (mut now, mut woken) = (Duration::ZERO, Instant::now());
        while !stop.load(Ordering::Acquire) {
            thread::park_timeout(tick.saturating_sub(woken.elapsed()));
            if woken.elapsed() < tick {
                continue;
            }
            // While the process was stopped, nothing could use memory.
            now += woken.elapsed().min(2 * tick);
            woken = Instant::now();
            self.trim(now, &|| stop.load(Ordering::Acquire));
        }
    }

    /// One round, at `now` since the first one began.
    fn trim(&mut self, now: Duration, enough: &dyn Fn() -> bool) {
        if let Some(in_flight) = self.in_flight.upgrade() {
            fork::passing(|| in_flight.release_stale(&mut self.newest));
        }
        for (memory, idle) in &mut self.devices {
            let Some(memory) = memory.upgrade() else { continue };
            // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
            let discard = |hole| unsafe { memory.discard(hole) };
            trim_arena(&memory, idle, now, &discard, enough);
        }
        let Some((arena, discard)) = scratch::memory() else { return };
        // One thread of the process trims the scratch that all its clients share.
        if self.scratch.is_none() {
            self.scratch = ScratchLease::take().map(|lease| (lease, Idle::new(self.delay)));
            // Scratch that is warm already may have been used before the first window.
            if let (Some((_, idle)), Some(usage)) = (&mut self.scratch, scratch::usage()) {
                idle.end_window(now, usage.warm);
            }
        }
        if let Some((_, idle)) = &mut self.scratch
            && let Some(keep) = trim_arena(arena, idle, now, discard, enough)
        {
            scratch::cooled(keep);
        }
    }
}

/// Ends a window of one arena, and trims what the rule says. Returns what was to be kept, if it was time.
fn trim_arena(
    arena: &Arena,
    idle: &mut Idle,
    now: Duration,
    discard: &dyn Fn(AddressRange) -> Bytes,
    enough: &dyn Fn() -> bool,
) -> Option<Bytes> {
    let keep = idle.end_window(now, arena.end_window())?;
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
mod tests {
    use std::{ptr, slice};

    use super::*;
    use crate::{
        device::host::HostBacking,
        memory::{Block, Strategy},
    };

    /// A device in the host's memory.
    fn device(strategy: Strategy, limit: Bytes) -> Arc<DeviceMemory> {
        let host = HostBacking::new();
        let arena = Arena::new("idle:0".into(), strategy, limit, Box::new(host.clone())).unwrap();
        DeviceMemory::new(arena, Box::new(host))
    }

    fn round(memory: &Arc<DeviceMemory>) -> Round {
        let rule = Idle::new(idle::DELAY);
        let devices = vec![(Arc::downgrade(memory), rule)];
        Round { devices, in_flight: Weak::new(), newest: 0, scratch: None, delay: idle::DELAY }
    }

    fn start(block: &Block) -> *mut u8 {
        ptr::with_exposed_provenance_mut(block.address.get() as usize)
    }

    fn filled(memory: &DeviceMemory, mib: u64, with: u8) -> Block {
        let block = memory.allocate(Bytes::mib(mib)).unwrap();
        // SAFETY: the block is the test's own, and so long.
        unsafe { start(&block).write_bytes(with, block.size.get() as usize) };
        block
    }

    fn holds(block: &Block, mark: u8) -> bool {
        // SAFETY: the block is the test's own, and so long.
        unsafe { slice::from_raw_parts(start(block), block.size.get() as usize) }.iter().all(|&byte| byte == mark)
    }

    /// KiB of all regions that are in memory.
    fn resident(memory: &DeviceMemory) -> Bytes {
        let page = 4096;
        let of = |region: AddressRange| {
            let mut pages = vec![0u8; (region.bytes.get() / page) as usize];
            let start = ptr::with_exposed_provenance_mut(region.address.get() as usize);
            // SAFETY: one byte for each page of a region.
            let refused = unsafe { libc::mincore(start, region.bytes.get() as usize, pages.as_mut_ptr().cast()) };
            assert_eq!(refused, 0);
            Bytes::new(pages.iter().filter(|&page| page & 1 != 0).count() as u64 * page)
        };
        memory.regions().into_iter().map(of).sum()
    }

    fn trim_at(round: &mut Round, tenth: u64) {
        round.trim(Duration::from_millis(100 * tenth), &|| false);
    }

    #[test]
    fn what_is_dropped_goes_back_and_what_lives_stays() {
        for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Tpu] {
            let memory = device(strategy, Bytes::mib(512));
            let mut round = round(&memory);
            let all: Vec<Block> = (1..=8).map(|number| filled(&memory, 16, number)).collect();
            trim_at(&mut round, 5);
            assert!(resident(&memory) >= Bytes::mib(128), "{strategy}");
            let (kept, dropped): (Vec<_>, Vec<_>) =
                all.into_iter().enumerate().partition(|(number, _)| number % 4 == 1);
            dropped.iter().for_each(|(_, block)| memory.free(block.id).unwrap());
            // The window in which they were dropped, and one more.
            trim_at(&mut round, 10);
            trim_at(&mut round, 15);
            assert!(strategy == Strategy::Growing || resident(&memory) >= Bytes::mib(128), "{strategy}: too soon");
            trim_at(&mut round, 20);
            let after = resident(&memory);
            assert!((Bytes::mib(32)..=Bytes::mib(33)).contains(&after), "{strategy}: {after}");
            for (number, block) in &kept {
                assert!(holds(block, *number as u8 + 1), "{strategy}: block {number}");
            }
            assert!(holds(&filled(&memory, 200, 9), 9));
        }
    }

    #[test]
    fn what_is_used_from_time_to_time_stays() {
        let memory = device(Strategy::Preallocate, Bytes::mib(512));
        let mut round = round(&memory);
        let block = filled(&memory, 256, 1);
        memory.free(block.id).unwrap();
        for round_number in 1..20 {
            // A program between two looks.
            memory.free(filled(&memory, 100, 2).id).unwrap();
            trim_at(&mut round, 5 * round_number);
        }
        let after = resident(&memory);
        assert!((Bytes::mib(100)..=Bytes::mib(101)).contains(&after), "{after}");
        let first = memory.regions()[0].address;
        assert_eq!(filled(&memory, 100, 3).address, first, "in the pages that stayed");
        assert!(resident(&memory) <= Bytes::mib(101));
    }

    #[test]
    fn the_rest_of_a_plan_is_dropped_when_use_rises() {
        let memory = device(Strategy::Preallocate, Bytes::mib(512));
        memory.free(filled(&memory, 128, 1).id).unwrap();
        memory.end_window();
        let mut surplus = memory.surplus(Bytes::ZERO);
        let mut given = Vec::new();
        let mut next = |surplus: &mut _| {
            memory.discard_next(surplus, |region| {
                given.push(region);
                region.bytes
            })
        };
        // The first piece ends at a multiple of its size.
        assert!(next(&mut surplus).is_some_and(|bytes| bytes <= Bytes::mib(16)));
        assert_eq!(next(&mut surplus), Some(Bytes::mib(16)));
        let block = memory.allocate(Bytes::new(1)).unwrap();
        assert_eq!(next(&mut surplus), None);
        memory.free(block.id).unwrap();
        memory.end_window();
        memory.end_window();
        assert_eq!(next(&mut surplus), None, "it is gone");
        assert_eq!(given.len(), 2);
    }

    #[test]
    fn what_is_warm_is_known_and_can_go_at_once() {
        let memory = device(Strategy::Preallocate, Bytes::mib(512));
        let (first, second) = (filled(&memory, 64, 1), filled(&memory, 128, 2));
        memory.free(first.id).unwrap();
        assert_eq!(memory.warm(), (Bytes::mib(128), Bytes::mib(192)));
        assert_eq!(memory.rises_by(Bytes::mib(64)), Bytes::ZERO);
        assert_eq!(memory.rises_by(Bytes::mib(100)), Bytes::mib(36));
        // In the window in which more was used.
        let mut surplus = memory.surplus(Bytes::mib(160)).at_once();
        // SAFETY: the arena calls it with holes of its own, and allocates nothing in them meanwhile.
        while memory.discard_next(&mut surplus, |hole| unsafe { memory.discard(hole) }).is_some() {}
        assert_eq!(memory.warm(), (Bytes::mib(128), Bytes::mib(160)));
        assert!(resident(&memory) <= Bytes::mib(161));
        memory.cooled(Bytes::mib(64));
        assert_eq!(memory.warm().1, Bytes::mib(128), "what is used is warm");
        assert!(holds(&second, 2));
    }

    #[test]
    fn the_thread_gives_back_and_ends() {
        let memory = device(Strategy::Preallocate, Bytes::mib(256));
        let (trimmer, tick) = (Trimmer::default(), Duration::from_millis(20));
        let block = filled(&memory, 128, 1);
        trimmer.wake([&memory].into_iter(), &Arc::default(), TrimInterval { tick, delay: 2 * tick });
        assert!(trimmer.is_awake());
        thread::sleep(3 * tick);
        memory.free(block.id).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while resident(&memory) > Bytes::mib(1) && Instant::now() < deadline {
            thread::sleep(tick);
        }
        assert!(resident(&memory) <= Bytes::mib(1));
        // The thread keeps nothing alive, and skips a device that is gone.
        let gone = Arc::downgrade(&memory);
        drop(memory);
        while gone.strong_count() > 0 && Instant::now() < deadline {
            thread::sleep(tick);
        }
        assert_eq!(gone.strong_count(), 0);
        trimmer.end();
        trimmer.end();
    }

    #[test]
    fn a_thread_ends_before_its_tick_and_none_starts_after() {
        let memory = device(Strategy::Preallocate, Bytes::mib(1));
        let hour = Duration::from_secs(3600);
        let interval = TrimInterval { tick: hour, delay: hour };
        let trimmer = Trimmer::default();
        trimmer.wake([&memory].into_iter(), &Arc::default(), interval);
        trimmer.end();
        let never = Trimmer::default();
        never.end();
        never.wake([&memory].into_iter(), &Arc::default(), interval);
        assert!(never.thread.lock().is_none());
    }
}
