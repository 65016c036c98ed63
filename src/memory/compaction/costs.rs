//! What moving costs on a device.

use crate::units::Bytes;

/// What it costs to move blocks; all times in nanoseconds. The planner compares plans by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Of any move, however small: the engine's new view and the end of the old one.
    pub per_move: u32,
    /// Of copying one MiB.
    pub per_mib: u32,
    /// Exchanging pages instead of copying, where the device can.
    pub remap: Option<Remap>,
}

/// Exchanging pages instead of copying them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// Source and destination must lie alike within a page of this size.
    pub page: Bytes,
    /// Blocks below this size are copied.
    pub least: Bytes,
    /// Of each exchange.
    pub per_exchange: u32,
    /// Of each MiB exchanged.
    pub per_mib: u32,
}

impl Costs {
    /// A device that only copies, at 20 GB/s: the host's memory as it was measured.
    pub const COPY: Self = Self { per_move: 2_000, per_mib: 50_000, remap: None };

    /// Of moving one block of `granules` by copying it.
    pub(crate) fn copy(&self, layout: &super::Layout, granules: u32) -> u64 {
        let bytes = u128::from(granules) << layout.granule_shift;
        let nanos = (bytes * u128::from(self.per_mib)) >> 20;
        u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(u64::from(self.per_move))
    }
}
