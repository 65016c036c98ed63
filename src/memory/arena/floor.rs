//! What is kept of the low end of a pool for programs' scratch.

use crate::{
    memory::space::{
        index::Space,
        node::{End, NodeId, RegionId},
    },
    units::Bytes,
};

/// The scratch at the bottom of one arena.
#[derive(Clone, Debug, Default)]
pub(super) struct Floor {
    pub(super) span: Option<NodeId>,
    pub(super) bytes: Bytes,
    /// What the programs under way need, each since the event of the history with this number; the oldest first.
    pub(super) under_way: Vec<(Bytes, u64)>,
}

impl Floor {
    /// The span that is kept.
    pub(super) fn span(&self) -> Option<NodeId> {
        self.span
    }

    /// What is kept now.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// What has to be kept for the programs under way.
    pub(super) fn needed(&self) -> Bytes {
        self.under_way.iter().map(|&(bytes, _)| bytes).max().unwrap_or(Bytes::ZERO)
    }
}

/// No block is moved for scratch up to this size, and up to this part of the pool: it lies at the high end while a
/// block is at the low end.
const LITTLE: Bytes = Bytes::mib(1);
const LITTLE_PART: u64 = 1024;

/// Keeps the lowest `bytes` of `region`, or so many from where `floor` is, in place of it; `None`, and nothing changes,
/// where a block is in the way.
pub(super) fn keep(space: &mut Space, region: RegionId, floor: Option<NodeId>, bytes: Bytes) -> Option<NodeId> {
    let pool = space.region(region)?;
    if let Some(raised) = space.raise_floor(region, floor, bytes) {
        return Some(raised);
    }
    let elsewhere = floor.filter(|&floor| space.address(floor) != pool.address);
    if let Some(elsewhere) = elsewhere
        && let Some(bottom) = space.raise_floor(region, None, bytes)
    {
        space.free(elsewhere);
        return Some(bottom);
    }
    let is_little = bytes <= LITTLE.min(Bytes::new(pool.bytes.get() / LITTLE_PART));
    if is_little { keep_in_hole(space, floor, bytes, End::High) } else { None }
}

/// Keeps `bytes` in a hole, in place of `floor`; `None`, and nothing changes, where no hole has so much.
pub(super) fn keep_in_hole(space: &mut Space, floor: Option<NodeId>, bytes: Bytes, end: End) -> Option<NodeId> {
    let span = space.allocate(bytes, end)?;
    // The region stays: the new span lies in it.
    floor.into_iter().for_each(|floor| _ = space.free(floor));
    Some(span)
}
