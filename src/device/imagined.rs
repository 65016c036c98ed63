//! A device that has all memory there could be, and none of it: for books in which nothing lies.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    error::Result,
    memory::Backing,
    region::{AddressRange, Region},
    units::{Address, Bytes},
};

/// Addresses from here on are no device's.
const NOWHERE: u64 = 1 << 56;

/// See the module's documentation. Regions are numbers, which nobody may read or write at.
#[derive(Debug)]
pub struct Imagined {
    granularity: Bytes,
    most_in_advance: Option<Bytes>,
    next: AtomicU64,
}

impl Imagined {
    /// A device with these properties of another one ([`Backing::granularity`], [`Backing::most_in_advance`]).
    pub fn new(granularity: Bytes, most_in_advance: Option<Bytes>) -> Self {
        Self { granularity, most_in_advance, next: AtomicU64::new(NOWHERE) }
    }
}

impl Backing for Imagined {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let address = Address::new(self.next.fetch_add(bytes.get(), Ordering::Relaxed));
        // SAFETY: the range is what this device calls an allocation: numbers that it gives once, and that its `release`
        // takes back. An arena over it does not read or write its blocks, and no other device gets its regions.
        Ok(unsafe { Region::new(AddressRange { address, bytes }) })
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    /// There is nothing to give back.
    fn release(&self, _: Region) -> Result<()> {
        Ok(())
    }

    fn granularity(&self) -> Bytes {
        self.granularity
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.most_in_advance
    }
}
