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
    mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap},
};

use crate::{
    device::{
        host::pages::HUGE_PAGE,
        shift::{Extent, Shift},
    },
    units::{Address, Bytes},
};

/// Copies the bytes of one extent to another of its size, which may overlap it.
///
/// # Safety
/// Both are mapped, readable and writable, and no other thread reads or writes them meanwhile.
pub(super) unsafe fn copy(from: Extent, to: Extent) {
    // SAFETY: the pointers are to the starts of two ranges that the contract says are valid for `from.len()` bytes and
    // free of other accesses; bytes need no alignment, and `ptr::copy` allows the ranges to overlap.
    unsafe { ptr::copy(from.pointer().cast::<u8>(), to.pointer().cast::<u8>(), from.len()) }
}

/// One call of mremap: the pages of an extent go to an address, and the extent stays mapped without them. What was
/// mapped there is gone.
pub(super) type Remap<'a> = &'a mut dyn FnMut(Extent, Address) -> Result<()>;

/// [`Remap`] as the kernel does it.
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

/// Moves whole pages from the source to the destination, and those of the hole to the gap. The bytes arrive in any
/// case.
///
/// # Errors
/// The kernel's, when it refused: the bytes were copied then, and other exchanges will hardly fare better.
///
/// # Safety
/// Source and destination lie in whole pages of mappings of this device, and no other thread uses them meanwhile.
/// `call` moves pages as [`remap`] does, or fails without moving any.
pub(super) unsafe fn exchange(shift: Shift, call: Remap<'_>) -> Result<()> {
    let Shift { source, destination, hole, gap, .. } = shift;
    let parking = match Parking::new(shift) {
        Ok(parking) => parking,
        Err(errno) => {
            // SAFETY: nothing was moved, so both are mapped as the contract says, and no other thread uses them.
            unsafe { copy(source, destination) };
            return Err(errno);
        }
    };
    if let Err(errno) = call(source, parking.block.start) {
        // An old kernel may have unmapped the place in parking before it failed, so that it can be someone else's by
        // now: parking is left as it is. That costs addresses, not memory, and only once.
        // SAFETY: the source was not moved, so both are mapped as the contract says, and no other thread uses them.
        unsafe { copy(source, destination) };
        return Err(errno);
    }
    if let Err(errno) = call(hole, parking.rest.start) {
        // As above for the hole's place; the block's place holds the bytes and is surely ours. SAFETY: the block's
        // place in parking holds the source's pages, and is ours. The destination is mapped: its hole was not moved,
        // and what of it was source stayed mapped without pages. No other thread uses either.
        unsafe { copy(parking.block, destination) };
        // SAFETY: the block's place is a part of parking that is mapped and ours, and nothing refers to it from here
        // on.
        unsafe { unmap(parking.block) };
        return Err(errno);
    }
    let arrived = call(parking.block, destination.start);
    if arrived.is_err() {
        keep_mapped(destination);
        // SAFETY: the call failed, so the bytes are in parking still, which is ours; the destination is mapped, again
        // if need be. No other thread uses either.
        unsafe { copy(parking.block, destination) };
    }
    let returned = call(parking.rest, gap.start);
    if returned.is_err() {
        // The gap holds nothing that anyone needs; it only has to be there.
        keep_mapped(gap);
    }
    // SAFETY: both moves into parking were made, so all of it is mapped and ours, and nothing refers to it from here
    // on.
    unsafe { unmap(parking.all) };
    arrived.and(returned)
}

/// Addresses for the pages of a block and of a hole while neither is at its place.
struct Parking {
    all: Extent,
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
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint and no MAP_FIXED: the kernel chooses a range that nothing else uses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes.get() as usize, ProtFlags::empty(), flags) }?;
        let all = Extent { start: Address::new(start.expose_provenance() as u64), bytes };
        let block = Extent { start: alike(all.start, block.start), ..block };
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

/// Ends a mapping of parking.
///
/// # Safety
/// The extent is whole pages of [`Parking`] that are still the caller's, and nothing refers to them any more.
unsafe fn unmap(extent: Extent) {
    // SAFETY: by the contract the pages are the caller's, and no live object lies in them.
    if let Err(errno) = unsafe { munmap(extent.pointer(), extent.len()) } {
        log::warn!("munmap of {} bytes at {} failed: {errno}; they stay reserved", extent.bytes.get(), extent.start);
    }
}
