//! One device allocation per block, released when the block is freed: nothing is cached and nothing fragments.
//!
//! A block takes whole units of the device's granularity (a page on the host); a request of nothing takes one unit.

use crate::{
    memory::{
        backing::Backing,
        imagined::Imagined,
        space::node::SpanState,
        strategy::placement::{BlockPlace, Owned, Placed, Placement, Shortage, Vacated},
    },
    region::{AddressRange, Region},
    units::Bytes,
};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::memory) struct Platform {
    limit: Bytes,
    granularity: Bytes,
    /// One for each block.
    mappings: Owned,
    /// Numbers below `next` that name no mapping.
    vacant: Vec<u32>,
    next: u32,
    /// Bytes held from the device: live, retired and leaving.
    reserved: Bytes,
    leaving: Bytes,
}

impl Platform {
    pub(in crate::memory) fn new(limit: Bytes, granularity: Bytes) -> Self {
        Self {
            limit,
            granularity,
            mappings: Owned::default(),
            vacant: Vec::new(),
            next: 0,
            reserved: Bytes::ZERO,
            leaving: Bytes::ZERO,
        }
    }

    /// As [`Placement::copy`].
    pub(super) fn copied(&self, device: &Imagined) -> Self {
        Self {
            mappings: self.mappings.copy(device),
            vacant: self.vacant.clone(),
            reserved: self.reserved - self.leaving,
            leaving: Bytes::ZERO,
            ..*self
        }
    }

    fn bytes(&self, place: BlockPlace) -> Bytes {
        match place {
            BlockPlace::Mapping { index } => {
                self.mappings.get(index as usize).map_or(Bytes::ZERO, |region| region.bytes)
            }
            BlockPlace::Span(_) | BlockPlace::Slot(_) => Bytes::ZERO,
        }
    }

    /// What a request of `size` takes; `None` past the limit.
    fn need(&self, size: Bytes) -> Option<Bytes> {
        size.max(Bytes::new(1)).checked_round_up(self.granularity).filter(|&need| need <= self.limit)
    }
}

impl Placement for Platform {
    fn place(&mut self, size: Bytes, backing: &dyn Backing) -> Result<Placed, Shortage> {
        let fitting = self.need(size).filter(|&need| need <= self.limit.saturating_sub(self.reserved));
        let need = fitting.ok_or(Shortage { refusal: None })?;
        let region = backing.reserve(need).map_err(|error| Shortage { refusal: Some(error) })?;
        self.reserved += need;
        let index = self.vacant.pop().unwrap_or(self.next);
        self.next = self.next.max(index + 1);
        let address = region.address;
        self.mappings.insert(index as usize, region);
        Ok(Placed { place: BlockPlace::Mapping { index }, address, held: need })
    }

    fn retire(&mut self, place: BlockPlace) -> Bytes {
        self.bytes(place)
    }

    fn reuse(&mut self, place: BlockPlace) -> Bytes {
        self.bytes(place)
    }

    fn vacate(&mut self, place: BlockPlace, _: SpanState) -> Vacated {
        let bytes = self.bytes(place);
        self.leaving += bytes;
        let BlockPlace::Mapping { index } = place else { return Vacated { held: bytes, surplus: None } };
        let surplus = self.mappings.take(index as usize);
        self.vacant.push(index);
        Vacated { held: bytes, surplus }
    }

    fn held(&self, place: BlockPlace) -> Bytes {
        self.bytes(place)
    }

    fn released(&mut self, bytes: Bytes) {
        self.leaving -= bytes;
        self.reserved -= bytes;
    }

    fn copy(&self, device: &Imagined) -> Box<dyn Placement> {
        Box::new(self.copied(device))
    }

    fn leaving(&self) -> Bytes {
        self.leaving
    }

    fn growth(&self) -> Bytes {
        self.limit.saturating_sub(self.reserved)
    }

    fn pool(&self) -> Bytes {
        self.reserved
    }

    fn free(&self) -> Bytes {
        self.leaving
    }

    fn largest_hole(&self) -> Bytes {
        Bytes::ZERO
    }

    fn largest_request(&self) -> Bytes {
        self.limit.saturating_sub(self.reserved)
    }

    fn regions(&self) -> Vec<AddressRange> {
        Vec::new()
    }

    fn trim(&mut self) -> Vec<Region> {
        Vec::new()
    }

    fn take_all(&mut self) -> Vec<Region> {
        self.mappings.take_all().collect()
    }
}
