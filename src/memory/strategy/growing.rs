//! Regions on demand: the pool doubles when it must grow, and empty regions are released.
//!
//! *Growth*: a new region is as large as the pool (so the pool doubles), at least 2 MiB as in XLA, at least the
//! request, at most what the limit leaves, and of a device where memory is dear no more than
//! [`Backing::most_in_advance`], or than the request if that is larger. Where the device refuses, the part above the
//! request is halved until the request alone is refused too. Then, or where the limit is in the way, all empty regions
//! are released first.
//!
//! *Extents* of the slabs are regions of their own here: a scalar that lives long must not keep a large region.
//!
//! *Release*: a region that becomes empty leaves at once, unless the empty regions together stay within `keep`. `keep`
//! starts at 2 MiB. When the pool has to grow within [`REUSE_WINDOW`] allocations of a region's leaving, that leaving
//! was a mistake, and `keep` rises to what had left and what was empty. So a single large array has its memory
//! released, while a loop that takes and frees the same memory pays for one round and runs warm from the second on
//! (fresh pages cost a fault each: 256 MB took 100 ms to write where warm pages took 12). [`Placement::trim`] starts
//! over.

use crate::{
    error::{Code, Error},
    memory::{
        backing::{Backing, release_or_log},
        imagined::Imagined,
        slab::{Class, ExtentId, MAX_EXTENT},
        space::{
            index::Space,
            node::{RegionId, SpanState},
        },
        strategy::{
            placement::{BlockPlace, Owned, Placed, Placement, Shortage, Vacated},
            pool::{Emptied, Pool},
        },
    },
    region::{AddressRange, Region},
    units::Bytes,
};

/// The first region, and how many empty bytes stay in any case.
const FIRST_REGION: Bytes = Bytes::mib(2);

/// How many allocations after a region left its return counts as a mistake: a few steps of a usual model.
const REUSE_WINDOW: u64 = 1024;

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::memory) struct Growing {
    limit: Bytes,
    granularity: Bytes,
    extent_size: Option<Bytes>,
    pool: Pool,
    /// The regions of the space, by their numbers.
    regions: Owned,
    /// The region of each extent, by the extent's number.
    extents: Owned,
    /// Bytes held from the device, leaving ones included.
    reserved: Bytes,
    leaving: Bytes,
    /// Bytes of regions of the space in which nothing is taken.
    empty: Bytes,
    /// How many empty bytes stay.
    keep: Bytes,
    left: Left,
    /// Counts allocations, as the clock of `left`.
    clock: u64,
}

/// The regions that left lately.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    bytes: Bytes,
    /// When the last of them left.
    at: u64,
}

impl Growing {
    pub(in crate::memory) fn new(limit: Bytes, granularity: Bytes) -> Self {
        let extent_size = Pool::extent_size(limit).and_then(|size| size.checked_round_up(granularity));
        Self {
            limit,
            granularity,
            extent_size: extent_size.filter(|&size| size <= MAX_EXTENT),
            pool: Pool::new(limit),
            regions: Owned::default(),
            extents: Owned::default(),
            reserved: Bytes::ZERO,
            leaving: Bytes::ZERO,
            empty: Bytes::ZERO,
            keep: FIRST_REGION,
            left: Left::default(),
            clock: 0,
        }
    }

    fn room(&self) -> Bytes {
        self.limit.saturating_sub(self.reserved)
    }

    #[inline(always)]
    fn place_small(&mut self, class: Class, backing: &dyn Backing) -> Option<Placed> {
        let extent_size = self.extent_size?;
        match self.pool.place_slot(class) {
            Some(placed) => Some(placed),
            None => self.place_in_new_extent(class, extent_size, backing),
        }
    }

    #[cold]
    fn place_in_new_extent(&mut self, class: Class, extent_size: Bytes, backing: &dyn Backing) -> Option<Placed> {
        if extent_size > self.room() {
            return None;
        }
        let region = backing.reserve(extent_size).ok()?;
        let Some(id) = self.pool.slabs.adopt(region.address, region.bytes) else {
            release_or_log(backing, region);
            return None;
        };
        self.reserved += region.bytes;
        self.extents.insert(id.index(), region);
        self.pool.place_slot(class)
    }

    #[inline(always)]
    fn place_span(&mut self, size: Bytes) -> Option<Placed> {
        // Not `?`: as in the pool, results stay in registers.
        match self.pool.place_span_or_larger_slot(size) {
            Some(placed) => {
                // Empty regions are few; their sum changes only when a block enters or leaves one.
                if let BlockPlace::Span(id) = placed.place
                    && let Some(bytes) = self.pool.space.sole_block_of(id)
                {
                    self.empty -= bytes;
                }
                Some(placed)
            }
            None => None,
        }
    }

    #[cold]
    fn place_in_new_region(&mut self, size: Bytes, backing: &dyn Backing) -> Result<Placed, Shortage> {
        self.grow(size, backing)?;
        self.place_span(size).ok_or(Shortage { refusal: None })
    }

    /// Adds a region that holds `size`.
    fn grow(&mut self, size: Bytes, backing: &dyn Backing) -> Result<(), Shortage> {
        let short = |refusal| Shortage { refusal };
        let need = size.max(self.pool.space.granule()).checked_round_up(self.granularity);
        let need = need.filter(|&need| need <= self.limit).ok_or_else(|| short(None))?;
        if self.clock - self.left.at < REUSE_WINDOW && !self.left.bytes.is_zero() {
            self.keep = self.keep.max(self.left.bytes + self.empty);
            self.left = Left::default();
        }
        if need > self.room() {
            self.release_empty(backing);
        }
        if need > self.room() {
            return Err(short(None));
        }
        // No region but the request's own is larger than that.
        let most = backing.most_in_advance().unwrap_or(Bytes::MAX).saturating_sub(need);
        let mut surplus = self.reserved.max(FIRST_REGION).min(self.room()).saturating_sub(need).min(most);
        loop {
            surplus = surplus.round_down(self.granularity);
            match self.add_region(need + surplus, backing) {
                Ok(()) => return Ok(()),
                // For another reason than a lack of memory: less of it would be refused as well.
                Err(error) if error.code != Code::ResourceExhausted => return Err(short(Some(error))),
                Err(_) if !surplus.is_zero() => surplus = Bytes::new(surplus.get() / 2),
                // Regions are empty but each too small for the request: their memory may be what the device lacks.
                Err(_) if self.release_empty(backing) => {}
                Err(error) => return Err(short(Some(error))),
            }
        }
    }

    fn add_region(&mut self, bytes: Bytes, backing: &dyn Backing) -> Result<(), Error> {
        let region = backing.reserve(bytes)?;
        let id = match self.pool.space.add_region(*region) {
            Ok(id) => id,
            Err(error) => {
                release_or_log(backing, region);
                return Err(error);
            }
        };
        self.reserved += region.bytes;
        self.empty += region.bytes;
        self.regions.insert(id.index(), region);
        Ok(())
    }

    /// Takes every empty region and the idle extent out of all counts but `reserved`.
    fn take_empty(&mut self) -> Vec<Region> {
        let empty: Vec<RegionId> = self.pool.space.empty_regions().map(|(id, _)| id).collect();
        let mut regions: Vec<Region> = empty.into_iter().filter_map(|id| self.take_region(id)).collect();
        let idle: Vec<ExtentId> = self.pool.slabs.idle_extents().collect();
        regions.extend(idle.into_iter().filter_map(|id| self.take_extent(id)));
        regions
    }

    fn take_region(&mut self, id: RegionId) -> Option<Region> {
        self.empty -= self.pool.space.remove_region(id).ok()?.bytes;
        self.regions.take(id.index())
    }

    fn take_extent(&mut self, id: ExtentId) -> Option<Region> {
        if self.pool.slabs.remove(id) { self.extents.take(id.index()) } else { None }
    }

    /// Releases all empty regions at once, while a request waits for their room; whether there were any.
    fn release_empty(&mut self, backing: &dyn Backing) -> bool {
        let regions = self.take_empty();
        let any = !regions.is_empty();
        for region in regions {
            self.reserved -= region.bytes;
            release_or_log(backing, region);
        }
        any
    }

    fn leave(&mut self, region: Option<Region>) -> Option<Region> {
        self.leaving += region.as_ref()?.bytes;
        region
    }

    fn region_emptied(&mut self, id: RegionId, bytes: Bytes) -> Option<Region> {
        self.empty += bytes;
        if self.empty <= self.keep {
            return None;
        }
        self.let_leave(id)
    }

    /// Sends an empty region back.
    fn let_leave(&mut self, id: RegionId) -> Option<Region> {
        let region = self.take_region(id)?;
        if self.clock - self.left.at >= REUSE_WINDOW {
            self.left.bytes = Bytes::ZERO;
        }
        self.left = Left { bytes: self.left.bytes + region.bytes, at: self.clock };
        self.leave(Some(region))
    }
}

impl Placement for Growing {
    fn place(&mut self, size: Bytes, backing: &dyn Backing) -> Result<Placed, Shortage> {
        self.clock += 1;
        if let Some(class) = Class::of(size)
            && let Some(placed) = self.place_small(class, backing)
        {
            return Ok(placed);
        }
        match self.place_span(size) {
            Some(placed) => Ok(placed),
            None => self.place_in_new_region(size, backing),
        }
    }

    fn use_no_slots(&mut self) {
        self.extent_size = None;
    }

    fn retire(&mut self, place: BlockPlace) -> Bytes {
        self.pool.retire(place);
        self.pool.held(place)
    }

    fn reuse(&mut self, place: BlockPlace) -> Bytes {
        self.pool.reuse(place);
        self.pool.held(place)
    }

    fn vacate(&mut self, place: BlockPlace, was: SpanState) -> Vacated {
        let held = self.pool.held(place);
        let surplus = match self.pool.vacate(place, was) {
            Emptied::Nothing => None,
            Emptied::Extent(id) => {
                let extent = self.take_extent(id);
                self.leave(extent)
            }
            Emptied::Region(id) => {
                let bytes = self.pool.space.region(id).map_or(Bytes::ZERO, |region| region.bytes);
                self.region_emptied(id, bytes)
            }
        };
        Vacated { held, surplus }
    }

    fn held(&self, place: BlockPlace) -> Bytes {
        self.pool.held(place)
    }

    fn released(&mut self, bytes: Bytes) {
        self.leaving -= bytes;
        self.reserved -= bytes;
    }

    fn copy(&self, device: &Imagined) -> Box<dyn Placement> {
        Box::new(Self {
            pool: self.pool.clone(),
            regions: self.regions.copy(device),
            extents: self.extents.copy(device),
            reserved: self.reserved - self.leaving,
            leaving: Bytes::ZERO,
            ..*self
        })
    }

    fn leaving(&self) -> Bytes {
        self.leaving
    }

    fn growth(&self) -> Bytes {
        self.room()
    }

    fn pool(&self) -> Bytes {
        self.reserved
    }

    fn free(&self) -> Bytes {
        self.pool.space.free_bytes() + self.pool.slabs.free_bytes() + self.leaving
    }

    fn empty(&self) -> Bytes {
        self.empty
            + self
                .pool
                .slabs
                .idle_extents()
                .filter_map(|id| self.extents.get(id.index()))
                .map(|region| region.bytes)
                .sum::<Bytes>()
    }

    fn largest_hole(&self) -> Bytes {
        self.pool.space.largest_hole()
    }

    fn largest_request(&self) -> Bytes {
        let idle = self.pool.slabs.idle_extents().filter_map(|id| self.extents.get(id.index()));
        let growth = self.room() + self.empty + idle.map(|region| region.bytes).sum();
        let slot = self.extent_size.and_then(|_| self.pool.slabs.largest_vacant()).unwrap_or_default();
        self.largest_hole().max(growth).max(slot)
    }

    fn fits_instead_of(&self, size: Bytes, empty: Bytes) -> bool {
        let need = size.max(self.pool.space.granule()).checked_round_up(self.granularity);
        need.is_some_and(|need| need <= self.room() + empty)
    }

    fn regions(&self) -> Vec<AddressRange> {
        self.regions.ranges().chain(self.extents.ranges()).collect()
    }

    fn trim(&mut self) -> Vec<Region> {
        (self.keep, self.left) = (FIRST_REGION, Left::default());
        let regions = self.take_empty();
        self.leaving += regions.iter().map(|region| region.bytes).sum();
        regions
    }

    fn take_all(&mut self) -> Vec<Region> {
        self.regions.take_all().chain(self.extents.take_all()).collect()
    }

    fn space(&self) -> Option<&Space> {
        Some(&self.pool.space)
    }

    fn space_mut(&mut self) -> Option<&mut Space> {
        Some(&mut self.pool.space)
    }

    fn emptied(&mut self, id: RegionId) {
        self.empty += self.pool.space.region(id).map_or(Bytes::ZERO, |region| region.bytes);
    }

    fn trim_surplus(&mut self) -> Vec<Region> {
        let empty: Vec<RegionId> = self.pool.space.empty_regions().map(|(id, _)| id).collect();
        let surplus = empty.into_iter().filter_map(|id| if self.empty > self.keep { self.let_leave(id) } else { None });
        surplus.collect()
    }

    fn trim_to(&mut self, keep: Bytes) -> Vec<Region> {
        self.keep = self.keep.min(keep.max(FIRST_REGION));
        let mut empty: Vec<(RegionId, AddressRange)> = self.pool.space.empty_regions().collect();
        empty.sort_unstable_by_key(|(_, region)| std::cmp::Reverse(region.bytes));
        let largest_first = empty.into_iter();
        largest_first.filter_map(|(id, _)| if self.empty > self.keep { self.let_leave(id) } else { None }).collect()
    }
}
