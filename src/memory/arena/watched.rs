//! The device of an arena, and how often it was called.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{error::Result, memory::backing::Backing, region::Region, units::Bytes};

/// The device, and how often it was asked: whether regions came or went is seen without looking at them.
#[derive(Debug)]
pub(super) struct Watched {
    device: Box<dyn Backing>,
    /// How often.
    pub(super) calls: AtomicU64,
}

impl Watched {
    pub(super) fn new(device: Box<dyn Backing>) -> Self {
        Self { device, calls: AtomicU64::new(0) }
    }
}

impl Backing for Watched {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.device.reserve(bytes)
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.device.reserve_up_front(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.device.release(region)
    }

    fn granularity(&self) -> Bytes {
        self.device.granularity()
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.device.most_in_advance()
    }
}
