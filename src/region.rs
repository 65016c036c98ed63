//! Ranges of addresses, and regions: memory of a device, owned.

use std::ops::Deref;

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

/// Where it lies.
impl Deref for Region {
    type Target = AddressRange;

    fn deref(&self) -> &AddressRange {
        &self.0
    }
}
