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
mod tests {
    use std::{
        alloc::{Layout, alloc, dealloc},
        sync::{Arc, Mutex, atomic::AtomicBool},
    };

    use super::*;
    use crate::engine::scratch;

    const MIB: usize = 1 << 20;

    /// Memory of the process, as a device.
    #[derive(Debug)]
    struct Heap;

    impl Heap {
        fn layout(bytes: Bytes) -> Layout {
            Layout::from_size_align(bytes.get() as usize, 4096).unwrap()
        }
    }

    impl Backing for Heap {
        fn reserve(&self, bytes: Bytes) -> Result<Region> {
            // SAFETY: regions are not empty.
            let start = unsafe { alloc(Self::layout(bytes)) };
            // SAFETY: a fresh allocation, of the layout that `release` frees it with.
            Ok(unsafe { Region::new(AddressRange { address: Address::new(start.expose_provenance() as u64), bytes }) })
        }

        fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
            self.reserve(bytes)
        }

        fn release(&self, region: Region) -> Result<()> {
            let start = ptr::with_exposed_provenance_mut(region.address.get() as usize);
            // SAFETY: it came from `reserve`.
            unsafe { dealloc(start, Self::layout(region.bytes)) };
            Ok(())
        }

        fn granularity(&self) -> Bytes {
            Bytes::new(4096)
        }

        fn most_in_advance(&self) -> Option<Bytes> {
            None
        }
    }

    type Discarded = Arc<Mutex<Vec<AddressRange>>>;

    fn pool(mib: usize) -> (Pool, Discarded) {
        let discarded = Discarded::default();
        let list = Arc::clone(&discarded);
        let discard = move |region: AddressRange| {
            list.lock().unwrap().push(region);
            region.bytes
        };
        (Pool::new(Box::new(Heap), Bytes::new((mib * MIB) as u64), Box::new(discard)).unwrap(), discarded)
    }

    #[test]
    fn allocations_are_aligned_apart_and_used_again() {
        let (pool, _) = pool(16);
        let sizes = [MIB, 3 * MIB + 1, 2 * MIB + 63];
        let held: Vec<_> = sizes.iter().map(|&size| pool.allocate(size).unwrap()).collect();
        for (number, (&allocation, &size)) in held.iter().zip(&sizes).enumerate() {
            assert!(allocation.addr().is_multiple_of(ALIGN) && pool.holds(allocation));
            // SAFETY: it is ours, and so long.
            unsafe {
                allocation.cast::<u8>().write_bytes(number as u8 + 1, size);
                assert_eq!(pool.find(allocation).unwrap().size(), size);
            }
        }
        for (number, (&allocation, &size)) in held.iter().zip(&sizes).enumerate() {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(allocation.cast::<u8>(), size) };
            assert!(bytes.iter().all(|&byte| byte == number as u8 + 1), "allocation {number}");
        }
        assert_eq!(pool.allocate(12 * MIB), None, "no room: the engine gets it from malloc");
        // SAFETY: each once.
        held.iter().for_each(|&allocation| unsafe { pool.find(allocation) }.unwrap().free());
        assert_eq!(pool.usage().in_use, Bytes::ZERO);
        assert_eq!(pool.allocate(MIB), Some(held[0]), "the pages that were touched");
        let outside: u64 = 0;
        assert!(!pool.holds((&raw const outside).cast_mut().cast()));
        assert!(!pool.holds(ptr::without_provenance_mut(pool.start + pool.bytes)));
        assert_eq!(pool.allocate(usize::MAX), None);
    }

    #[test]
    fn what_an_epoch_did_not_use_goes_back() {
        let (pool, discarded) = pool(64);
        // SAFETY: each allocation is freed once.
        let turn = |size| unsafe { pool.find(pool.allocate(size).unwrap()) }.unwrap().free();
        turn(32 * MIB);
        (1..EPOCH).for_each(|_| turn(4 * MIB));
        assert!(discarded.lock().unwrap().is_empty(), "it was used in this epoch");
        (0..EPOCH - 1).for_each(|_| turn(4 * MIB));
        assert!(discarded.lock().unwrap().is_empty(), "the epoch is not over");
        turn(4 * MIB);
        let given: Vec<AddressRange> = std::mem::take(&mut discarded.lock().unwrap());
        let bytes: u64 = given.iter().map(|region| region.bytes.get()).sum();
        assert_eq!(bytes, 28 << 20, "all that lay above the 4 MiB: {given:?}");
        assert!(given.iter().all(|region| region.address.get() as usize >= pool.start + 4 * MIB));
        (0..2 * EPOCH).for_each(|_| turn(4 * MIB));
        assert!(discarded.lock().unwrap().is_empty(), "once");
        // What lives there is left alone, and its pages are found later.
        let (low, high) = (pool.allocate(8 * MIB).unwrap(), pool.allocate(8 * MIB).unwrap());
        // SAFETY: once.
        unsafe { pool.find(low) }.unwrap().free();
        (0..3 * EPOCH).for_each(|_| turn(MIB));
        let kept = high.addr() - HEAD..high.addr() + 8 * MIB;
        let apart = |region: &AddressRange| {
            let start = region.address.get() as usize;
            start + region.bytes.get() as usize <= kept.start || start >= kept.end
        };
        assert!(discarded.lock().unwrap().iter().all(apart));
        // SAFETY: once.
        unsafe { pool.find(high) }.unwrap().free();
        (0..2 * EPOCH).for_each(|_| turn(MIB));
        assert!(!discarded.lock().unwrap().iter().all(apart), "after its end");
        assert!(pool.discard_holes() > Bytes::ZERO);
    }

    #[test]
    fn the_pages_that_lie_highest_are_trimmed() {
        let (pool, discarded) = pool(64);
        let given = || discarded.lock().unwrap().drain(..).map(|region| region.bytes.get()).sum::<u64>() >> 20;
        // SAFETY: each allocation is freed once.
        let free = |allocation| unsafe { pool.find(allocation) }.unwrap().free();
        let (low, high) = (pool.allocate(16 * MIB).unwrap(), pool.allocate(32 * MIB).unwrap());
        assert_eq!((pool.trim(Bytes::mib(64)), given()), (Bytes::ZERO, 0), "all is in use");
        free(high);
        let warm = pool.usage().warm;
        assert_eq!((pool.trim(Bytes::mib(8)), given()), (Bytes::mib(8), 8));
        assert_eq!(warm - pool.usage().warm, Bytes::mib(8));
        assert!(pool.trim(Bytes::mib(64)) >= Bytes::mib(23));
        assert!((Bytes::mib(16)..=Bytes::mib(17)).contains(&pool.usage().warm), "{}", pool.usage().warm);
        free(low);
    }

    #[test]
    fn threads_share_it() {
        let (pool, _) = pool(64);
        std::thread::scope(|scope| {
            for mark in 1..=4_u8 {
                let pool = &pool;
                scope.spawn(move || {
                    for turn in 0..300 {
                        let size = MIB + (turn * 7919 + usize::from(mark) * 104_729) % (2 * MIB);
                        let allocation = pool.allocate(size).unwrap().cast::<u8>();
                        // SAFETY: it is ours, and so long.
                        unsafe {
                            allocation.write(mark);
                            allocation.add(size - 1).write(mark);
                            std::thread::yield_now();
                            assert_eq!([allocation.read(), allocation.add(size - 1).read()], [mark; 2]);
                            pool.find(allocation.cast()).unwrap().free();
                        }
                    }
                });
            }
        });
        assert_eq!(pool.usage().in_use, Bytes::ZERO);
    }

    #[test]
    fn a_child_of_a_fork_finds_it_unlocked() {
        const FORKS: usize = 200;
        let pool = scratch::POOL.get_or_init(|| pool(64).0);
        scratch::hold_over_forks();
        // SAFETY: each allocation is freed once.
        let turn = |size| unsafe { pool.find(pool.allocate(size).unwrap()) }.unwrap().free();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    turn(MIB);
                }
            });
            let stuck = (0..FORKS).find(|_| {
                // SAFETY: the child calls nothing but the pool before it ends, or is ended.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: neither has a precondition.
                    unsafe { libc::alarm(10) };
                    turn(2 * MIB);
                    // SAFETY: as above.
                    unsafe { libc::_exit(0) };
                }
                let mut status = -1;
                // SAFETY: the status is a place to write to.
                let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
                (ended, status) != (child, 0)
            });
            over.store(true, Ordering::Relaxed);
            assert_eq!(stuck, None, "it waited for a lock of a thread that it lacks");
        });
    }
}
