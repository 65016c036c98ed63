//! The arrays that may be spilled, in the order in which they go.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, binary_heap::PeekMut},
    sync::Arc,
};

use crate::{
    memory::{
        BlockId,
        next_use::{NextUse, UseKey},
    },
    runtime::device_memory::{DeviceMemory, Resident, Spillable, Tier},
    units::Bytes,
};

/// An array that may go.
pub struct Candidate {
    /// When it is used next.
    pub next: NextUse,
    /// Its copy in the tier, so that it costs less than another.
    pub copy: Option<BlockId>,
    /// The size that was asked for.
    pub size: Bytes,
    /// What the past knows it by.
    pub key: UseKey,
    /// The array.
    pub resident: Arc<dyn Resident>,
    /// Its place among all.
    place: usize,
}

impl Candidate {
    /// The greatest goes first.
    fn rank(&self) -> (NextUse, bool, Bytes, usize) {
        (self.next, self.copy.is_some(), self.size, self.place)
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// The arrays that may go. One goes first whose next use is the furthest away. Of those that are used at the same time,
/// or of which nothing is known, one goes first whose copy is in the tier, and then the larger one.
pub struct Candidates(BinaryHeap<Candidate>);

impl Candidates {
    /// Those of `memory`, as far as `may` accepts their next use. O(n) for n arrays.
    pub fn of(memory: &DeviceMemory, tier: &Tier, may: impl Fn(NextUse) -> bool) -> Self {
        Self::seen(memory, tier, |resident| resident.spillable(), may)
    }

    /// As [`Self::of`], of the arrays that are `seen` as such.
    pub fn seen(
        memory: &DeviceMemory,
        tier: &Tier,
        seen: impl Fn(&Arc<dyn Resident>) -> Option<Spillable>,
        may: impl Fn(NextUse) -> bool,
    ) -> Self {
        let all = memory.residents.all().into_iter();
        let found: Vec<_> = all.filter_map(|resident| seen(&resident).map(|seen| (resident, seen))).collect();
        let keys: Vec<UseKey> = found.iter().map(|(_, seen)| seen.key).collect();
        let uses = tier.record.next_uses(&keys);
        let candidate = |(place, ((resident, seen), next))| {
            let Spillable { copy, size, key } = seen;
            Candidate { next, copy, size, key, resident, place }
        };
        let candidates = found.into_iter().zip(uses).enumerate().map(candidate);
        Self(candidates.filter(|candidate| may(candidate.next)).collect())
    }

    /// The one that goes first, if `may` accepts one; others before it go no more. O(log n) for each.
    pub fn pop_if(&mut self, may: impl Fn(&Candidate) -> bool) -> Option<Candidate> {
        while let Some(first) = self.0.peek_mut() {
            let candidate = PeekMut::pop(first);
            if may(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    /// Those that are left, the one that would go last at the end. O(n log n).
    pub fn last_at_the_end(&self) -> Vec<Arc<dyn Resident>> {
        let mut order: Vec<&Candidate> = self.0.iter().collect();
        order.sort_by(|one, other| other.cmp(one));
        order.into_iter().map(|candidate| Arc::clone(&candidate.resident)).collect()
    }
}
