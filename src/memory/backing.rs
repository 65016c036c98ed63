//! What an arena takes its space from, and by which strategy.

use std::fmt;

use crate::{
    error::Result,
    region::{AddressRange, Region},
    units::Bytes,
};

/// How an arena obtains the space that it allocates from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One region of the whole limit, taken at the first allocation.
    Preallocate,
    /// Regions on demand, doubling in size; empty regions are released to the device.
    Growing,
    /// One device allocation per buffer, released on free.
    Platform,
    /// As a TPU: all memory up front, programs' scratch reserved at the bottom while they run, compaction on failure.
    Tpu,
}

impl fmt::Display for Strategy {
    /// The name that settings use.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Preallocate => "preallocate",
            Self::Growing => "growing",
            Self::Platform => "platform",
            Self::Tpu => "tpu",
        })
    }
}

/// A device as the arena sees it: something that allocates regions and releases them.
///
/// `reserve` is called while the arena is locked, so it must not call back into the arena. `release` is called without
/// the lock wherever a block's free is the cause.
pub trait Backing: Send + Sync + fmt::Debug {
    /// Takes exactly `bytes`, a multiple of [`Self::granularity`], aligned to 256 bytes at least. The memory need not
    /// be touched, and should not be: first use pays for its pages.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when the device has no such region, with the device's reason.
    fn reserve(&self, bytes: Bytes) -> Result<Region>;

    /// As [`Self::reserve`], of the one region that an arena takes at its start. A device that has less memory may give
    /// a region whose parts find theirs when they are used.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region>;

    /// Returns a region of this device to it.
    ///
    /// # Errors
    /// The device's reason, when it refuses; the region counts as gone then.
    fn release(&self, region: Region) -> Result<()>;

    /// The unit of regions: a power of two, 256 bytes or more.
    fn granularity(&self) -> Bytes;

    /// How large a region may be for requests that are smaller, to grow less often; `None` is as large as the arena
    /// likes.
    fn most_in_advance(&self) -> Option<Bytes>;
}

/// Releases a region where a failure cannot be returned: it is logged, and the region counts as gone.
pub(super) fn release_or_log(backing: &dyn Backing, region: Region) {
    let AddressRange { address, bytes } = *region;
    if let Err(error) = backing.release(region) {
        log::error!("region of {bytes} at {address} could not be released: {error}");
    }
}
