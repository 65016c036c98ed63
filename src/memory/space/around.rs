//! The part of the layout that the place of one pin is planned on: what is looked at does not grow with the number of
//! blocks.
//!
//! ```text
//!  region    | a b ... c B d ... e . f g h . # # ... i . j ... k l . m # |
//!  drawn     |         c B d     e . f g h . #         .       k l . m #     `B` will be pinned
//!                      neighbours  a wide gap's end   holes    another's
//! ```

use smallvec::SmallVec;

use crate::memory::{
    compaction::layout::{Kind, Layout, Span},
    space::{
        barriers::Gap,
        bins::Bin,
        index::Space,
        node::{Node, NodeId, SpanState},
    },
};

/// Gaps between pinned ones whose upper ends are looked at, the widest first.
const PLACES: usize = 2;
/// Spans below each upper end that are looked at.
const BELOW_AN_END: usize = 64;
/// Of them, below those that make way: what makes way may be pushed there.
const BELOW_A_PLACE: usize = 4;
/// Holes looked at for blocks that make way.
const HOLES: usize = 128;
/// Of them, for each size, so many may be too small.
const TOO_SMALL: usize = 16;
/// Neighbours of the block on either side.
const BESIDE: usize = 2;
/// Most that a drawing has: what was looked at, and a filler before each.
#[cfg(test)]
pub(crate) const MOST_SPANS: usize = 2 * (2 * BESIDE + 1 + PLACES * BELOW_AN_END + HOLES);

/// A block about to be pinned, in a drawing of what is around its possible places.
#[derive(Debug)]
pub(crate) struct Around {
    /// The block, as an index into the layout's spans.
    pub(crate) block: usize,
    /// Where its new place may end, best first: as indices into the layout's spans, of the last span below.
    pub(crate) ends: SmallVec<[usize; PLACES]>,
}

impl Space {
    /// Writes into `layout` the spans around a live one and around its possible places, and holes that may take what
    /// makes way; what is between them as spans that stay. To be called after [`Self::order_pins`]. O(log n): at most
    /// some hundreds of spans are looked at.
    pub(crate) fn draw_around(
        &self,
        id: NodeId,
        movable: &dyn Fn(NodeId) -> bool,
        layout: &mut Layout,
    ) -> Option<Around> {
        let size = self.nodes[id.index()].size;
        let mut drawn: Vec<NodeId> = Vec::with_capacity(BELOW_AN_END + HOLES);
        drawn.push(id);
        drawn.extend(self.below(id).take(BESIDE));
        drawn.extend(self.above(id).take(BESIDE));
        let mut tops: SmallVec<[NodeId; PLACES]> = SmallVec::new();
        let mut leaving: SmallVec<[u32; BELOW_AN_END]> = SmallVec::new();
        for gap in self.barriers.gaps(size).take(PLACES) {
            tops.extend(self.draw_end(gap, id, size, &mut drawn, &mut leaving));
        }
        self.add_holes(&mut leaving, &mut drawn);
        let place = |id: &NodeId| {
            let node = &self.nodes[id.index()];
            (node.region, node.offset)
        };
        drawn.sort_unstable_by_key(place);
        drawn.dedup();
        self.fill(&drawn, movable, layout);
        let index = |id: NodeId| {
            let key = place(&id);
            let found = layout.spans.binary_search_by_key(&key, |span| (span.region, span.offset)).ok()?;
            (layout.spans[found].node == Some(id)).then_some(found)
        };
        Some(Around { block: index(id)?, ends: tops.into_iter().filter_map(index).collect() })
    }

    /// Draws what is below the upper end of `gap`, if few spans cover `size` granules there: the highest of them.
    /// Adds the sizes of the blocks that are in the way to `leaving`.
    fn draw_end(
        &self,
        gap: Gap,
        block: NodeId,
        size: u32,
        drawn: &mut Vec<NodeId>,
        leaving: &mut SmallVec<[u32; BELOW_AN_END]>,
    ) -> Option<NodeId> {
        let top = self.top_of(gap)?;
        let floor = gap.high.checked_sub(size)?;
        let (before, in_the_way) = (drawn.len(), leaving.len());
        let (mut lowest, mut below_the_place) = (gap.high, 0);
        for id in std::iter::once(top).chain(self.below(top)).take(BELOW_AN_END) {
            let Node { offset, size, state, .. } = self.nodes[id.index()];
            below_the_place += usize::from(lowest <= floor);
            if state == SpanState::Pinned || below_the_place > BELOW_A_PLACE {
                break;
            }
            if lowest > floor && state != SpanState::Hole && id != block {
                leaving.push(size);
            }
            lowest = offset;
            drawn.push(id);
        }
        if lowest > floor {
            drawn.truncate(before);
            leaving.truncate(in_the_way);
            return None;
        }
        Some(top)
    }

    /// Draws holes for blocks of these sizes, as many as there are of each: the largest sizes first, and of the holes
    /// those of the tightest bins.
    fn add_holes(&self, leaving: &mut SmallVec<[u32; BELOW_AN_END]>, drawn: &mut Vec<NodeId>) {
        leaving.sort_unstable();
        let mut rest = HOLES;
        for sizes in leaving.chunk_by(|one, other| one == other).rev() {
            let bins = std::iter::successors(Some(Bin::of(sizes[0])), |&bin| self.bins.next_above(bin));
            let mut looks = 0;
            let holes = bins.flat_map(|bin| self.holes_from(self.bins.head(bin)));
            // The first bin has smaller ones, too.
            let holes = holes.take(rest.min(2 * sizes.len() + TOO_SMALL)).inspect(|_| looks += 1);
            let fitting = holes.filter(|(_, node)| node.size >= sizes[0]).take(sizes.len());
            drawn.extend(fitting.map(|(id, _)| id));
            rest -= looks;
        }
    }

    fn fill(&self, drawn: &[NodeId], movable: &dyn Fn(NodeId) -> bool, layout: &mut Layout) {
        layout.granule_shift = self.granule_shift;
        let spans = &mut layout.spans;
        spans.clear();
        for &id in drawn {
            let Node { region, offset, size, state, .. } = self.nodes[id.index()];
            if let Some(before) = spans.last().filter(|before| before.region == region && before.end() < offset) {
                let size = offset - before.end();
                spans.push(Span { region, offset: before.end(), size, kind: Kind::Fixed, node: None });
            }
            let kind = match state {
                SpanState::Hole => Kind::Hole,
                _ if movable(id) => Kind::Movable,
                _ => Kind::Fixed,
            };
            spans.push(Span { region, offset, size, kind, node: Some(id) });
        }
    }

    fn below(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.nodes[id.index()].prev, |id| self.nodes[id.index()].prev)
    }

    fn above(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.nodes[id.index()].next, |id| self.nodes[id.index()].next)
    }
}
