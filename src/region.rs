//! Ranges of addresses, and regions: memory of a device, owned.

use std::{
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::units::{Address, Bytes};

/// A contiguous range of a device's addresses: a number and a length, which own nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange {
    /// The first address.
    pub address: Address,
    /// The length.
    pub bytes: Bytes,
}

/// A contiguous allocation of a device. Owning the value is owning the memory: it cannot be copied, only a device makes
/// one, and [`crate::memory::Backing::release`] consumes it. Dropping it leaks the memory.
#[must_use = "dropping a region leaks its memory"]
#[derive(Debug, PartialEq, Eq)]
pub struct Region(AddressRange);

impl Region {
    /// The token for memory that a device has just allocated.
    ///
    /// # Safety
    /// The range is an allocation of the device that the region will be released to, exactly as that device's `release`
    /// expects it, and no other `Region` covers any of it.
    pub unsafe fn new(range: AddressRange) -> Self {
        Self(range)
    }
}

/// A device without memory, for books in which it is tried what would happen: its regions are numbers, which nobody may
/// read or write at, and it takes back what it gave without a call.
#[derive(Debug)]
pub struct Nowhere {
    next: AtomicU64,
}

impl Default for Nowhere {
    fn default() -> Self {
        // Addresses from here on are no device's.
        Self { next: AtomicU64::new(1 << 56) }
    }
}

impl Nowhere {
    /// A region at addresses that no other one has.
    pub fn region(&self, bytes: Bytes) -> Region {
        let address = Address::new(self.next.fetch_add(bytes.get(), Ordering::Relaxed));
        // SAFETY: the range is what this device calls an allocation, a number that it gives once; it is released to
        // this device, which does nothing for it.
        unsafe { Region::new(AddressRange { address, bytes }) }
    }

    /// A region of this device that lies where `region` lies on another.
    pub fn copy(&self, region: &Region) -> Region {
        // SAFETY: as above. The other `Region` covers the range on its own device, and this one is never released to
        // that; books do not read or write what their blocks lie in.
        unsafe { Region::new(**region) }
    }
}

/// Where it lies.
impl Deref for Region {
    type Target = AddressRange;

    fn deref(&self) -> &AddressRange {
        &self.0
    }
}
