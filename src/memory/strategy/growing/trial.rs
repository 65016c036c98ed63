//! A copy of the books that grows by regions which nobody has: what would find room, without asking the device.

use crate::{
    memory::{
        slab::{Class, ExtentId},
        space::node::{RegionId, SpanState},
        strategy::{
            placement::{BlockPlace, Supposed},
            pool::{Emptied, Pool},
        },
    },
    region::AddressRange,
    units::{Address, Bytes},
};

/// The first region, and how many empty bytes stay in any case.
pub(super) const FIRST_REGION: Bytes = Bytes::mib(2);

/// What a new region has beyond the `need` of a request, where so much is `reserved` and the limit leaves so much
/// `room`, not less than the need.
pub(super) fn surplus(need: Bytes, reserved: Bytes, room: Bytes, most_in_advance: Option<Bytes>) -> Bytes {
    let most = most_in_advance.unwrap_or(Bytes::MAX);
    reserved.max(FIRST_REGION).min(room).saturating_sub(need).min(most.saturating_sub(need))
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) limit: Bytes,
    pub(super) pool: Pool,
    pub(super) granularity: Bytes,
    pub(super) extent_size: Option<Bytes>,
    /// Held from the device, without what is leaving.
    pub(super) reserved: Bytes,
    /// What the limit, or a device that refused, still gives.
    pub(super) room: Bytes,
    /// Of the regions in which nothing is taken; what is beyond `keep` goes at once.
    pub(super) empty: Bytes,
    pub(super) keep: Bytes,
    pub(super) regions: u64,
}

impl Trial {
    /// Frees what is supposed to be freed, then places `sizes`, one after the other; whether each found room.
    pub(super) fn place_all(mut self, sizes: &[Bytes], supposed: &Supposed<'_>) -> bool {
        supposed.freed.iter().for_each(|&(place, was)| self.vacate(place, was));
        sizes.iter().all(|&size| self.place(size, supposed))
    }

    fn vacate(&mut self, place: BlockPlace, was: SpanState) {
        match self.pool.vacate(place, was) {
            Emptied::Nothing => {}
            Emptied::Extent(id) => self.release_extent(id),
            Emptied::Region(id) => {
                self.empty += self.pool.space.region(id).map_or(Bytes::ZERO, |region| region.bytes);
                if self.empty > self.keep {
                    let released = self.release_region(id);
                    self.empty -= released;
                }
            }
        }
    }

    fn place(&mut self, size: Bytes, supposed: &Supposed<'_>) -> bool {
        if Class::of(size).is_some_and(|class| self.place_small(class))
            || self.pool.place_span_or_larger_slot(size).is_some()
        {
            return true;
        }
        self.grow(size, supposed) && self.pool.place_span_or_larger_slot(size).is_some()
    }

    fn place_small(&mut self, class: Class) -> bool {
        let Some(extent) = self.extent_size else { return false };
        if self.pool.place_slot(class).is_some() {
            return true;
        }
        if extent > self.room {
            return false;
        }
        let address = self.nowhere();
        let adopted = self.pool.slabs.adopt(address, extent).is_some();
        if adopted {
            self.take(extent);
        }
        adopted && self.pool.place_slot(class).is_some()
    }

    fn grow(&mut self, size: Bytes, supposed: &Supposed<'_>) -> bool {
        let need = size.max(self.pool.space.granule()).checked_round_up(self.granularity);
        let Some(need) = need.filter(|&need| need <= self.limit) else { return false };
        if need > self.room {
            self.release_empty();
        }
        if need > self.room {
            return false;
        }
        let surplus = match supposed.refused {
            true => Bytes::ZERO,
            false => surplus(need, self.reserved, self.room, supposed.most_in_advance).round_down(self.granularity),
        };
        let region = AddressRange { address: self.nowhere(), bytes: need + surplus };
        let added = self.pool.space.add_region(region).is_ok();
        if added {
            self.take(region.bytes);
        }
        added
    }

    fn release_empty(&mut self) {
        let empty: Vec<RegionId> = self.pool.space.empty_regions().map(|(id, _)| id).collect();
        empty.into_iter().for_each(|id| _ = self.release_region(id));
        let idle: Vec<ExtentId> = self.pool.slabs.idle_extents().collect();
        idle.into_iter().for_each(|id| self.release_extent(id));
    }

    fn release_region(&mut self, id: RegionId) -> Bytes {
        let bytes = self.pool.space.remove_region(id).map_or(Bytes::ZERO, |region| region.bytes);
        self.give(bytes);
        bytes
    }

    fn release_extent(&mut self, id: ExtentId) {
        let before = self.pool.slabs.bytes();
        if self.pool.slabs.remove(id) {
            self.give(before - self.pool.slabs.bytes());
        }
    }

    fn take(&mut self, bytes: Bytes) {
        self.room -= bytes;
        self.reserved += bytes;
    }

    fn give(&mut self, bytes: Bytes) {
        self.room += bytes;
        self.reserved -= bytes;
    }

    /// An address, for books that need one: each beyond any that a device has.
    fn nowhere(&mut self) -> Address {
        self.regions += 1;
        Address::new(self.regions << 52)
    }
}
