//! What compaction needs of the index: its layout, holes kept out of circulation, blocks at another place.
//!
//! ```text
//!  hold       |   hole   |                          -> |  reserved  |
//!  relocate   | reserved |  block  | reserved |     -> |  block  |        reserved        |
//!  let go     |  block   |     reserved       | hole | -> |  block  |          hole          |
//! ```
//!
//! Reserved spans that touch are one span, as holes are. All of it is for the cold path: O(log n) a call at best.

use std::collections::BTreeMap;

use crate::{
    memory::{
        block_table::BlockId,
        compaction::layout::{Kind, Layout, Run, Span},
        space::{
            barriers::Gap,
            index::Space,
            node::{Node, NodeId, RegionId, SpanState},
        },
    },
    region::AddressRange,
    units::{Address, Bytes},
};

/// Spans looked at to find a pinned block a place.
const PIN_PROBES: usize = 64;

/// Gaps between pinned spans looked at for that.
const WIDEST: usize = 5;

/// The reserved spans of one compaction, by place.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeMap<(RegionId, u32), NodeId>);

impl Space {
    /// Writes into `layout` all regions that hold a block. `movable` has an element for each node. O(spans).
    ///
    /// Neighbours are found by following links, each of which waits for a cache; so a region is walked from both ends
    /// at once, and two waits overlap.
    pub(crate) fn draw(&self, movable: &[Option<BlockId>], layout: &mut Layout) {
        let nodes = &self.nodes[..];
        let draw = |id: NodeId| {
            let node = &nodes[id.index()];
            let kind = match node.state {
                SpanState::Hole => Kind::Hole,
                _ if movable[id.index()].is_some() => Kind::Movable,
                _ => Kind::Fixed,
            };
            Span { region: node.region, offset: node.offset, size: node.size, kind, node: Some(id) }
        };
        let spans = &mut layout.spans;
        layout.granule_shift = self.granule_shift;
        // Filled from both ends; what is between them is of no meaning.
        let filler = Span { region: RegionId(0), offset: 0, size: 0, kind: Kind::Fixed, node: None };
        spans.resize(nodes.len(), filler);
        let mut low = 0;
        for record in self.regions.iter().flatten().filter(|record| record.taken != 0) {
            let mut high = nodes.len();
            let (mut first, mut last) = (record.first, record.last);
            loop {
                spans[low] = draw(first);
                low += 1;
                if first == last {
                    break;
                }
                high -= 1;
                spans[high] = draw(last);
                let (Some(above), Some(below)) = (nodes[first.index()].next, nodes[last.index()].prev) else { break };
                if above == last {
                    break;
                }
                (first, last) = (above, below);
            }
            spans.copy_within(high.., low);
            low += nodes.len() - high;
        }
        spans.truncate(low);
    }

    /// One more than the largest number of a node.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Takes a hole out of circulation. O(log holds).
    pub(crate) fn hold(&mut self, id: NodeId, holds: &mut Holds) {
        if !self.is_hole(id) {
            return;
        }
        self.unfile(id);
        let node = &mut self.nodes[id.index()];
        node.state = SpanState::Reserved;
        let (region, offset, size) = (node.region, node.offset, node.size);
        self.reserved += self.bytes(size);
        self.record_mut(region).taken += 1;
        holds.0.insert((region, offset), id);
    }

    /// Moves a live span to another place: afterwards `to` is live and the old place reserved; the span's node, or
    /// `None` (and nothing changes) when `to` is not covered by reserved granules and the span's own. O(log holds).
    pub(crate) fn relocate(&mut self, id: NodeId, to: Run, holds: &mut Holds) -> Option<NodeId> {
        let Node { offset, size, region, state, .. } = self.nodes[id.index()];
        if state != SpanState::Live || to.size != size || !self.is_clear(id, to, holds) {
            return None;
        }
        // Vacated first, so that a place that overlaps the old one is one reserved span.
        self.nodes[id.index()].state = SpanState::Reserved;
        self.reserved += self.bytes(size);
        holds.0.insert((region, offset), id);
        self.join_reserved(id, holds);
        self.carve(to, holds)
    }

    /// Returns everything held to circulation; the regions in which nothing is taken then. O(holds).
    pub(crate) fn let_go(&mut self, holds: &mut Holds) -> Vec<RegionId> {
        let ids = std::mem::take(&mut holds.0).into_values();
        ids.filter_map(|id| {
            self.reserved -= self.size(id);
            self.free(id)
        })
        .collect()
    }

    /// Cuts a taken span into `parts` (offset within it, size, state; in ascending order) and holes between them; the
    /// parts' nodes. O(parts).
    pub(crate) fn shatter(&mut self, id: NodeId, parts: &[(u32, u32, SpanState)]) -> Vec<NodeId> {
        self.unpin(id);
        let region = self.nodes[id.index()].region;
        let start = self.nodes[id.index()].offset;
        let (mut rest, mut gaps) = (Some(id), Vec::new());
        let mut nodes = Vec::with_capacity(parts.len());
        for &(offset, size, state) in parts {
            let Some(mut current) = rest else { break };
            let before = start + offset - self.nodes[current.index()].offset;
            if before > 0 {
                gaps.push(current);
                current = self.split_taken(current, before, region);
            }
            rest = (self.nodes[current.index()].size > size).then(|| self.split_taken(current, size, region));
            match state {
                SpanState::Pinned => self.pin(current),
                _ => self.nodes[current.index()].state = state,
            }
            nodes.push(current);
        }
        gaps.extend(rest);
        // Parts keep the region in the table, so that no gap is its last taken span.
        gaps.into_iter().for_each(|gap| {
            self.free(gap);
        });
        nodes
    }

    /// Makes the lowest `bytes` of a region taken, `floor` being what is taken there already; the span's node, or
    /// `None` (and nothing changes) when a block is in the way. O(1).
    pub(crate) fn raise_floor(&mut self, region: RegionId, floor: Option<NodeId>, bytes: Bytes) -> Option<NodeId> {
        let need = self.granules(bytes)?;
        let Some(floor) = floor else {
            let first = self.regions.get(usize::from(region.0)).copied().flatten()?.first;
            if !self.is_hole(first) || self.nodes[first.index()].size < need {
                return None;
            }
            self.unfile(first);
            if self.nodes[first.index()].size > need {
                let upper = self.split(first, need);
                self.file(upper);
            }
            self.nodes[first.index()].state = SpanState::Live;
            self.record_mut(region).taken += 1;
            return Some(first);
        };
        let extra = need.checked_sub(self.nodes[floor.index()].size)?;
        let above = self.nodes[floor.index()].next.filter(|&above| self.is_hole(above))?;
        if self.nodes[above.index()].size < extra {
            return None;
        }
        self.unfile(above);
        if self.nodes[above.index()].size > extra {
            let upper = self.split(above, extra);
            self.file(upper);
        }
        self.absorb_next(floor);
        Some(floor)
    }

    /// Frees what a taken span has above `bytes`. O(1).
    pub(crate) fn trim_span(&mut self, id: NodeId, bytes: Bytes) {
        let Node { size, region, .. } = self.nodes[id.index()];
        if let Some(keep) = self.granules(bytes).filter(|&keep| keep < size) {
            let upper = self.split_taken(id, keep, region);
            self.free(upper);
        }
    }

    /// Where a live span lies out of the way of those that move, and in which hole: the upper end of the highest hole
    /// that holds it, unless it lies well already. Looks at [`PIN_PROBES`] spans from the region's upper end down,
    /// pinned spans that touch taken for one, then at the upper ends of the [`WIDEST`] widest gaps between pinned ones.
    pub(crate) fn pinned_end(&mut self, id: NodeId) -> Option<(NodeId, Run)> {
        let Node { size, region, offset, .. } = self.nodes[id.index()];
        if self.lies_beside_pinned(id) {
            return None;
        }
        self.order_pins();
        let holds = |hole: &NodeId| self.is_hole(*hole) && self.nodes[hole.index()].size >= size;
        let last = self.regions.get(usize::from(region.0)).copied().flatten()?.last;
        let down = std::iter::successors(Some(last), |&above| self.below_pinned(above));
        let high = down.take(PIN_PROBES).take_while(|&above| above != id).find(holds);
        let hole = high.or_else(|| {
            let gaps = self.barriers.gaps(size).take(WIDEST);
            let above = gaps.filter(|gap| gap.region == region && gap.high > offset);
            above.filter_map(|gap| self.top_of(gap)).find(holds)
        })?;
        let Run { offset, size: room, .. } = self.run(hole);
        Some((hole, Run { region, offset: offset + room - size, size }))
    }

    /// The span below this one; below all that touch it, if it is pinned. O(log n).
    fn below_pinned(&self, id: NodeId) -> Option<NodeId> {
        let Node { prev, region, offset, state, .. } = self.nodes[id.index()];
        match state {
            SpanState::Pinned => self.nodes[self.barriers.first_of(region, offset)?.index()].prev,
            _ => prev,
        }
    }

    /// The highest span of a gap between pinned spans. O(log n).
    pub(super) fn top_of(&self, gap: Gap) -> Option<NodeId> {
        match self.barriers.first_of(gap.region, gap.high) {
            Some(pinned) => self.nodes[pinned.index()].prev,
            None => self.regions.get(usize::from(gap.region.0)).copied().flatten().map(|record| record.last),
        }
    }

    /// Whether a span that is pinned here divides nothing: another pinned one, or the region's upper end, is its
    /// neighbour. O(1).
    pub(crate) fn lies_beside_pinned(&self, id: NodeId) -> bool {
        let Node { prev, next, .. } = self.nodes[id.index()];
        let pinned = |id: NodeId| self.nodes[id.index()].state == SpanState::Pinned;
        next.is_none_or(pinned) || prev.is_some_and(pinned)
    }

    /// The holes, by region and address. O(spans).
    pub(crate) fn holes(&self) -> impl Iterator<Item = (NodeId, AddressRange)> {
        let spans = self
            .regions
            .iter()
            .flatten()
            .flat_map(|record| std::iter::successors(Some(record.first), |id| self.nodes[id.index()].next));
        spans.filter_map(|id| Some((id, self.hole(id)?)))
    }

    /// Where a hole lies; `None` for a node that is none, or none any more. O(1).
    pub(crate) fn hole(&self, id: NodeId) -> Option<AddressRange> {
        self.is_hole(id).then(|| AddressRange { address: self.address(id), bytes: self.size(id) })
    }

    /// A place as a range of a region, from its first granule on.
    pub(crate) fn run(&self, id: NodeId) -> Run {
        let Node { region, offset, size, .. } = self.nodes[id.index()];
        Run { region, offset, size }
    }

    /// The run of `bytes` from the start of `region` on; `None` for more than a region can have.
    pub(crate) fn bottom(&self, region: RegionId, bytes: Bytes) -> Option<Run> {
        Some(Run { region, offset: 0, size: self.granules(bytes)? })
    }

    /// A size in granules, as [`Self::allocate`] counts it.
    pub(crate) fn need(&self, size: Bytes) -> Option<u32> {
        self.granules(size)
    }

    /// The first address of a run.
    pub(crate) fn start(&self, run: Run) -> Address {
        self.base(run.region) + self.bytes(run.offset)
    }

    /// Whether `to` is covered by one reserved span, or by the span `id` with the reserved ones beside it.
    fn is_clear(&self, id: NodeId, to: Run, holds: &Holds) -> bool {
        let Some(end) = to.offset.checked_add(to.size) else { return false };
        let Node { offset, size, region, prev, next, .. } = self.nodes[id.index()];
        let reserved =
            |id: Option<NodeId>| id.map(|id| &self.nodes[id.index()]).filter(|node| node.state == SpanState::Reserved);
        let low = reserved(prev).map_or(offset, |below| below.offset);
        let high = offset + size + reserved(next).map_or(0, |above| above.size);
        if region == to.region && low <= to.offset && end <= high {
            return true;
        }
        let held = holds.0.range(..=(to.region, to.offset)).next_back().map(|(_, id)| &self.nodes[id.index()]);
        held.is_some_and(|held| held.region == to.region && end <= held.offset + held.size)
    }

    fn split_taken(&mut self, id: NodeId, keep: u32, region: RegionId) -> NodeId {
        let upper = self.split(id, keep);
        self.nodes[upper.index()].state = self.nodes[id.index()].state;
        self.record_mut(region).taken += 1;
        upper
    }

    /// Joins a reserved span with those beside it.
    fn join_reserved(&mut self, id: NodeId, holds: &mut Holds) {
        let Node { region, prev, next, .. } = self.nodes[id.index()];
        let reserved = |space: &Self, id: &NodeId| space.nodes[id.index()].state == SpanState::Reserved;
        if let Some(next) = next.filter(|next| reserved(self, next)) {
            holds.0.remove(&(region, self.nodes[next.index()].offset));
            self.absorb_next(id);
            self.record_mut(region).taken -= 1;
        }
        if let Some(prev) = prev.filter(|prev| reserved(self, prev)) {
            holds.0.remove(&(region, self.nodes[id.index()].offset));
            self.absorb_next(prev);
            self.record_mut(region).taken -= 1;
        }
    }

    /// Makes `to`, which lies in one reserved span, live.
    fn carve(&mut self, to: Run, holds: &mut Holds) -> Option<NodeId> {
        let (_, &id) = holds.0.range(..=(to.region, to.offset)).next_back()?;
        let Node { offset, size, region, .. } = self.nodes[id.index()];
        let before = to.offset.checked_sub(offset)?;
        if region != to.region || before.checked_add(to.size).is_none_or(|end| end > size) {
            return None;
        }
        let mut taken = id;
        if before > 0 {
            taken = self.split_taken(id, before, region);
        } else {
            holds.0.remove(&(region, offset));
        }
        if before + to.size < size {
            let above = self.split_taken(taken, to.size, region);
            holds.0.insert((region, to.offset + to.size), above);
        }
        self.nodes[taken.index()].state = SpanState::Live;
        self.reserved -= self.bytes(to.size);
        Some(taken)
    }
}
