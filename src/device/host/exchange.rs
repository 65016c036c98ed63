//! Moves whole pages by exchanging them, without copying a byte.
//!
//! ```text
//!  a block slides down into a hole that is smaller than it        and through parking, in four calls of mremap
//!
//!  before:  | hole  |     source     |                            1. source      -> parking
//!                                                                 2. hole        -> parking
//!  after:   |  destination   |  gap  |                            3. the source's pages -> destination
//!           a block's pages    the hole's pages                   4. the hole's pages   -> gap
//! ```
//!
//! The hole is what of the destination is not source, and the gap what of the source is not destination; both have the
//! size of the shift, or of the block where the two ranges do not overlap. The hole's pages go to the gap because
//! a move that threw them away would leave the gap without memory: its next user would pay a first touch of each
//! page, which costs several times the copy that was saved.
//!
//! Every call keeps the range that it empties (`MREMAP_DONTUNMAP`, Linux 5.7), so that no other thread's `mmap` ever
//! finds room between two of them. The kernel may refuse each call. The first two come first because they are the ones
//! that it can have a reason to refuse (a range of several mappings, before Linux 6.17; too many mappings), and until
//! both are through, source and destination are as they were or the bytes lie whole in parking; from there they are
//! copied.
//!
//! What holds a page rather than an address keeps it: a child after `fork` shares the pages copy-on-write and sees none
//! of this; pages that the kernel or a device has pinned (`O_DIRECT`, io_uring, RDMA) stay the block's pages, and locks
//! (`mlock`) move with them. A driver that has registered an address range (`cudaHostRegister`) would be left behind,
//! which is one of the reasons why a block whose address is known outside does not move.

use std::ptr;

use rustix::{
    io::{Errno, Result},
    mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed},
    param::page_size,
};

use crate::{
    device::{
        host::{mapping::Mapping, pages::HUGE_PAGE},
        shift::{Extent, Shift},
    },
    units::{Address, Bytes},
};

/// A move that may be made: nothing but this value reads or writes its two ranges.
#[derive(Debug)]
pub(super) struct Move(Shift);

/// Is asked before each call of mremap, with what of the address space it would map: what it says instead is taken for
/// the kernel's refusal. Tests refuse by it.
pub(super) type Gate<'a> = &'a mut dyn FnMut(Extent) -> Result<()>;

impl Move {
    /// The move of a block.
    ///
    /// # Safety
    /// Source and destination lie in mappings of this process that are private, anonymous, readable and writable, and
    /// until the move was made nothing else reads, writes, maps or unmaps them.
    pub(super) unsafe fn new(shift: Shift) -> Self {
        Self(shift)
    }

    /// From where to where.
    pub(super) fn shift(&self) -> Shift {
        self.0
    }

    /// The foremost `bytes` of it, and what is left: the first is to be made before the second.
    pub(super) fn split(self, bytes: Bytes) -> (Option<Self>, Option<Self>) {
        assert!(bytes <= self.0.source.bytes, "no more than there is");
        let (first, rest) = self.0.split(bytes);
        (first.map(Self), rest.map(Self))
    }

    /// Makes it, by copying.
    pub(super) fn copy(self) {
        let Shift { source, destination, .. } = self.0;
        // SAFETY: both ranges are mapped, readable and writable, and nothing else uses them (`new`); they have the same
        // length. Bytes need no alignment, and `ptr::copy` allows the ranges to overlap.
        unsafe { ptr::copy(source.pointer().cast::<u8>(), destination.pointer().cast::<u8>(), source.len()) }
    }

    /// Makes it by exchanging pages: those of the source go to the destination, and those of the hole to the gap. The
    /// bytes arrive in any case.
    ///
    /// # Errors
    /// The kernel's, when it refused, or `EINVAL` for what is not whole pages: the bytes were copied then, and other
    /// exchanges will hardly fare better.
    pub(super) fn exchange(self, gate: Gate<'_>) -> Result<()> {
        let Shift { source, destination, hole, gap, .. } = self.0;
        let page = page_size() as u64;
        let whole = [source.start.get(), destination.start.get(), source.bytes.get()].iter().all(|at| at % page == 0);
        let parking = if whole { Parking::new(self.0) } else { Err(Errno::INVAL) };
        let parking = match parking {
            Ok(parking) => parking,
            Err(errno) => {
                self.copy();
                return Err(errno);
            }
        };
        let mut call = |from: Extent, to: Address| {
            gate(Extent { start: to, ..from })?;
            // SAFETY: every pair below is one range of this move and one of parking, of the same length, in whole pages
            // (the hole and the gap are, because source and destination are): both are this function's, nothing else
            // uses them, and parking is apart from all else.
            unsafe { remap(from, to) }
        };
        if let Err(errno) = call(source, parking.block.start) {
            // An old kernel may have unmapped the place in parking before it failed, so that it can be someone else's
            // by now: parking is left as it is. That costs addresses, not memory, and only once.
            parking.all.leak();
            self.copy();
            return Err(errno);
        }
        let from_parking = |block: Extent| {
            if let Some(back) = Shift::new(block, destination.start) {
                // SAFETY: the block's place in parking holds the source's pages, which came with their protection, and
                // is ours. The destination is mapped and ours: the callers say how.
                unsafe { Self::new(back) }.copy();
            }
        };
        if let Err(errno) = call(hole, parking.rest.start) {
            // The destination's hole was not moved, and what of it was source stayed mapped without pages. As above for
            // the hole's place in parking; the block's place holds the bytes and is surely ours.
            from_parking(parking.block);
            let Parking { all, block, .. } = parking;
            let before = block.start - all.extent().start;
            let (front, rest) = all.split(before);
            let (block, back) = rest.split(block.bytes);
            front.leak();
            back.leak();
            drop(block);
            return Err(errno);
        }
        let arrived = call(parking.block, destination.start);
        if arrived.is_err() {
            // The bytes are in parking still.
            keep_mapped(destination);
            from_parking(parking.block);
        }
        let returned = call(parking.rest, gap.start);
        if returned.is_err() {
            // The gap holds nothing that anyone needs; it only has to be there.
            keep_mapped(gap);
        }
        arrived.and(returned)
    }
}

/// One call of mremap: the pages of an extent go to an address, and the extent stays mapped without them. What was
/// mapped there is gone.
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// Both extents belong to the caller in whole pages, do not overlap, and no other thread reads or writes them
/// meanwhile.
pub(super) unsafe fn remap(from: Extent, to: Address) -> Result<()> {
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    let target = Extent { start: to, ..from }.pointer();
    // SAFETY: both ranges are whole pages of the caller's, apart from each other, so that the call unmaps nothing of
    // others; no live reference is to either, because nothing uses them.
    unsafe { mremap_fixed(from.pointer(), from.len(), from.len(), flags, target) }.map(|_| ())
}

/// Addresses for the pages of a block and of a hole while neither is at its place.
struct Parking {
    all: Mapping,
    block: Extent,
    rest: Extent,
}

impl Parking {
    /// Places that lie as the destination and the gap do within a huge page: the kernel moves the whole tables and the
    /// huge pages there are, instead of one entry after the other (measured: 0.4 us instead of 4 us for each MiB).
    fn new(shift: Shift) -> Result<Self> {
        let (block, rest) = (shift.destination, shift.gap);
        let slack = Bytes::new(3 * HUGE_PAGE.get());
        let bytes = block.bytes.checked_add(rest.bytes).and_then(|sum| sum.checked_add(slack)).ok_or(Errno::NOMEM)?;
        let all = Mapping::new(bytes, ProtFlags::empty())?;
        let block = Extent { start: alike(all.extent().start, block.start), ..block };
        let rest = Extent { start: alike(block.end(), rest.start), ..rest };
        Ok(Self { all, block, rest })
    }
}

/// The first address from `from` on that lies within a huge page as `like` does.
fn alike(from: Address, like: Address) -> Address {
    let huge = HUGE_PAGE.get();
    from + Bytes::new(like.get().wrapping_sub(from.get()) % huge)
}

/// Maps an extent of ours again if a refused call has unmapped it. That the kernel refuses then is not known to happen:
/// it counts mappings before it touches any, and what leaves parking is one mapping.
fn keep_mapped(extent: Extent) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: with `FIXED_NOREPLACE` the kernel maps only where nothing is mapped, so that no memory of others changes;
    // that something is mapped there is the usual case, and no failure.
    let _ = unsafe { mmap_anonymous(extent.pointer(), extent.len(), protection, flags) };
}
