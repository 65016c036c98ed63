//! What every strategy does: one trait, and what it takes and gives.

use std::fmt;

use crate::{
    error::Error,
    memory::{
        backing::Backing,
        imagined::Imagined,
        slab::SlotId,
        space::{
            index::Space,
            node::{NodeId, RegionId, SpanState},
        },
    },
    region::{AddressRange, Region},
    units::{Address, Bytes},
};

/// Where a block lies, as its strategy finds it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPlace {
    /// A span of the free-space index.
    Span(NodeId),
    /// A slot of the slabs.
    Slot(SlotId),
    /// A region of its own.
    Mapping {
        /// Its number with the strategy.
        index: u32,
    },
}

/// Room that was found.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Placed {
    pub(in crate::memory) place: BlockPlace,
    pub(in crate::memory) address: Address,
    /// What the place takes from the pool: the request and its slack.
    pub(in crate::memory) held: Bytes,
}

/// Room that was freed.
#[derive(Debug)]
pub(in crate::memory) struct Vacated {
    /// As in [`Placed`].
    pub(in crate::memory) held: Bytes,
    /// A region that the arena is to release to the device.
    pub(in crate::memory) surplus: Option<Region>,
}

/// No room was found.
#[derive(Debug)]
pub(in crate::memory) struct Shortage {
    /// What the device said, where it refused memory that the limit allows.
    pub(in crate::memory) refusal: Option<Error>,
}

/// How space is obtained, divided and released. All sizes are in bytes of the device's memory.
pub(in crate::memory) trait Placement: Send + fmt::Debug {
    /// Finds room for `size` bytes, with the device's help where the strategy takes memory on demand.
    fn place(&mut self, size: Bytes, backing: &dyn Backing) -> Result<Placed, Shortage>;

    /// Notes that a live block was retired; what its place takes from the pool. O(1).
    fn retire(&mut self, place: BlockPlace) -> Bytes;

    /// Notes that a retired block has an owner again; what its place takes from the pool. O(1).
    fn reuse(&mut self, place: BlockPlace) -> Bytes;

    /// Frees a block's room; `was` says whether it was live or retired. O(1).
    fn vacate(&mut self, place: BlockPlace, was: SpanState) -> Vacated;

    /// Bytes that a place takes from the pool.
    fn held(&self, place: BlockPlace) -> Bytes;

    /// Notes that surplus regions of so many bytes have been released to the device.
    fn released(&mut self, bytes: Bytes);

    /// The same books with regions of another device, without those that are leaving. O(blocks).
    fn copy(&self, device: &Imagined) -> Box<dyn Placement>;

    /// Bytes of regions that are on their way back to the device.
    fn leaving(&self) -> Bytes {
        Bytes::ZERO
    }

    /// What the limit still allows to be taken from the device.
    fn growth(&self) -> Bytes;

    /// Bytes held from the device.
    fn pool(&self) -> Bytes;

    /// Bytes of the pool that no block holds, those of leaving regions included.
    fn free(&self) -> Bytes;

    /// Bytes of regions that no block is in, which [`Self::trim`] returns. O(extents).
    fn empty(&self) -> Bytes {
        Bytes::ZERO
    }

    /// The largest hole.
    fn largest_hole(&self) -> Bytes;

    /// The largest request that succeeds now, if the device gives what the limit allows.
    fn largest_request(&self) -> Bytes;

    /// Whether a region for `size` could be had, if the regions that hold nothing, `empty` bytes in all, were released
    /// first. Only a strategy whose pool grows can say yes.
    fn fits_instead_of(&self, _size: Bytes, _empty: Bytes) -> bool {
        false
    }

    /// The regions held, without those that are one block's own.
    fn regions(&self) -> Vec<AddressRange>;

    /// Takes out every region that can be released to the device.
    fn trim(&mut self) -> Vec<Region>;

    /// Takes out every region, at the end of the arena.
    fn take_all(&mut self) -> Vec<Region>;

    /// Takes from the device now what the first allocation would take.
    fn take_up_front(&mut self, _: &dyn Backing) -> Result<(), Shortage> {
        Ok(())
    }

    /// The index, where blocks can be given another place in it.
    fn space(&self) -> Option<&Space> {
        None
    }

    /// As [`Self::space`], to give them one.
    fn space_mut(&mut self) -> Option<&mut Space> {
        None
    }

    /// The region whose low end is kept for programs' scratch.
    fn bottom(&self) -> Option<RegionId> {
        None
    }

    /// Notes that the last block of a region was moved away. The region stays until [`Self::trim_surplus`], because
    /// what was opened is not taken yet.
    fn emptied(&mut self, _: RegionId) {}

    /// Takes out the empty regions that are not worth keeping.
    fn trim_surplus(&mut self) -> Vec<Region> {
        Vec::new()
    }

    /// Takes out empty regions, the largest first, until those that stay are at most `keep`.
    fn trim_to(&mut self, _keep: Bytes) -> Vec<Region> {
        Vec::new()
    }

    /// Puts small blocks where large ones go from here on.
    fn use_no_slots(&mut self) {}

    /// Places large blocks of equal size at distances that are no powers of two from here on.
    fn use_colours(&mut self) {}

    /// Makes spans of the index out of all slots, which the caller lists completely, in place: then they can move like
    /// other blocks, and the extents' vacant slots are holes. The spans in the same order, or `None` where slots do not
    /// lie in the index. O(slots).
    fn dissolve(&mut self, _: &[SmallBlock]) -> Option<Vec<NodeId>> {
        None
    }
}

/// The regions that a strategy owns, by a number that the strategy's own books have for each.
#[derive(Debug, Default)]
pub(super) struct Owned(Vec<Option<Region>>);

impl Owned {
    pub(super) fn insert(&mut self, index: usize, region: Region) {
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(region);
    }

    pub(super) fn get(&self, index: usize) -> Option<&Region> {
        self.0.get(index)?.as_ref()
    }

    pub(super) fn take(&mut self, index: usize) -> Option<Region> {
        self.0.get_mut(index)?.take()
    }

    pub(super) fn copy(&self, device: &Imagined) -> Self {
        Self(self.0.iter().map(|region| region.as_ref().map(|region| device.copy(region))).collect())
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        self.0.iter().flatten().map(|region| **region)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Region> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }
}

/// A block in a slot.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct SmallBlock {
    pub(in crate::memory) slot: SlotId,
    pub(in crate::memory) requested: Bytes,
    pub(in crate::memory) state: SpanState,
}
