//! One region of the whole limit, taken at the first allocation and kept: the strategy of XLA's default.
//!
//! ```text
//!  |  blocks, best fit from the low end  ->      hole      <-  | extent | extent |
//!                                                                 slots of small blocks
//! ```

use crate::{
    error::Code,
    memory::{
        backing::{Backing, release_or_log},
        imagined::Imagined,
        slab::{Class, ExtentId},
        space::{
            index::Space,
            node::{End, MIN_GRANULE, NodeId, RegionId, SpanState},
        },
        strategy::{
            placement::{BlockPlace, Placed, Placement, Shortage, SmallBlock, Vacated},
            pool::{Emptied, Pool},
        },
    },
    region::{AddressRange, Region},
    units::Bytes,
};

/// What is left behind each large array, so that equal arrays do not lie whole powers of two apart: in a step over
/// parameters and their moments, element i of each would have the same place in caches and predictors that look at a
/// part of the address (L1 of AMD's Zen: Lipp et al., "Take A Way", AsiaCCS 2020). Adam over arrays of 16 MiB, 256 MiB
/// apart, took 10 to 25 % longer. Which structure of the processor it was has not been counted. The distance is one
/// that slab allocators call a colour (Bonwick 1994). Less than 32 KiB helped less, more not further.
const COLOUR: Bytes = Bytes::kib(32);

/// Arrays from this size on get a colour: it takes 0.8 % of the limit at most.
const COLOURED_FROM: Bytes = Bytes::mib(4);

/// And up to this part of the limit: a user who fills an arena with a few large arrays has counted on every byte.
const COLOURED_UP_TO: u64 = 64;

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::memory) struct Preallocate {
    books: Books,
    region: Option<Region>,
}

/// What lies where in the region.
#[derive(Clone, Debug)]
struct Books {
    limit: Bytes,
    extent_size: Option<Bytes>,
    region: Option<RegionId>,
    pool: Pool,
    /// The span that each extent lies in, by the extent's number.
    extents: Vec<Option<NodeId>>,
    /// The largest array that gets a colour; zero where none does.
    coloured_up_to: Bytes,
}

impl Preallocate {
    pub(in crate::memory) fn new(limit: Bytes) -> Self {
        let books = Books {
            limit,
            extent_size: Pool::extent_size(limit),
            region: None,
            pool: Pool::new(limit),
            extents: Vec::new(),
            coloured_up_to: Bytes::ZERO,
        };
        Self { books, region: None }
    }

    #[inline(always)]
    fn reserve(&mut self, least: Bytes, backing: &dyn Backing) -> Result<(), Shortage> {
        if self.region.is_some() { Ok(()) } else { self.reserve_now(least, backing) }
    }

    /// Takes the region: the limit, or as much of it as the device has, in steps of a tenth, as XLA's allocator does
    /// (`bfc_allocator.cc`, `kBackpedalFactor`); `least` bytes at least.
    #[cold]
    fn reserve_now(&mut self, least: Bytes, backing: &dyn Backing) -> Result<(), Shortage> {
        let refused = |error| Shortage { refusal: Some(error) };
        let mut bytes = self.books.limit;
        let region = loop {
            let refusal = match backing.reserve_up_front(bytes) {
                Ok(region) => break region,
                Err(refusal) => refusal,
            };
            let smaller = Bytes::new(bytes.get() / 10 * 9).round_down(backing.granularity());
            if refusal.code != Code::ResourceExhausted || smaller < least || smaller.is_zero() {
                return Err(refused(refusal));
            }
            bytes = smaller;
        };
        if bytes < self.books.limit {
            log::warn!("the device had no region of {}, the limit, so the arena has one of {bytes}", self.books.limit);
        }
        match self.books.pool.space.add_region(*region) {
            Ok(id) => {
                (self.books.region, self.region) = (Some(id), Some(region));
                Ok(())
            }
            Err(error) => {
                release_or_log(backing, region);
                Err(refused(error))
            }
        }
    }
}

impl Books {
    #[inline(always)]
    fn place(&mut self, size: Bytes) -> Option<Placed> {
        if let Some(class) = Class::of(size)
            && let Some(placed) = self.place_small(class)
        {
            return Some(placed);
        }
        if (COLOURED_FROM..=self.coloured_up_to).contains(&size)
            && let Some(placed) = self.pool.place_span(size + COLOUR)
        {
            return Some(placed);
        }
        if let Some(placed) = self.pool.place_span_or_larger_slot(size) {
            return Some(placed);
        }
        // The idle extent of the slabs is the one thing that can be freed without waiting.
        if self.drop_idle_extents() { self.pool.place_span(size) } else { None }
    }

    #[inline(always)]
    fn place_small(&mut self, class: Class) -> Option<Placed> {
        let extent_size = self.extent_size?;
        match self.pool.place_slot(class) {
            Some(placed) => Some(placed),
            None => self.place_in_new_extent(class, extent_size),
        }
    }

    #[cold]
    fn place_in_new_extent(&mut self, class: Class, extent_size: Bytes) -> Option<Placed> {
        if !self.pool.allows_extent(extent_size, self.limit) {
            return None;
        }
        let span = self.pool.space.allocate(extent_size, End::High)?;
        let Some(id) = self.pool.slabs.adopt(self.pool.space.address(span), self.pool.space.size(span)) else {
            self.pool.space.free(span);
            return None;
        };
        // An extent does not move; [`Self::dissolve`] makes ordinary blocks of its slots.
        self.pool.space.pin(span);
        if self.extents.len() <= id.index() {
            self.extents.resize(id.index() + 1, None);
        }
        self.extents[id.index()] = Some(span);
        self.pool.place_slot(class)
    }

    fn drop_extent(&mut self, id: ExtentId) {
        if self.pool.slabs.remove(id)
            && let Some(span) = self.extents[id.index()].take()
        {
            self.pool.space.free(span);
        }
    }

    fn drop_idle_extents(&mut self) -> bool {
        let idle: Option<ExtentId> = self.pool.slabs.idle_extents().next();
        idle.map(|id| self.drop_extent(id)).is_some()
    }

    #[inline(always)]
    fn vacate(&mut self, place: BlockPlace, was: SpanState) {
        if let Emptied::Extent(id) = self.pool.vacate(place, was) {
            self.drop_extent(id);
        }
    }
}

impl Placement for Preallocate {
    fn place(&mut self, size: Bytes, backing: &dyn Backing) -> Result<Placed, Shortage> {
        if size > self.books.limit {
            return Err(Shortage { refusal: None });
        }
        self.reserve(size, backing)?;
        self.books.place(size).ok_or(Shortage { refusal: None })
    }

    fn use_no_slots(&mut self) {
        self.books.extent_size = None;
    }

    fn use_colours(&mut self) {
        self.books.coloured_up_to = Bytes::new(self.books.limit.get() / COLOURED_UP_TO);
    }

    fn retire(&mut self, place: BlockPlace) -> Bytes {
        self.books.pool.retire(place);
        self.books.pool.held(place)
    }

    fn reuse(&mut self, place: BlockPlace) -> Bytes {
        self.books.pool.reuse(place);
        self.books.pool.held(place)
    }

    fn vacate(&mut self, place: BlockPlace, was: SpanState) -> Vacated {
        let held = self.books.pool.held(place);
        self.books.vacate(place, was);
        Vacated { held, surplus: None }
    }

    fn held(&self, place: BlockPlace) -> Bytes {
        self.books.pool.held(place)
    }

    fn released(&mut self, _: Bytes) {}

    fn copy(&self, device: &Imagined) -> Box<dyn Placement> {
        Box::new(Self { books: self.books.clone(), region: self.region.as_ref().map(|region| device.copy(region)) })
    }

    fn growth(&self) -> Bytes {
        if self.region.is_some() { Bytes::ZERO } else { self.books.limit }
    }

    fn pool(&self) -> Bytes {
        self.region.as_ref().map_or(Bytes::ZERO, |region| region.bytes)
    }

    fn free(&self) -> Bytes {
        self.books.pool.space.free_bytes() + self.books.pool.slabs.free_bytes()
    }

    fn largest_hole(&self) -> Bytes {
        self.books.pool.space.largest_hole()
    }

    fn largest_request(&self) -> Bytes {
        if self.region.is_none() {
            return self.books.limit;
        }
        let idle = self.books.pool.slabs.idle_extents().filter_map(|id| self.books.extents[id.index()]);
        let with_idle = idle.map(|span| self.books.pool.space.hole_after_free(span)).max();
        let slot = self.books.extent_size.and_then(|_| self.books.pool.slabs.largest_vacant());
        [Some(self.largest_hole()), with_idle, slot].into_iter().flatten().max().unwrap_or_default()
    }

    fn regions(&self) -> Vec<AddressRange> {
        self.region.iter().map(|region| **region).collect()
    }

    /// Only the idle extent is freed into the space: the region is the promise of this strategy.
    fn trim(&mut self) -> Vec<Region> {
        self.books.drop_idle_extents();
        Vec::new()
    }

    fn take_all(&mut self) -> Vec<Region> {
        self.region.take().into_iter().collect()
    }

    fn take_up_front(&mut self, backing: &dyn Backing) -> Result<(), Shortage> {
        self.reserve(Bytes::ZERO, backing)
    }

    fn space(&self) -> Option<&Space> {
        Some(&self.books.pool.space)
    }

    fn space_mut(&mut self) -> Option<&mut Space> {
        Some(&mut self.books.pool.space)
    }

    fn bottom(&self) -> Option<RegionId> {
        self.books.region
    }

    fn dissolve(&mut self, blocks: &[SmallBlock]) -> Option<Vec<NodeId>> {
        let space = &mut self.books.pool.space;
        // Slots lie at multiples of 256 bytes, which larger granules do not describe.
        if space.granule() != MIN_GRANULE {
            return None;
        }
        let mut parts = Vec::with_capacity(blocks.len());
        for (number, block) in blocks.iter().enumerate() {
            let (extent, offset) = self.books.pool.slabs.position(block.slot);
            let offset = u32::try_from(offset.get() / MIN_GRANULE.get()).ok()?;
            parts.push((extent.index(), (offset, space.need(block.requested)?, block.state), number));
        }
        parts.sort_unstable_by_key(|&(extent, (offset, ..), _)| (extent, offset));
        let mut spans: Vec<Option<NodeId>> = vec![None; blocks.len()];
        for group in parts.chunk_by(|one, other| one.0 == other.0) {
            let Some(whole) = group.first().and_then(|part| self.books.extents[part.0].take()) else { continue };
            let cuts: Vec<_> = group.iter().map(|&(_, cut, _)| cut).collect();
            for (&(.., number), id) in group.iter().zip(space.shatter(whole, &cuts)) {
                spans[number] = Some(id);
            }
        }
        let extents: Vec<ExtentId> = self.books.pool.slabs.extents().map(|(id, ..)| id).collect();
        for id in extents {
            self.books.pool.slabs.dissolve(id);
            if let Some(unused) = self.books.extents[id.index()].take() {
                self.books.pool.space.free(unused);
            }
        }
        spans.into_iter().collect()
    }
}
