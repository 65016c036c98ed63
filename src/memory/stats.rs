//! What an arena knows about itself in numbers.

use std::time::Duration;

use crate::units::Bytes;

/// Numbers of one arena at one instant; taken together they are consistent.
///
/// `bytes_in_use + pending_bytes + slack_bytes + reserved_bytes + free_bytes == pool_bytes`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sizes asked for, summed over live blocks.
    pub bytes_in_use: Bytes,
    /// Sizes asked for, summed over retired blocks: they come back when the device has finished with them.
    pub pending_bytes: Bytes,
    /// What live and retired blocks take beyond their sizes: rounding to granules, slots or the device's unit.
    pub slack_bytes: Bytes,
    /// Bytes of the pool that no block holds, regions on their way back to the device included.
    pub free_bytes: Bytes,
    /// Bytes held from the device.
    pub pool_bytes: Bytes,
    /// The highest `bytes_in_use`, with the scratch of a program that began then ([`super::Arena::note_launch`]), since
    /// the start or the last [`super::Arena::clear_peaks`].
    pub peak_bytes_in_use: Bytes,
    /// The highest `bytes_in_use + pending_bytes` since then, with such scratch: what no other array could have.
    pub peak_used_bytes: Bytes,
    /// The highest `pool_bytes` since then.
    pub peak_pool_bytes: Bytes,
    /// Allocations that succeeded since then.
    pub num_allocs: u64,
    /// The largest size asked for and given since then.
    pub largest_alloc_size: Bytes,
    /// Blocks that live now.
    pub live_blocks: u64,
    /// Blocks that are retired now.
    pub pending_blocks: u64,
    /// The largest hole in the pool as it is. Zero for `platform`, whose pool has no holes.
    pub largest_free_block: Bytes,
    /// The largest request that would succeed now, holes and growth up to the limit considered. Only the device's own
    /// refusal, which is not known before it is asked, can make it less.
    pub largest_request: Bytes,
    /// What is kept at the bottom of the pool for programs' scratch.
    pub reserved_bytes: Bytes,
    /// The highest `reserved_bytes` since the start or the last [`super::Arena::clear_peaks`].
    pub peak_reserved_bytes: Bytes,
    /// Sizes asked for, summed over blocks whose address an outsider holds; part of `bytes_in_use`.
    pub pinned_bytes: Bytes,
    /// Blocks that are pinned now.
    pub pinned_blocks: u64,
    /// Compactions that moved a block.
    pub compactions: u64,
    /// Blocks that were moved out of the way because they were about to be pinned.
    pub migrations: u64,
    /// Blocks moved, each time that one was.
    pub moves: u64,
    /// Their sizes asked for, summed.
    pub moved_bytes: Bytes,
    /// The longest time that planning a compaction took: the arena is locked meanwhile.
    pub longest_plan: Duration,
    /// Sizes asked for and given, summed over all allocations since the start.
    pub allocated_total: Bytes,
    /// The part of them that was freed again.
    pub freed_total: Bytes,
    /// Allocations since the start.
    pub allocations_total: u64,
    /// Frees since the start.
    pub frees_total: u64,
    /// The highest `pinned_bytes` since the start or the last [`super::Arena::clear_peaks`].
    pub peak_pinned_bytes: Bytes,
    /// Sizes of blocks pinned, summed over all times that one was, since the start.
    pub pinned_total: Bytes,
    /// By how much `reserved_bytes` ever rose, summed since the start.
    pub reserved_total: Bytes,
    /// What `pool_bytes` never exceeds.
    pub limit: Bytes,
}

impl Stats {
    /// What the pool may still grow by.
    pub fn growth(&self) -> Bytes {
        self.limit.saturating_sub(self.pool_bytes)
    }

    /// What is free, or may be: in however many pieces.
    pub fn available(&self) -> Bytes {
        self.free_bytes + self.growth()
    }
}
