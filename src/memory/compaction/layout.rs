//! The snapshot that a plan is made from.

use crate::memory::space::node::{NodeId, RegionId};

/// What a plan may do with a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No block covers it.
    Hole,
    /// A block that may move.
    Movable,
    /// A block that stays: pinned, in use, or retired.
    Fixed,
}

/// A part of a region. Offsets and sizes count granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) region: RegionId,
    pub(crate) offset: u32,
    pub(crate) size: u32,
    pub(crate) kind: Kind,
    /// What the index calls it; nothing to the planner.
    pub(crate) node: Option<NodeId>,
}

/// All spans, by region and offset. They cover each region without a gap; two holes of a region never touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) spans: Vec<Span>,
    /// A granule is `1 << granule_shift` bytes. Regions begin at page boundaries.
    pub(crate) granule_shift: u32,
}

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) region: RegionId,
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// Where something begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) region: RegionId,
    pub(super) offset: u32,
}

impl Span {
    /// Where it begins.
    pub(super) fn spot(&self) -> Spot {
        Spot { region: self.region, offset: self.offset }
    }

    /// The first granule behind it. A region has fewer than 2^32 granules.
    pub(in crate::memory) fn end(&self) -> u32 {
        self.offset.saturating_add(self.size)
    }

    pub(super) fn is_hole(&self) -> bool {
        self.kind == Kind::Hole
    }

    pub(super) fn is_movable(&self) -> bool {
        self.kind == Kind::Movable
    }
}
