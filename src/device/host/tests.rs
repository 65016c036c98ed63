//! The host as a device, on the kernel that runs.

mod faults;
mod huge;

use std::{
    collections::BTreeSet,
    fs, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use proptest::prelude::*;
use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};

use crate::{
    device::{
        Mover,
        host::{
            cuts::{Cuts, borders},
            exchange::{Move, remap},
            exchanges::Exchanges,
            mover::resident,
            pages::HUGE_PAGE,
            *,
        },
        shift::{Extent, Shift},
    },
    error::{Code, Result},
    memory::{AddressRange, Backing, Region},
    units::{Address, Bytes},
};

const PAGE: Bytes = Bytes::kib(4);
const ORDER: Ordering = Ordering::Relaxed;

/// Copies bytes into the host's memory.
///
/// # Safety
/// `to` lies in a live block with at least `from.len()` bytes from there on, which no other thread reads or writes
/// meanwhile.
unsafe fn write(to: Address, from: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to.get() as usize);
    // SAFETY: `from` is a slice, so readable for its length; `to` is writable for as much by the contract, and no other
    // access is made to it, so the two do not overlap. Bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Copies bytes out of the host's memory.
///
/// # Safety
/// `from` lies in a live block with at least `to.len()` bytes from there on, which no other thread writes meanwhile.
unsafe fn read(from: Address, to: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(from.get() as usize);
    // SAFETY: `to` is a slice that is borrowed alone, so writable for its length and apart from `from`, which is
    // readable for as much by the contract. Bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
}

#[test]
fn regions_are_aligned_hold_what_is_written_and_go_back() {
    let host = HostBacking::new();
    let pages = [host.granularity(), Bytes::mib(2), Bytes::mib(64) + host.granularity()];
    for bytes in pages {
        let region = host.reserve(bytes).expect("room");
        assert_eq!(region.bytes, bytes);
        assert!(region.address.is_aligned_to(if bytes < HUGE_PAGE { host.granularity() } else { HUGE_PAGE }));
        let last = region.address + (bytes - Bytes::new(4));
        let mut back = [0; 4];
        // SAFETY: both ranges lie in the region, which is this test's own.
        unsafe {
            write(region.address, &[1, 2, 3, 4]);
            write(last, &[5, 6, 7, 8]);
            read(last, &mut back);
        }
        assert_eq!(back, [5, 6, 7, 8]);
        assert_eq!(host.release(region), Ok(()));
    }
}

/// Whether nothing is mapped in `page`, found by mapping it.
fn is_vacant(page: Extent) -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: what is mapped there already stays; what is mapped here goes at once.
    unsafe {
        let mapped = mmap_anonymous(page.pointer(), page.len(), ProtFlags::READ, flags);
        mapped.is_ok_and(|start| munmap(start, page.len()).is_ok())
    }
}

#[test]
fn loops_may_look_over_the_edges_of_a_region() {
    let host = HostBacking::new();
    for bytes in [host.page, Bytes::mib(2)] {
        let region = host.reserve(bytes).expect("room");
        let margins = [
            Extent { start: Address::new(region.address.get() - host.page.get()), bytes: host.page },
            Extent { start: region.address + bytes, bytes: host.page },
        ];
        for margin in margins {
            let mut seen = vec![1; margin.len()];
            // SAFETY: a mapped page that nobody writes: the promise under test.
            unsafe { read(margin.start, &mut seen) };
            assert!(seen.iter().all(|&byte| byte == 0) && !is_vacant(margin));
        }
        assert_eq!(host.release(region), Ok(()));
        // Another thread's mapping may have come there since, but hardly to both and each time.
        assert!((0..100).any(|_| {
            let region = host.reserve(bytes).expect("room");
            let low = Extent { start: Address::new(region.address.get() - host.page.get()), bytes: host.page };
            let high = Extent { start: region.address + bytes, bytes: host.page };
            host.release(region).expect("ours");
            is_vacant(low) && is_vacant(high)
        }));
    }
}

#[test]
fn what_cannot_be_mapped_is_refused_with_its_size() {
    for bytes in [Bytes::new(1 << 62), Bytes::MAX.round_down(Bytes::mib(2))] {
        let error = HostBacking::new().reserve(bytes).expect_err("no such address space");
        assert_eq!(error.code, Code::ResourceExhausted);
        assert!(error.message.contains(&bytes.get().to_string()), "{error}");
    }
}

/// A host that exchanges pages from 16 pages on, with a book of its own.
fn host(unit: Bytes, limit: usize) -> HostBacking {
    let cuts = Cuts::counted_by(Arc::default(), limit);
    let host = HostBacking::new();
    let grain = unit.max(host.page);
    HostBacking { grain, exchanges: Arc::new(Exchanges::with(grain, Bytes::kib(64), cuts)), ..host }
}

/// A region of a device, and what it should hold.
struct Model {
    host: HostBacking,
    region: AddressRange,
    owned: Option<Region>,
    bytes: Vec<u8>,
}

impl Model {
    fn new(host: HostBacking, bytes: Bytes) -> Self {
        let region = host.reserve(bytes).expect("room");
        // No two pages are alike, nor are bytes within one.
        let bytes: Vec<u8> = (0..bytes.get()).map(|at| (at ^ (at >> 8).wrapping_mul(31) ^ (at >> 16)) as u8).collect();
        // SAFETY: the region is this test's own, and as long.
        unsafe { write(region.address, &bytes) };
        Self { host, region: *region, owned: Some(region), bytes }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn extent(&self, from: usize, bytes: usize) -> Extent {
        Extent { start: self.region.address + Bytes::new(from as u64), bytes: Bytes::new(bytes as u64) }
    }

    /// What the region holds.
    fn held(&self) -> Vec<u8> {
        let mut held = vec![0; self.len()];
        // SAFETY: the region is this test's own.
        unsafe { read(self.region.address, &mut held) };
        held
    }

    /// Notes that `bytes` went from one offset to another, and compares: what the source holds is undefined, all else
    /// is not.
    fn moved(&mut self, from: usize, to: usize, bytes: usize) {
        let held = self.held();
        self.bytes.copy_within(from..from + bytes, to);
        for at in (from..from + bytes).filter(|at| !(to..to + bytes).contains(at)) {
            self.bytes[at] = held[at];
        }
        if let Some(at) = (0..self.len()).find(|&at| held[at] != self.bytes[at]) {
            panic!("byte {at:#x} is wrong after {bytes:#x} bytes went from {from:#x} to {to:#x}");
        }
    }

    fn relocate(&mut self, from: usize, to: usize, bytes: usize) {
        let (source, destination) = (self.extent(from, bytes).start, self.extent(to, bytes).start);
        // SAFETY: the callers keep both ranges within the region, which is this test's own.
        let done = unsafe { self.host.relocate(source, destination, Bytes::new(bytes as u64)) };
        assert_eq!(done, Ok(()));
        self.moved(from, to, bytes);
    }

    fn discard(&self, from: usize, bytes: usize) -> Bytes {
        // SAFETY: as for `relocate`.
        unsafe { self.host.discard(self.extent(from, bytes).start, Bytes::new(bytes as u64)) }.expect("no locked pages")
    }

    /// Where the kernel has a border inside of the region, as offsets. The book knows of each.
    fn borders(&self) -> BTreeSet<u64> {
        let there = self.kernels_borders();
        let book = self.host.exchanges.cuts.lock();
        let all = self.extent(0, self.len());
        let noted: BTreeSet<u64> = book.inside(all).map(|&at| (at - all.start).get()).collect();
        assert!(there.is_subset(&noted), "{there:?} are borders, {noted:?} are noted");
        there
    }

    fn kernels_borders(&self) -> BTreeSet<u64> {
        let maps = fs::read_to_string("/proc/self/maps").expect("a running kernel");
        let inside = self.region.address..self.region.address + self.region.bytes;
        borders(&maps)
            .filter(|at| inside.contains(at))
            .map(|at| (at - inside.start).get())
            .filter(|&at| at > 0)
            .collect()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        assert_eq!(self.owned.take().map(|region| self.host.release(region)), Some(Ok(())));
    }
}

/// Whether this kernel exchanges pages at all: Linux 5.7 and later, but not every emulation of it.
fn kernel_exchanges() -> bool {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let bytes = Bytes::new(rustix::param::page_size() as u64 * 2);
    // SAFETY: a mapping of this function's own, of which the first half goes to the second.
    unsafe {
        let start = mmap_anonymous(ptr::null_mut(), bytes.get() as usize, ProtFlags::READ, flags).expect("room");
        let all = Extent { start: Address::new(start.expose_provenance() as u64), bytes };
        let half = Bytes::new(bytes.get() / 2);
        let done = remap(all.first(half), all.last(half).start);
        munmap(start, bytes.get() as usize).expect("ours");
        done.is_ok()
    }
}

#[test]
fn big_blocks_that_lie_alike_are_exchanged_and_the_gap_stays_warm() {
    let mut model = Model::new(host(PAGE, 1000), Bytes::mib(8));
    let page = model.host.page.get() as usize;
    let (from, to, bytes) = (2 * page + 256, 200 * page + 256, 100 * page);
    model.relocate(from, to, bytes);
    if !kernel_exchanges() {
        assert_eq!((model.host.costs().remap, model.borders()), (None, BTreeSet::new()));
        return;
    }
    assert!(model.host.costs().remap.is_some());
    // The first and the last page of each are shared with neighbours and were copied.
    let expected = [3, 102, 201, 300].map(|number| number * page as u64);
    assert_eq!(model.borders(), BTreeSet::from(expected));
    assert_eq!(resident(model.extent(0, model.len()), model.host.page), Ok(model.region.bytes));
    // A page that was exchanged went back to where the kernel first knew it, so the cuts are gone again.
    model.relocate(to, from, bytes);
    assert_eq!(model.borders(), BTreeSet::new());
}

#[test]
fn small_blocks_and_blocks_that_do_not_lie_alike_are_copied() {
    let mut model = Model::new(host(PAGE, 1000), Bytes::mib(8));
    model.relocate(0, 4 << 20, 32 << 10);
    model.relocate(0, (4 << 20) + 256, 2 << 20);
    model.relocate(1 << 20, 1 << 20, 2 << 20);
    assert_eq!(model.borders(), BTreeSet::new());
}

#[test]
fn a_unit_of_huge_pages_is_kept_whole() {
    let mut model = Model::new(host(HUGE_PAGE, 1000), Bytes::mib(24));
    model.relocate(1 << 20, 11 << 20, 9 << 20);
    assert_eq!(model.host.costs().remap.is_some(), kernel_exchanges());
    assert!(model.borders().iter().all(|at| at % HUGE_PAGE.get() == 0), "{:?}", model.borders());
    assert_eq!(model.borders().len(), if kernel_exchanges() { 4 } else { 0 });
    let before = model.borders();
    model.relocate(1 << 20, (11 << 20) + (64 << 10), 9 << 20);
    assert_eq!(model.borders(), before);
}

#[test]
fn without_room_for_cuts_all_is_copied() {
    let mut model = Model::new(host(PAGE, 3), Bytes::mib(4));
    model.relocate(0, 2 << 20, 1 << 20);
    assert_eq!(model.borders(), BTreeSet::new());
    assert!(model.host.costs().remap.is_some());
}

/// Cuts that the kernel has healed are dropped when there is no more room for others.
#[test]
fn the_kernel_is_asked_before_exchanges_end() {
    let mut model = Model::new(host(PAGE, 8), Bytes::mib(8));
    for round in 1..9 {
        let at = round << 19;
        model.relocate(at, 5 << 20, 1 << 19);
        assert_eq!(model.borders().len(), if kernel_exchanges() { 4 } else { 0 }, "round {round}");
        model.relocate(5 << 20, at, 1 << 19);
        assert_eq!(model.borders(), BTreeSet::new(), "round {round}");
    }
}

#[test]
fn the_limit_is_a_part_of_what_the_kernel_allows() {
    let limit = cuts::limit();
    assert!((64..=1 << 28).contains(&limit), "{limit}");
}

/// Whichever call the kernel refuses, and even if it has unmapped the target before: the bytes arrive, and all that was
/// mapped still is.
#[test]
fn a_refused_call_loses_nothing() {
    if !kernel_exchanges() {
        return;
    }
    let shifts = [(0, 2 << 20, 1 << 20), (2 << 20, 0, 1 << 20), (0, 64 << 10, 1 << 20), (64 << 10, 0, 1 << 20)];
    for (from, to, bytes) in shifts {
        for (refused, unmaps) in (0..4).flat_map(|call| [(call, false), (call, true)]) {
            let mut model = Model::new(host(PAGE, 1000), Bytes::mib(4));
            let shift = Shift::new(model.extent(from, bytes), model.extent(to, bytes).start).expect("a move");
            let mut calls = 0;
            let mut call = |target: Extent| {
                calls += 1;
                if calls - 1 != refused {
                    return Ok(());
                }
                if unmaps {
                    // SAFETY: what the kernel would do.
                    unsafe { munmap(target.pointer(), target.len()) }.expect("mapped");
                }
                Err(Errno::NOMEM)
            };
            // SAFETY: whole pages of this test's own.
            let done = unsafe { Move::new(shift) }.exchange(&mut call);
            assert_eq!(done, Err(Errno::NOMEM), "call {refused}");
            model.moved(from, to, bytes);
            assert_eq!(calls, if refused < 2 { refused + 1 } else { 4 });
        }
    }
}

#[test]
fn discarding_gives_back_what_was_in_memory_and_leaves_the_edges() {
    let host = host(PAGE, 1000);
    let model = Model::new(host.clone(), Bytes::mib(2));
    let page = host.page.get() as usize;
    assert_eq!(model.discard(page - 1, 2 * page), host.page);
    let held = model.held();
    assert!(held[page..2 * page].iter().all(|&byte| byte == 0));
    assert!(held[..page] == model.bytes[..page] && held[2 * page..] == model.bytes[2 * page..]);
    // Its pages are back by now, because they were read; those of a fresh region never were there.
    assert_eq!(model.discard(page, page), host.page);
    assert_eq!(model.discard(page, page), Bytes::ZERO);
    assert_eq!(model.discard(page + 1, page), Bytes::ZERO);
    let fresh = host.reserve(Bytes::mib(32)).expect("room");
    // SAFETY: the region is this test's own.
    unsafe {
        assert_eq!(host.discard(fresh.address, fresh.bytes), Ok(Bytes::ZERO));
        write(fresh.address + Bytes::mib(20), &[1]);
        assert_eq!(host.discard(fresh.address, fresh.bytes), Ok(host.page));
    }
    assert_eq!(host.release(fresh), Ok(()));
}

#[test]
fn discarding_heals_cuts() {
    let mut model = Model::new(host(PAGE, 1000), Bytes::mib(8));
    for step in 1..6 {
        model.relocate(0, (step << 20) + (step << 14), 1 << 20);
        model.relocate(step << 19, 6 << 20, 1 << 19);
    }
    assert!(model.borders().len() > 8 || !kernel_exchanges());
    let all = model.len();
    assert_eq!(model.discard(0, all), model.region.bytes);
    assert_eq!(model.borders(), BTreeSet::new());
    assert!(model.held().iter().all(|&byte| byte == 0));
}

/// Blocks of several threads move in one region while others map and unmap memory: nobody else's mapping ever comes to
/// lie in the region, and nobody's is lost.
#[test]
fn moves_do_not_disturb_other_threads() {
    const PART: usize = 1 << 20;
    let host = host(PAGE, 60_000);
    let stop = AtomicBool::new(false);
    let region = host.reserve(Bytes::new(8 * PART as u64)).expect("room");
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let other = HostBacking::new();
                while !stop.load(ORDER) {
                    let mapped = other.reserve(Bytes::kib(512)).expect("room");
                    let mut first = [0; 4];
                    // SAFETY: the region is this thread's own.
                    unsafe {
                        read(mapped.address, &mut first);
                        write(mapped.address, &[9; 4]);
                    }
                    assert_eq!(first, [0; 4]);
                    assert_eq!(other.release(mapped), Ok(()));
                }
            });
        }
        let movers: Vec<_> = (0..2)
            .map(|half| {
                let (host, base) = (&host, region.address + Bytes::new(half * 4 * PART as u64));
                scope.spawn(move || {
                    let size = Bytes::new(PART as u64);
                    let mut held = vec![0; PART];
                    for round in 0..300_u32 {
                        let content = vec![(round % 251) as u8 + half as u8; PART];
                        let slide = Bytes::new(host.page.get() * u64::from(round % 7 + 1));
                        // SAFETY: each thread has its own half of the region.
                        unsafe {
                            write(base, &content);
                            host.relocate(base, base + Bytes::new(2 * PART as u64), size).expect("moves");
                            host.relocate(base + Bytes::new(2 * PART as u64), base + slide, size).expect("moves");
                            host.relocate(base + slide, base, size).expect("moves");
                            read(base, &mut held);
                        }
                        assert!(held == content, "round {round}");
                    }
                })
            })
            .collect();
        let done: Vec<_> = movers.into_iter().map(|mover| mover.join()).collect();
        stop.store(true, ORDER);
        assert!(done.iter().all(Result::is_ok));
    });
    assert_eq!(host.costs().remap.is_some(), kernel_exchanges());
    assert_eq!(host.release(region), Ok(()));
}

/// A move: where from, how many bytes, by how much, and the grain of the shift.
fn moves(size: usize) -> impl Strategy<Value = (usize, usize, usize)> {
    let grain = prop::sample::select(vec![1_usize, 256, 4096, 4096, 65536]);
    let bytes = prop_oneof![1 => 1..5000_usize, 3 => 4096..1_usize << 20, 1 => 1_usize << 20..size];
    (bytes, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>(), grain).prop_map(
        move |(bytes, from, to, near, grain)| {
            let bytes = bytes.min(size - 1);
            let last = size - bytes;
            let from = from.index(last + 1);
            // Every other one goes where it overlaps itself, if it is large.
            let to = if near { from.saturating_sub(40 * grain) + to.index(80 * grain) } else { to.index(last + 1) };
            let shift = to.abs_diff(from) / grain * grain;
            let to = if to > from { from + shift } else { from - shift };
            (from, to.min(last), bytes)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn moved_bytes_arrive_and_their_neighbours_stay(
        moves in prop::collection::vec(moves(4 << 20), 1..12), huge in prop::bool::weighted(0.1), limit in 0_usize..200,
    ) {
        let mut model = Model::new(host(if huge { HUGE_PAGE } else { PAGE }, limit), Bytes::mib(4));
        for (from, to, bytes) in moves {
            model.relocate(from, to, bytes);
            prop_assert!(model.borders().len() <= limit);
        }
        prop_assert!(model.host.costs().remap.is_some() || !kernel_exchanges());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn large_blocks_move_too(moves in prop::collection::vec(moves(17 << 20), 1..6)) {
        let mut model = Model::new(host(PAGE, 1000), Bytes::mib(17));
        for (from, to, bytes) in moves {
            model.relocate(from, to, bytes);
        }
    }
}
