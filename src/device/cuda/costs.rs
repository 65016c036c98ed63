//! What moving blocks costs on a GPU.

use crate::memory::compaction::Costs;

/// What a move costs beside its bytes: a copy that is started and waited for, and the engine's view of the new place.
const PER_MOVE_NS: u32 = 20_000;

/// What of the memory's bandwidth a copy gets, in tenths; it reads and writes.
const SHARE_TENTHS: u64 = 8;

/// The bandwidth of a GPU that does not tell: that of a small one of today.
const BANDWIDTH: u64 = 1_000_000_000_000;

/// What moving costs on a device of this bandwidth, in bytes a second. Chunks that change places are no cheaper (see
/// [`crate::device::cuda::exchange`]), so no plan is made for them.
pub(super) fn costs(bandwidth: Option<u64>) -> Costs {
    let bandwidth = bandwidth.unwrap_or(BANDWIDTH);
    let copied = u128::from(MIB) * 2 * 10 * 1_000_000_000 / u128::from(bandwidth * SHARE_TENTHS);
    Costs { per_move: PER_MOVE_NS, per_mib: u32::try_from(copied).unwrap_or(u32::MAX).max(1), remap: None }
}

const MIB: u64 = 1 << 20;
