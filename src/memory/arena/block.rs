//! Blocks as callers see them.

use crate::{
    memory::{
        block_table::BlockId,
        provenance::{PinReason, Provenance},
    },
    units::{Address, Bytes},
};

/// A block that the caller holds: `size` bytes from `address` on, aligned to 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its name for `Arena::retire` and `Arena::free`.
    pub id: BlockId,
    /// Its first byte.
    pub address: Address,
    /// The size asked for.
    pub size: Bytes,
}

/// What is known about the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Its owner holds it.
    Live,
    /// Its owner holds it, and an outsider its address.
    Pinned,
    /// Its owner let go; the device may still use it.
    Retired,
}

/// A block as `Arena::blocks` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Id, address and size.
    pub block: Block,
    /// What it takes from the pool: its size and its slack.
    pub held: Bytes,
    /// Live, pinned or retired.
    pub state: BlockState,
    /// Where it came from, as far as the caller said.
    pub provenance: Provenance,
    /// Why it is pinned, where it is.
    pub pin: PinReason,
}

/// How far an arena is: equal to an earlier one of the same arena if no block was freed, retired, pinned or unpinned
/// since, and no scratch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub(super) frees: u64,
    pub(super) pending: Bytes,
    pub(super) pinned: Bytes,
    pub(super) scratch: Bytes,
}
