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
