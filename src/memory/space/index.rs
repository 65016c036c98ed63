//! The index itself; see the module above.

use std::num::NonZeroU32;

use crate::{
    error::{Error, Result},
    memory::space::{
        barriers::Barriers,
        bins::{Bin, Bins},
        largest::Largest,
        node::{End, MIN_GRANULE, Node, NodeId, RegionId, Span, SpanState},
    },
    region::AddressRange,
    units::{Address, Bytes},
};

/// Holes looked at before the search moves on. 16 gave exact best fit's capacity on all recorded traces; one gave
/// 6.5 points more on one of them.
const PROBES: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct RegionRecord {
    pub(super) region: AddressRange,
    /// The span of the lowest address: splitting and coalescing both keep the lower node.
    pub(super) first: NodeId,
    /// The span of the highest address.
    pub(super) last: NodeId,
    /// Spans other than holes.
    pub(super) taken: u32,
}

/// The free-space index over any number of regions.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// A granule is `1 << granule_shift` bytes.
    pub(super) granule_shift: u32,
    /// Element 0 is never used: see [`NodeId`].
    pub(super) nodes: Vec<Node>,
    pub(super) vacant: Option<NodeId>,
    pub(super) regions: Vec<Option<RegionRecord>>,
    pub(super) bins: Bins<NodeId>,
    largest: Largest,
    /// The pinned spans.
    pub(super) barriers: Barriers,
    /// Bytes in holes.
    pub(super) free: Bytes,
    /// Bytes in reserved spans.
    pub(super) reserved: Bytes,
}

impl Space {
    /// An empty index for regions of up to `largest_region`.
    ///
    /// The granule is 256 bytes up to 1 TiB and doubles with each doubling beyond, because offsets have 32 bits.
    pub(crate) fn new(largest_region: Bytes) -> Self {
        let mut granule_shift = MIN_GRANULE.get().ilog2();
        while largest_region.get() >> granule_shift > u64::from(u32::MAX) {
            granule_shift += 1;
        }
        let unused = Node {
            offset: 0,
            size: 0,
            prev: None,
            next: None,
            bin_prev: None,
            bin_next: None,
            region: RegionId(0),
            state: SpanState::Vacant,
        };
        Self {
            granule_shift,
            nodes: vec![unused],
            vacant: None,
            regions: Vec::new(),
            bins: Bins::new(),
            largest: Largest::default(),
            barriers: Barriers::default(),
            free: Bytes::ZERO,
            reserved: Bytes::ZERO,
        }
    }

    /// The unit of sizes and offsets.
    pub(crate) fn granule(&self) -> Bytes {
        Bytes::new(1 << self.granule_shift)
    }

    /// Bytes that no block owns. O(1).
    pub(crate) fn free_bytes(&self) -> Bytes {
        self.free + self.reserved
    }

    /// The first address of a span.
    pub(crate) fn address(&self, id: NodeId) -> Address {
        let node = &self.nodes[id.index()];
        self.base(node.region) + self.bytes(node.offset)
    }

    /// The size of a span, a multiple of the granule.
    pub(crate) fn size(&self, id: NodeId) -> Bytes {
        self.bytes(self.nodes[id.index()].size)
    }

    /// Adds `region` as one hole. O(1) but for the rare growth of the table of regions.
    ///
    /// # Errors
    /// `INTERNAL` for a region that is empty, not made of whole granules, not aligned to 256 bytes, longer than
    /// promised to [`Self::new`], or the 65,537th.
    pub(crate) fn add_region(&mut self, region: AddressRange) -> Result<RegionId> {
        let size = region.bytes.get() >> self.granule_shift;
        let size = u32::try_from(size).ok().filter(|&size| size != 0 && region.bytes.is_multiple_of(self.granule()));
        let (Some(size), true) = (size, region.address.is_aligned_to(MIN_GRANULE)) else {
            let granule = self.granule();
            return Err(Error::internal(format!(
                "region of {} bytes at {}: expected whole granules of {granule}, fewer than 2^32, aligned to 256 bytes",
                region.bytes.get(),
                region.address
            )));
        };
        let slot = self.regions.iter().position(Option::is_none).unwrap_or(self.regions.len());
        let id = RegionId(u16::try_from(slot).map_err(|_| Error::internal("more than 65536 regions in one space"))?);
        // Room for the blocks of a usual model, so that the first steps do not stop to move the table.
        self.nodes.reserve(1024);
        let first = self.new_node(Node {
            offset: 0,
            size,
            prev: None,
            next: None,
            bin_prev: None,
            bin_next: None,
            region: id,
            state: SpanState::Hole,
        });
        let record = Some(RegionRecord { region, first, last: first, taken: 0 });
        match self.regions.get_mut(slot) {
            Some(place) => *place = record,
            None => self.regions.push(record),
        }
        self.file(first);
        self.barriers.add_region(id, size);
        Ok(id)
    }

    /// Removes a region in which nothing is taken, and returns it. O(1).
    ///
    /// # Errors
    /// `INTERNAL` when the region is unknown or holds a block; then nothing changes.
    pub(crate) fn remove_region(&mut self, id: RegionId) -> Result<AddressRange> {
        let slot = self.regions.get_mut(usize::from(id.0));
        let Some(record) = slot.and_then(|slot| slot.take_if(|record| record.taken == 0)) else {
            return Err(Error::internal(format!("region {} is unknown or holds blocks", id.0)));
        };
        // Holes coalesce at once, so a region without blocks is one hole.
        self.barriers.remove_region(id, self.nodes[record.first.index()].size);
        self.unfile(record.first);
        self.forget_node(record.first);
        Ok(record.region)
    }

    /// Takes `size` bytes, rounded up to granules, and returns their span; `None` when no hole is large enough.
    ///
    /// O(1) when any larger hole exists (at most 2 x 16 holes are looked at), otherwise up to all holes of one bin.
    pub(crate) fn allocate(&mut self, size: Bytes, end: End) -> Option<NodeId> {
        let need = self.granules(size)?;
        let id = match end {
            End::Low => self.find(need),
            End::High => self.find_last(need).or_else(|| self.find(need)),
        }?;
        self.unfile(id);
        let node = self.nodes[id.index()];
        let rest = node.size - need;
        let taken = match (rest, end) {
            (0, _) => id,
            (_, End::Low) => {
                let upper = self.split(id, need);
                self.file(upper);
                id
            }
            (_, End::High) => {
                let upper = self.split(id, rest);
                self.file(id);
                upper
            }
        };
        self.nodes[taken.index()].state = SpanState::Live;
        self.record_mut(node.region).taken += 1;
        Some(taken)
    }

    /// Marks a live span as retired: its owner let go, the device may still use it. O(1), of a pinned one O(log n).
    pub(crate) fn retire(&mut self, id: NodeId) {
        self.unpin(id);
        self.nodes[id.index()].state = SpanState::Retired;
    }

    /// Takes back what [`Self::retire`] said: the span has an owner again. O(1).
    pub(crate) fn reuse(&mut self, id: NodeId) {
        self.nodes[id.index()].state = SpanState::Live;
    }

    /// Marks a taken span as one that stays where it is, whatever was said of it before. O(1), amortized O(log n).
    pub(crate) fn pin(&mut self, id: NodeId) {
        let state = &mut self.nodes[id.index()].state;
        if *state != SpanState::Pinned {
            *state = SpanState::Pinned;
            if self.barriers.add(id) {
                self.order_pins();
            }
        }
    }

    /// Puts in order the spans that were pinned since this was called last, as [`Self::draw_around`] needs it. O(log n)
    /// for each of at most 8.
    #[cold]
    pub(crate) fn order_pins(&mut self) {
        while let Some(id) = self.barriers.take_latest() {
            let Node { offset, size, region, .. } = self.nodes[id.index()];
            self.barriers.insert(region, offset, offset + size, self.region_size(region), id);
        }
    }

    /// Takes back what [`Self::pin`] said, if it said so. O(1) for a late pin, else O(log n).
    pub(crate) fn unpin(&mut self, id: NodeId) {
        let state = &mut self.nodes[id.index()].state;
        if *state == SpanState::Pinned {
            *state = SpanState::Live;
            if !self.barriers.forget(id) {
                self.forget_pin(id);
            }
        }
    }

    #[cold]
    fn forget_pin(&mut self, id: NodeId) {
        let Node { offset, size, region, next, .. } = self.nodes[id.index()];
        self.barriers.remove(region, offset, offset + size, self.region_size(region), next);
    }

    /// Frees a live or retired span and joins it with the holes beside it; the region, when nothing in it is
    /// taken any more. O(1), of a pinned one O(log n).
    pub(crate) fn free(&mut self, mut id: NodeId) -> Option<RegionId> {
        self.unpin(id);
        let Node { prev, next, region, .. } = self.nodes[id.index()];
        if let Some(next) = next.filter(|&next| self.is_hole(next)) {
            self.unfile(next);
            self.absorb_next(id);
        }
        if let Some(prev) = prev.filter(|&prev| self.is_hole(prev)) {
            self.unfile(prev);
            self.absorb_next(prev);
            id = prev;
        }
        self.nodes[id.index()].state = SpanState::Hole;
        self.file(id);
        let record = self.record_mut(region);
        record.taken -= 1;
        (record.taken == 0).then_some(region)
    }

    /// The largest hole. O(1), but O(holes in the last bin) where the last hole of the largest size has gone since.
    pub(crate) fn largest_hole(&self) -> Bytes {
        if let Some(size) = self.largest.get() {
            return self.bytes(size);
        }
        let (mut size, mut count) = (0, 0);
        for (_, node) in self.holes_from(self.bins.last().and_then(|bin| self.bins.head(bin))) {
            if node.size > size {
                (size, count) = (node.size, 0);
            }
            count += u32::from(node.size == size);
        }
        self.largest.set(size, count);
        self.bytes(size)
    }

    /// The size of the hole that freeing the span would leave. O(1).
    pub(crate) fn hole_after_free(&self, id: NodeId) -> Bytes {
        let node = &self.nodes[id.index()];
        let beside = [node.prev, node.next].into_iter().flatten().filter(|&id| self.is_hole(id));
        self.size(id) + beside.map(|id| self.size(id)).sum()
    }

    /// The regions, lowest number first.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (RegionId, AddressRange)> {
        let records = self.regions.iter().enumerate();
        records.filter_map(|(slot, record)| record.map(|record| (RegionId(slot as u16), record.region)))
    }

    /// The region `id`.
    pub(crate) fn region(&self, id: RegionId) -> Option<AddressRange> {
        self.regions.get(usize::from(id.0)).copied().flatten().map(|record| record.region)
    }

    /// The size of a span's region when nothing else in it is taken. O(1).
    #[inline]
    pub(crate) fn sole_block_of(&self, id: NodeId) -> Option<Bytes> {
        let record = self.regions[usize::from(self.nodes[id.index()].region.0)].as_ref()?;
        if record.taken == 1 { Some(record.region.bytes) } else { None }
    }

    /// The regions in which nothing is taken.
    pub(crate) fn empty_regions(&self) -> impl Iterator<Item = (RegionId, AddressRange)> {
        self.regions().filter(|(id, _)| self.regions[usize::from(id.0)].is_some_and(|record| record.taken == 0))
    }

    /// The spans of a region by address; none for an unknown region.
    pub(crate) fn spans(&self, region: RegionId) -> impl Iterator<Item = Span> {
        let mut next = self.regions.get(usize::from(region.0)).copied().flatten().map(|record| record.first);
        std::iter::from_fn(move || {
            let id = next?;
            let node = &self.nodes[id.index()];
            next = node.next;
            Some(Span { address: self.address(id), size: self.bytes(node.size), state: node.state })
        })
    }

    /// `size` in granules; `None` when it needs more than a region can have. A request of nothing takes one.
    pub(super) fn granules(&self, size: Bytes) -> Option<u32> {
        let size = size.checked_round_up(self.granule())?.get() >> self.granule_shift;
        u32::try_from(size.max(1)).ok()
    }

    pub(super) fn bytes(&self, granules: u32) -> Bytes {
        Bytes::new(u64::from(granules) << self.granule_shift)
    }

    pub(super) fn base(&self, region: RegionId) -> Address {
        self.regions[usize::from(region.0)].map_or(Address::new(0), |record| record.region.address)
    }

    /// Granules of a region.
    fn region_size(&self, region: RegionId) -> u32 {
        let record = self.regions[usize::from(region.0)].as_ref();
        // No region has more than 2^32 - 1 granules.
        record.map_or(0, |record| (record.region.bytes.get() >> self.granule_shift) as u32)
    }

    pub(super) fn record_mut(&mut self, region: RegionId) -> &mut RegionRecord {
        // A region leaves the table only when none of its spans is taken, and only spans name regions.
        self.regions[usize::from(region.0)].as_mut().expect("a taken span keeps its region in the table")
    }

    pub(super) fn is_hole(&self, id: NodeId) -> bool {
        self.nodes[id.index()].state == SpanState::Hole
    }

    fn find(&self, need: u32) -> Option<NodeId> {
        let own = Bin::of(need);
        let (found, mut rest) = self.best_of(self.bins.head(own), need);
        if found.is_some() {
            return found;
        }
        if let Some(above) = self.bins.next_above(own) {
            return self.best_of(self.bins.head(above), need).0;
        }
        while rest.is_some() {
            let (found, further) = self.best_of(rest, need);
            if found.is_some() {
                return found;
            }
            rest = further;
        }
        None
    }

    /// The best hole for `need` among [`PROBES`] of a bin's list from `head` on, and where the list goes on.
    fn best_of(&self, head: Option<NodeId>, need: u32) -> (Option<NodeId>, Option<NodeId>) {
        let mut best = None;
        let mut next = head;
        for _ in 0..PROBES {
            let Some(id) = next else { break };
            let node = &self.nodes[id.index()];
            next = node.bin_next;
            let key = (node.size, node.region, node.offset);
            if node.size >= need && best.is_none_or(|(best, _)| key < best) {
                best = Some((key, id));
            }
        }
        (best.map(|(_, id)| id), next)
    }

    /// The largest hole among [`PROBES`] of the last bin, the one of the higher address if two are equal.
    fn find_last(&self, need: u32) -> Option<NodeId> {
        let holes = self.holes_from(self.bins.head(self.bins.last()?)).take(PROBES);
        let fitting = holes.filter(|(_, node)| node.size >= need);
        fitting.max_by_key(|(_, node)| (node.size, node.region, node.offset)).map(|(id, _)| id)
    }

    pub(super) fn holes_from(&self, head: Option<NodeId>) -> impl Iterator<Item = (NodeId, &Node)> {
        std::iter::successors(head, |id| self.nodes[id.index()].bin_next).map(|id| (id, &self.nodes[id.index()]))
    }

    /// Puts a hole at the head of its bin: what was freed last is warmest in the caches.
    pub(super) fn file(&mut self, id: NodeId) {
        let size = self.nodes[id.index()].size;
        let bin = Bin::of(size);
        let head = self.bins.head(bin);
        if let Some(head) = head {
            self.nodes[head.index()].bin_prev = Some(id);
        }
        let node = &mut self.nodes[id.index()];
        node.state = SpanState::Hole;
        (node.bin_prev, node.bin_next) = (None, head);
        self.bins.set_head(bin, Some(id));
        self.largest.came(size);
        self.free += self.bytes(size);
    }

    /// Takes a hole out of its bin.
    pub(super) fn unfile(&mut self, id: NodeId) {
        let Node { size, bin_prev, bin_next, .. } = self.nodes[id.index()];
        match bin_prev {
            Some(before) => self.nodes[before.index()].bin_next = bin_next,
            None => self.bins.set_head(Bin::of(size), bin_next),
        }
        if let Some(after) = bin_next {
            self.nodes[after.index()].bin_prev = bin_prev;
        }
        self.largest.went(size);
        self.free -= self.bytes(size);
    }

    /// Cuts a span that is in no bin after `keep` granules, and returns the upper part.
    pub(super) fn split(&mut self, id: NodeId, keep: u32) -> NodeId {
        let node = self.nodes[id.index()];
        let upper = self.new_node(Node {
            offset: node.offset + keep,
            size: node.size - keep,
            prev: Some(id),
            next: node.next,
            bin_prev: None,
            bin_next: None,
            region: node.region,
            state: SpanState::Hole,
        });
        match node.next {
            Some(after) => self.nodes[after.index()].prev = Some(upper),
            None => self.record_mut(node.region).last = upper,
        }
        let lower = &mut self.nodes[id.index()];
        lower.size = keep;
        lower.next = Some(upper);
        upper
    }

    /// Joins a span with the one above it; both are in no bin.
    pub(super) fn absorb_next(&mut self, id: NodeId) {
        let Some(upper) = self.nodes[id.index()].next else { return };
        let Node { size, next, region, .. } = self.nodes[upper.index()];
        let lower = &mut self.nodes[id.index()];
        lower.size += size;
        lower.next = next;
        match next {
            Some(after) => self.nodes[after.index()].prev = Some(id),
            None => self.record_mut(region).last = id,
        }
        self.forget_node(upper);
    }

    fn new_node(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.vacant {
            self.vacant = self.nodes[id.index()].next;
            self.nodes[id.index()] = node;
            return id;
        }
        // 2^32 nodes would describe 2^32 granules and need 128 GiB themselves; element 0 keeps the number above zero.
        let id = u32::try_from(self.nodes.len()).ok().and_then(NonZeroU32::new).expect("fewer than 2^32 nodes");
        self.nodes.push(node);
        NodeId(id)
    }

    fn forget_node(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.index()];
        node.state = SpanState::Vacant;
        node.next = self.vacant;
        self.vacant = Some(id);
    }
}
