//! A device that nobody has, behind books in which it is tried what would happen.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    error::{Code, Error, Result},
    memory::backing::Backing,
    region::{Nowhere, Region},
    units::Bytes,
};

/// See the module's documentation. Regions are numbers, which nobody may read or write at.
#[derive(Debug)]
pub(super) struct Imagined {
    granularity: Bytes,
    most_in_advance: Option<Bytes>,
    nowhere: Nowhere,
    /// What it has, less what was taken.
    left: AtomicU64,
}

impl Imagined {
    /// More than any device has, and so little that what is released does not overflow the count.
    pub(super) const ALL: Bytes = Bytes::new(u64::MAX / 2);

    /// A device like this one, that has so much.
    pub(super) fn like(device: &dyn Backing, left: Bytes) -> Self {
        Self {
            granularity: device.granularity(),
            most_in_advance: device.most_in_advance(),
            nowhere: Nowhere::default(),
            left: AtomicU64::new(left.get()),
        }
    }

    /// The same region of this device.
    pub(super) fn copy(&self, region: &Region) -> Region {
        self.nowhere.copy(region)
    }
}

impl Backing for Imagined {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes.get()));
        match taken {
            Ok(_) => Ok(self.nowhere.region(bytes)),
            Err(left) => {
                let left = Bytes::new(left);
                Err(Error::new(Code::ResourceExhausted, format!("{left} left")))
            }
        }
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        self.left.fetch_add(region.bytes.get(), Ordering::Relaxed);
        Ok(())
    }

    fn granularity(&self) -> Bytes {
        self.granularity
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.most_in_advance
    }
}
