//! What a space is made of: nodes, each of which describes one span of a region.

use std::num::NonZeroU32;

use crate::units::{Address, Bytes};

/// The smallest granule. XLA's kernels may assume 64 bytes on CPU and 256 on GPU (`kMinAllocationBits` of its BFC).
pub(crate) const MIN_GRANULE: Bytes = Bytes::new(256);

/// A node's number. Zero is no node, so that an optional link takes four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(super) NonZeroU32);

/// A region's number in its space; numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RegionId(pub(in crate::memory) u16);

impl RegionId {
    /// The number, for tables beside this one.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What is known about the bytes of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanState {
    /// No block owns them.
    Hole,
    /// A block owns them.
    Live,
    /// A block owns them, and an outsider holds their address: they stay where they are.
    Pinned,
    /// Their owner let go; the device may still use them.
    Retired,
    /// A compaction keeps them out of circulation: no block owns them, none is placed there. They count as free.
    Reserved,
    /// The node describes nothing and waits for reuse.
    Vacant,
}

/// From which end of a hole a block is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The lower addresses: the rule for ordinary blocks.
    Low,
    /// The upper end of the largest hole: for what stays long, so that it does not split the space.
    High,
}

/// One span of a region, as `Space::spans` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) address: Address,
    pub(crate) size: Bytes,
    pub(crate) state: SpanState,
}

/// A span of a region, in granules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) offset: u32,
    pub(super) size: u32,
    /// Neighbours by address. A vacant node links to the next vacant one by `next`.
    pub(super) prev: Option<NodeId>,
    pub(super) next: Option<NodeId>,
    /// Neighbours in the bin; only a hole has them.
    pub(super) bin_prev: Option<NodeId>,
    pub(super) bin_next: Option<NodeId>,
    pub(super) region: RegionId,
    pub(super) state: SpanState,
}

const _: () = assert!(size_of::<Node>() <= 32, "a node's size is a promise of the module's documentation");

impl NodeId {
    /// The number, for tables beside this one.
    pub(crate) fn index(self) -> usize {
        self.0.get() as usize
    }
}
