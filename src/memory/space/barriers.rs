//! Where pinned spans lie, so that a block about to be pinned finds its place without a look at the others.
//!
//! ```text
//!  region     |   gap 1   | # # | gap 2 | # |     gap 3     |
//!  clusters                 2                                     touching pinned spans are one
//!  gaps       3, 1, 2                                             by size; all between two clusters or ends
//! ```
//!
//! Each operation is O(log pinned), and only pins, unpins and the ends of pinned spans need one.
//!
//! A span enters the order when a place is looked for, not when it is pinned: most pins are views that are gone before
//! that, and an order that is not in the processor's caches costs such a view more than all else here does.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::memory::space::node::{NodeId, RegionId};

/// Pins that wait for their place in the order; as many are found in one cache line.
const LATEST: usize = 8;

/// Pinned spans that touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cluster {
    high: u32,
    /// The span of its lowest address.
    first: NodeId,
}

/// What lies between two clusters, or between one and an end of the region; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gap {
    pub(crate) size: u32,
    pub(super) region: RegionId,
    pub(super) high: u32,
}

/// The pinned spans of a space.
#[derive(Clone, Debug, Default)]
pub(super) struct Barriers {
    /// By where they begin.
    clusters: BTreeMap<(RegionId, u32), Cluster>,
    gaps: BTreeSet<Gap>,
    /// Pinned spans that are not in order yet.
    latest: SmallVec<[NodeId; LATEST]>,
}

impl Barriers {
    /// A region of `size` granules comes: one gap.
    pub(super) fn add_region(&mut self, region: RegionId, size: u32) {
        self.open(region, 0, size);
    }

    /// A region without a pinned span goes.
    pub(super) fn remove_region(&mut self, region: RegionId, size: u32) {
        self.close(region, 0, size);
    }

    /// The span `node`, which was not, is pinned. Whether spans have to be put in order now: too many wait for it.
    /// O(1).
    pub(super) fn add(&mut self, node: NodeId) -> bool {
        self.latest.push(node);
        self.latest.len() == LATEST
    }

    /// The pinned span `node` is not pinned any more; whether that is all, because it was not in order yet. O(1).
    pub(super) fn forget(&mut self, node: NodeId) -> bool {
        let found = self.latest.iter().rposition(|&id| id == node);
        found.map(|at| self.latest.swap_remove(at)).is_some()
    }

    /// A pinned span that is not in order yet, to be inserted. O(1).
    pub(super) fn take_latest(&mut self) -> Option<NodeId> {
        self.latest.pop()
    }

    /// Puts the pinned span `node` in order: `low..high` of a region of `size` granules.
    pub(super) fn insert(&mut self, region: RegionId, low: u32, high: u32, size: u32, node: NodeId) {
        let (gap_low, gap_high) = (self.end_below(region, low), self.start_above(region, high, size));
        self.close(region, gap_low, gap_high);
        self.open(region, gap_low, low);
        self.open(region, high, gap_high);
        let mut joined = Cluster { high, first: node };
        if gap_high == high
            && let Some(above) = self.clusters.remove(&(region, high))
        {
            joined.high = above.high;
        }
        let below = self.clusters.range_mut(..(region, low)).next_back().filter(|((of, _), _)| *of == region);
        match below {
            Some((_, below)) if below.high == low => below.high = joined.high,
            _ => {
                self.clusters.insert((region, low), joined);
            }
        }
    }

    /// The span at `low..high`, which is in order, is not pinned any more; `above` is the span above it.
    pub(super) fn remove(&mut self, region: RegionId, low: u32, high: u32, size: u32, above: Option<NodeId>) {
        let around = self.clusters.range(..=(region, low)).next_back();
        let Some((&(_, start), &Cluster { high: end, first })) =
            around.filter(|((of, _), cluster)| *of == region && high <= cluster.high)
        else {
            return;
        };
        self.clusters.remove(&(region, start));
        let (gap_low, gap_high) = (self.end_below(region, start), self.start_above(region, end, size));
        let mut freed = (low, high);
        if start < low {
            self.clusters.insert((region, start), Cluster { high: low, first });
        } else {
            self.close(region, gap_low, low);
            freed.0 = gap_low;
        }
        match above {
            Some(first) if high < end => {
                self.clusters.insert((region, high), Cluster { high: end, first });
            }
            _ => {
                self.close(region, high, gap_high);
                freed.1 = gap_high;
            }
        }
        self.open(region, freed.0, freed.1);
    }

    /// The lowest span of the cluster that `offset` lies in, of the spans that are in order.
    pub(super) fn first_of(&self, region: RegionId, offset: u32) -> Option<NodeId> {
        debug_assert!(self.latest.is_empty(), "pinned spans are put in order before a place is looked for");
        let around = self.clusters.range(..=(region, offset)).next_back();
        around.filter(|((of, _), cluster)| *of == region && offset < cluster.high).map(|(_, cluster)| cluster.first)
    }

    /// The gaps of `least` granules and more between spans that are in order, the largest first.
    pub(super) fn gaps(&self, least: u32) -> impl Iterator<Item = Gap> {
        debug_assert!(self.latest.is_empty(), "pinned spans are put in order before a place is looked for");
        self.gaps.iter().rev().copied().take_while(move |gap| gap.size >= least)
    }

    fn end_below(&self, region: RegionId, low: u32) -> u32 {
        let below = self.clusters.range(..(region, low)).next_back();
        below.filter(|((of, _), _)| *of == region).map_or(0, |(_, cluster)| cluster.high)
    }

    fn start_above(&self, region: RegionId, high: u32, size: u32) -> u32 {
        let above = self.clusters.range((region, high)..).next();
        above.filter(|((of, _), _)| *of == region).map_or(size, |(&(_, start), _)| start)
    }

    fn open(&mut self, region: RegionId, low: u32, high: u32) {
        if low < high {
            self.gaps.insert(Gap { size: high - low, region, high });
        }
    }

    fn close(&mut self, region: RegionId, low: u32, high: u32) {
        if low < high {
            self.gaps.remove(&Gap { size: high - low, region, high });
        }
    }
}
