//! One device allocation per block, given back when the block is freed: nothing is cached and nothing fragments.
//!
//! A block takes whole units of the device's granularity (a page on the host); a request of nothing takes one unit.

use crate::{
    memory::{
        Backing, Region,
        space::SpanState,
        strategy::{BlockPlace, Placed, Placement, Shortage, Vacated},
    },
    units::{Address, Bytes},
};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::memory) struct Platform {
    limit: Bytes,
    granularity: Bytes,
    /// Bytes held from the device: live, retired and leaving.
    reserved: Bytes,
    retired: Bytes,
    leaving: Bytes,
}

impl Platform {
    pub(in crate::memory) fn new(limit: Bytes, granularity: Bytes) -> Self {
        Self { limit, granularity, reserved: Bytes::ZERO, retired: Bytes::ZERO, leaving: Bytes::ZERO }
    }

    fn bytes(&self, place: BlockPlace) -> Bytes {
        match place {
            BlockPlace::Mapping { units } => Bytes::new(u64::from(units) * self.granularity.get()),
            BlockPlace::Span(_) | BlockPlace::Slot(_) => Bytes::ZERO,
        }
    }

    /// What a request of `size` takes; `None` past the limit.
    fn need(&self, size: Bytes) -> Option<(Bytes, u32)> {
        let need = size.max(Bytes::new(1)).checked_round_up(self.granularity).filter(|&need| need <= self.limit)?;
        let units = u32::try_from(need.get() / self.granularity.get()).ok()?;
        Some((need, units))
    }
}

impl Placement for Platform {
    fn place(&mut self, size: Bytes, backing: &dyn Backing) -> Result<Placed, Shortage> {
        let fitting = self.need(size).filter(|&(need, _)| need <= self.limit.saturating_sub(self.reserved));
        let (need, units) = fitting.ok_or(Shortage { refusal: None })?;
        let region = backing.reserve(need).map_err(|error| Shortage { refusal: Some(error) })?;
        self.reserved += need;
        Ok(Placed { place: BlockPlace::Mapping { units }, address: region.address, held: need })
    }

    fn retire(&mut self, place: BlockPlace) {
        self.retired += self.bytes(place);
    }

    fn reuse(&mut self, place: BlockPlace) {
        self.retired -= self.bytes(place);
    }

    fn vacate(&mut self, address: Address, place: BlockPlace, was: SpanState) -> Vacated {
        let bytes = self.bytes(place);
        if was == SpanState::Retired {
            self.retired -= bytes;
        }
        self.leaving += bytes;
        Vacated { held: bytes, surplus: Some(Region { address, bytes }) }
    }

    fn held(&self, place: BlockPlace) -> Bytes {
        self.bytes(place)
    }

    fn released(&mut self, region: Region) {
        self.leaving -= region.bytes;
        self.reserved -= region.bytes;
    }

    fn fits_after_pending(&mut self, size: Bytes, refused: bool) -> bool {
        let Some((need, _)) = self.need(size) else { return false };
        let coming = self.retired + self.leaving;
        // Of memory that the device refused, no more can come than what goes back to it.
        let room = if refused { coming } else { self.limit.saturating_sub(self.reserved) + coming };
        room >= need
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

    fn regions(&self) -> Vec<Region> {
        Vec::new()
    }

    fn trim(&mut self) -> Vec<Region> {
        Vec::new()
    }
}
