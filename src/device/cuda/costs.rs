//! What moving blocks costs on a GPU.

use crate::{
    memory::compaction::{Costs, Remap},
    units::Bytes,
};

/// What a move costs beside its bytes: a copy that is started and waited for, and the engine's view of the new place.
const PER_MOVE_NS: u32 = 20_000;

/// What of the memory's bandwidth a copy gets, in tenths; it reads and writes.
const SHARE_TENTHS: u64 = 8;

/// The bandwidth of a GPU that does not tell: that of a small one of today.
const BANDWIDTH: u64 = 1_000_000_000_000;

/// What an exchange of chunks costs, see [`crate::device::cuda::exchange`].
const PER_EXCHANGE_NS: u32 = 20_000;
const PER_EXCHANGED_CHUNK_NS: u64 = 150_000;

/// What moving costs on a device of this bandwidth, in bytes a second, whose regions are made of chunks or are not.
pub(super) fn costs(bandwidth: Option<u64>, chunk: Option<Bytes>) -> Costs {
    let bandwidth = bandwidth.unwrap_or(BANDWIDTH);
    let copied = u128::from(MIB) * 2 * 10 * 1_000_000_000 / u128::from(bandwidth * SHARE_TENTHS);
    let nanoseconds = |count| u32::try_from(count).unwrap_or(u32::MAX).max(1);
    Costs {
        per_move: PER_MOVE_NS,
        per_mib: nanoseconds(copied),
        remap: chunk.map(|chunk| Remap {
            page: chunk,
            least: chunk,
            per_exchange: PER_EXCHANGE_NS,
            per_mib: nanoseconds(u128::from(PER_EXCHANGED_CHUNK_NS * MIB / chunk.get())),
        }),
    }
}

const MIB: u64 = 1 << 20;
