//! The pool: one region, divided by best fit, with each allocation's block written in front of it.
//!
//! ```text
//!  block (multiple of 256 bytes)
//!  | head: 64 bytes: id, size | what the engine sees, aligned to 64 bytes ... |
//! ```
//!
//! Pages stay when an allocation is freed, and the lowest hole that fits best is used again. What was needed once does
//! not stay for ever: each [`EPOCH`] of frees, the pages above all that was used in it go back to the system. A pool
//! that nobody uses has no epochs; somebody with a clock looks after it ([`Pool::memory`]).

use std::{
    ffi::c_void,
    fmt, ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    memory::{AddressRange, Arena, Backing, Block, BlockId, Region, Strategy},
    units::{Address, Bytes},
};

/// Alignment that the pool gives.
pub const ALIGN: usize = 64;

/// Gives the pages of a part of a region, which nobody uses, back to the system; returns what was given back.
pub type Discard = Box<dyn Fn(AddressRange) -> Bytes + Send + Sync>;

/// Frees after which pages that were not used meanwhile go back: a few seconds of training steps.
const EPOCH: usize = 256;

/// What the pool holds, and did.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// What the engine holds now, 64 bytes more for each allocation than it asked for.
    pub in_use: Bytes,
    /// Memory that was touched and not given back: it stays resident.
    pub warm: Bytes,
    /// Allocations so far.
    pub allocations: u64,
}

/// How long an allocation waits for others to be freed before it takes a MiB of new memory: touching it takes as long.
const MOMENT: Duration = Duration::from_micros(300);

/// How long it waits at most, however much it takes.
const LONGEST: Duration = Duration::from_millis(20);

/// What lies in front of an allocation.
#[repr(C, align(64))]
struct Head {
    block: BlockId,
    size: usize,
}

const HEAD: usize = size_of::<Head>();
const _: () = assert!(HEAD == ALIGN, "what follows the head is as aligned as the head");

/// See the module's documentation.
pub(super) struct Pool {
    arena: Arena,
    discard: Discard,
    /// The region, as addresses: the question that every `free` of the engine asks.
    start: usize,
    bytes: usize,
    /// The end of the highest allocation of this epoch, and of all whose pages were not given back.
    used: AtomicUsize,
    touched: AtomicUsize,
    frees: AtomicUsize,
    /// Allocations that live.
    held: AtomicUsize,
    /// Allocations so far.
    allocations: AtomicU64,
    /// Is told when new memory is touched beyond so many bytes.
    watcher: OnceLock<(Bytes, fn())>,
}

impl Pool {
    /// A pool of at most `limit` in one region of `backing`, whose pages `discard` gives back.
    ///
    /// # Errors
    /// The device's, when it does not give the region.
    pub(super) fn new(backing: Box<dyn Backing>, limit: Bytes, discard: Discard) -> Result<Self> {
        let region = Arc::new(OnceLock::new());
        let noted = Noted { backing, region: Arc::clone(&region) };
        // As for a TPU, the region is there from the start.
        let arena = Arena::new("scratch".into(), Strategy::Tpu, limit, Box::new(noted))?;
        let region = region.get().ok_or_else(|| Error::internal("the pool of the engine's scratch has no region"))?;
        let start = region.address.get() as usize;
        Ok(Self {
            arena,
            discard,
            start,
            bytes: region.bytes.get() as usize,
            used: AtomicUsize::new(start),
            touched: AtomicUsize::new(start),
            frees: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            allocations: AtomicU64::new(0),
            watcher: OnceLock::new(),
        })
    }

    /// Whether `address` lies in the pool.
    pub(super) fn holds(&self, address: *mut c_void) -> bool {
        address.addr().wrapping_sub(self.start) < self.bytes
    }

    /// `size` bytes, aligned to 64, if there is room.
    ///
    /// The engine says that a program is done before it frees the program's scratch, some microseconds later, or more
    /// where threads are short of processors. So the next program's scratch would lie beside it, in memory that is
    /// touched for the first time. Where that is about to happen, frees are waited for, no longer than touching takes.
    pub(super) fn allocate(&self, size: usize) -> Option<*mut c_void> {
        let whole = size.checked_add(HEAD)?;
        let mut frees = self.frees.load(Ordering::Relaxed);
        let mut block = self.arena.allocate(Bytes::new(whole as u64)).ok()?;
        let others = self.held.fetch_add(1, Ordering::Relaxed);
        let end = |block: Block| block.address.get() as usize + whole;
        let new = |block: Block| end(block).saturating_sub(self.touched.load(Ordering::Relaxed));
        if others != 0 && new(block) > 0 {
            let mib = u32::try_from(new(block) >> 20).unwrap_or(u32::MAX).max(1);
            let deadline = Instant::now() + MOMENT.saturating_mul(mib).min(LONGEST);
            while new(block) > 0 && Instant::now() < deadline {
                self.release(block.id);
                while self.frees.load(Ordering::Relaxed) == frees && Instant::now() < deadline {
                    thread::yield_now();
                }
                frees = self.frees.load(Ordering::Relaxed);
                let Ok(again) = self.arena.allocate(Bytes::new(whole as u64)) else {
                    self.held.fetch_sub(1, Ordering::Relaxed);
                    return None;
                };
                block = again;
            }
        }
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.used.fetch_max(end(block), Ordering::Relaxed);
        if self.touched.fetch_max(end(block), Ordering::Relaxed) < end(block) {
            self.grown(end(block));
        }
        let head = ptr::with_exposed_provenance_mut::<Head>(block.address.get() as usize);
        // SAFETY: the block is ours alone, aligned to 256 bytes and longer than a head.
        Some(unsafe {
            head.write(Head { block: block.id, size });
            head.add(1).cast::<c_void>()
        })
    }

    /// The allocation at an address; `None` for one that does not lie in the pool.
    ///
    /// # Safety
    /// What lies in the pool must be one of [`Self::allocate`]'s that was not freed, and that nothing else frees while
    /// the value lives.
    pub(super) unsafe fn find(&self, allocation: *mut c_void) -> Option<Allocation<'_>> {
        self.holds(allocation).then(|| {
            // SAFETY: it is an allocation of this pool, as this function asks, so a head lies in front of it, which was
            // written before the allocation was given out.
            let Head { block, size } = unsafe { allocation.cast::<Head>().sub(1).read() };
            Allocation { pool: self, block, size }
        })
    }

    fn free(&self, block: BlockId) {
        self.release(block);
        self.held.fetch_sub(1, Ordering::Relaxed);
        if self.frees.fetch_add(1, Ordering::Relaxed) % EPOCH == EPOCH - 1 {
            self.end_epoch();
        }
    }

    fn release(&self, block: BlockId) {
        if let Err(error) = self.arena.free(block) {
            log::error!("the engine freed scratch that it does not hold: {error}");
        }
    }

    /// The numbers of this instant.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            in_use: self.arena.used(),
            warm: Bytes::new((self.touched.load(Ordering::Relaxed) - self.start) as u64),
            allocations: self.allocations.load(Ordering::Relaxed),
        }
    }

    /// Calls `watcher` whenever new memory is touched `beyond` so many bytes. It runs in the engine's allocation. Only
    /// the first one counts.
    pub(super) fn watch(&self, beyond: Bytes, watcher: fn()) {
        let _ = self.watcher.set((beyond, watcher));
    }

    #[cold]
    fn grown(&self, end: usize) {
        if let Some(&(beyond, watcher)) = self.watcher.get()
            && (end - self.start) as u64 >= beyond.get()
        {
            watcher();
        }
    }

    /// The arena, and what gives its pages back: to trim it.
    pub(super) fn memory(&self) -> (&Arena, &Discard) {
        (&self.arena, &self.discard)
    }

    /// Says that nothing above the lowest `keep` bytes and what is in use is warm any more.
    pub(super) fn cooled(&self, keep: Bytes) {
        let touched = self.touched.load(Ordering::Relaxed);
        let warm = self.start.saturating_add(keep.get() as usize);
        // Where something is in use, the numbers stay as they are until the next look. So they do where something has
        // been allocated since, and an epoch that finds too little touched leaves pages for the next.
        if touched > warm && self.held.load(Ordering::Relaxed) == 0 {
            let _ = self.touched.compare_exchange(touched, warm, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Gives the pages of all holes back to the system, and returns their sum.
    pub(super) fn discard_holes(&self) -> Bytes {
        self.discard_from(self.start)
    }

    /// Gives so many bytes of the pages that lie highest back, where nothing uses them, and returns their sum.
    pub(super) fn trim(&self, bytes: Bytes) -> Bytes {
        let end = self.touched.load(Ordering::Relaxed);
        self.discard_from(end.saturating_sub(bytes.get() as usize).max(self.start))
    }

    /// Gives back what lies above all that was used since the last epoch.
    #[cold]
    fn end_epoch(&self) {
        let used = self.used.swap(self.start, Ordering::Relaxed);
        if used < self.touched.load(Ordering::Relaxed) {
            let discarded = self.discard_from(used);
            log::debug!("{discarded} of scratch that was not used for {EPOCH} allocations went back to the system");
        }
    }

    fn discard_from(&self, from: usize) -> Bytes {
        let touched = self.touched.swap(self.start, Ordering::Relaxed);
        // The hole of the last pieces. Where something lives at the upper end, its pages go back another time.
        let (mut run, mut warm) = (0..0, touched);
        let discarded = self.arena.discard_holes(|hole| {
            let first = (hole.address.get() as usize).max(from);
            let end = (hole.address + hole.bytes).get() as usize;
            let last = end.min(touched);
            if first >= last {
                return Bytes::ZERO;
            }
            run = if first == run.end { run.start } else { first }..last;
            if last == touched {
                warm = run.start;
            }
            (self.discard)(AddressRange {
                address: Address::new(first as u64),
                bytes: Bytes::new((last - first) as u64),
            })
        });
        self.touched.fetch_max(warm, Ordering::Relaxed);
        discarded
    }
}

/// An allocation of the pool that lives.
pub(super) struct Allocation<'a> {
    pool: &'a Pool,
    block: BlockId,
    size: usize,
}

impl Allocation<'_> {
    /// The size that was asked for.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Takes it back; its pages stay.
    pub(super) fn free(self) {
        self.pool.free(self.block);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("arena", &self.arena).finish_non_exhaustive()
    }
}

/// A device that remembers the region it gave.
#[derive(Debug)]
struct Noted {
    backing: Box<dyn Backing>,
    region: Arc<OnceLock<AddressRange>>,
}

impl Backing for Noted {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let region = self.backing.reserve(bytes)?;
        self.region.get_or_init(|| *region);
        Ok(region)
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        let region = self.backing.reserve_up_front(bytes)?;
        self.region.get_or_init(|| *region);
        Ok(region)
    }

    fn release(&self, region: Region) -> Result<()> {
        self.backing.release(region)
    }

    fn granularity(&self) -> Bytes {
        self.backing.granularity()
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.backing.most_in_advance()
    }
}

#[cfg(test)]
mod tests;
