//! What the region strategies share: spans for large blocks, slots for small ones.

use crate::{
    memory::{
        slab::{self, Class, ExtentId, Slabs},
        space::{
            index::Space,
            node::{End, RegionId, SpanState},
        },
        strategy::placement::{BlockPlace, Placed},
    },
    units::Bytes,
};

/// Slabs in one space with large blocks take at most this part of it. They are for a few small blocks among large ones;
/// where most are small, those fill the holes that larger ones leave, which blocks in slots cannot, and extents do not
/// move. Without a bound, random sizes from 256 bytes to 64 KiB in 64 MiB needed 1.5 points more capacity, and moved
/// 14 times the bytes in 1.02 of their peak.
const SLABS_PART: u64 = 128;

/// The free-space index and the slabs.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) space: Space,
    pub(super) slabs: Slabs,
}

/// What giving a place back left without any block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Emptied {
    Nothing,
    /// An extent, while another idle one is kept already.
    Extent(ExtentId),
    Region(RegionId),
}

impl Pool {
    pub(super) fn new(limit: Bytes) -> Self {
        Self { space: Space::new(limit), slabs: Slabs::new() }
    }

    /// The size of extents below `limit`: 1/1024 of it and 1 MiB at most, so that the room that slabs keep from large
    /// blocks is below the noise; `None` where that is less than a page, and small blocks get spans like any other.
    pub(super) fn extent_size(limit: Bytes) -> Option<Bytes> {
        let size = Bytes::new(limit.get() / 1024).round_down(slab::PAGE).min(Bytes::mib(1));
        (!size.is_zero()).then_some(size)
    }

    /// Whether slabs may have another extent of `size` in the space below `limit`.
    pub(super) fn allows_extent(&self, size: Bytes, limit: Bytes) -> bool {
        self.slabs.bytes() + size <= Bytes::new(limit.get() / SLABS_PART)
    }

    #[inline(always)]
    pub(super) fn place_slot(&mut self, class: Class) -> Option<Placed> {
        let slot = self.slabs.allocate(class)?;
        Some(Placed { place: BlockPlace::Slot(slot), address: self.slabs.address(slot), held: class.size() })
    }

    /// A span, or where there is none and the block is small, a slot that is larger than it needs.
    #[inline(always)]
    pub(super) fn place_span_or_larger_slot(&mut self, size: Bytes) -> Option<Placed> {
        // Not `or_else`: the detour of the result through its closure's memory costs 2 ns.
        match self.place_span(size) {
            Some(placed) => Some(placed),
            None => self.place_larger_slot(size),
        }
    }

    #[cold]
    fn place_larger_slot(&mut self, size: Bytes) -> Option<Placed> {
        let slot = self.slabs.allocate_larger(Class::of(size)?)?;
        Some(Placed { place: BlockPlace::Slot(slot), address: self.slabs.address(slot), held: self.slabs.size(slot) })
    }

    #[inline(always)]
    pub(super) fn place_span(&mut self, size: Bytes) -> Option<Placed> {
        let id = self.space.allocate(size, End::Low)?;
        Some(Placed { place: BlockPlace::Span(id), address: self.space.address(id), held: self.space.size(id) })
    }

    #[inline(always)]
    pub(super) fn held(&self, place: BlockPlace) -> Bytes {
        match place {
            BlockPlace::Span(id) => self.space.size(id),
            BlockPlace::Slot(slot) => self.slabs.size(slot),
            BlockPlace::Mapping { .. } => Bytes::ZERO,
        }
    }

    #[inline(always)]
    pub(super) fn retire(&mut self, place: BlockPlace) {
        match place {
            BlockPlace::Span(id) => self.space.retire(id),
            BlockPlace::Slot(slot) => self.slabs.retire(slot),
            BlockPlace::Mapping { .. } => {}
        }
    }

    #[inline(always)]
    pub(super) fn reuse(&mut self, place: BlockPlace) {
        match place {
            BlockPlace::Span(id) => self.space.reuse(id),
            BlockPlace::Slot(slot) => self.slabs.reuse(slot),
            BlockPlace::Mapping { .. } => {}
        }
    }

    #[inline(always)]
    pub(super) fn vacate(&mut self, place: BlockPlace, was: SpanState) -> Emptied {
        match place {
            BlockPlace::Span(id) => self.space.free(id).map_or(Emptied::Nothing, Emptied::Region),
            BlockPlace::Slot(slot) => self.slabs.free(slot, was).map_or(Emptied::Nothing, Emptied::Extent),
            BlockPlace::Mapping { .. } => Emptied::Nothing,
        }
    }
}
