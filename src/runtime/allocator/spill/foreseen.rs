//! Which arrays stay because a tier has no room for them, where nothing else is under way: known before one goes.
//!
//! ```text
//!  spill.rs    arrays that the call does not use go in their order, while they fit
//!  launch.rs   then its arguments go, too; they come back, and others go where they were
//! ```

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    memory::{Arena, BlockId},
    runtime::{
        allocator::spill::candidates::{Candidate, Candidates},
        device_memory::{DeviceMemory, Resident, Spillable, Tier},
    },
    units::Bytes,
};

/// The arrays of a memory, and the tier that they may go to.
pub struct Foreseen<'a> {
    /// In the order in which they go.
    arrays: Vec<Array>,
    tier: &'a Tier,
}

/// One of them.
#[derive(Clone, Copy)]
struct Array {
    block: BlockId,
    size: Bytes,
    /// Whether it is an argument of the call.
    is_own: bool,
    /// Its copy that is kept in the tier.
    copy: Option<BlockId>,
}

impl<'a> Foreseen<'a> {
    /// Those of `memory`, of which these are the call's `own` arguments. O(n log n) for n arrays.
    pub fn of(memory: &DeviceMemory, tier: &'a Tier, own: &FxHashSet<BlockId>) -> Self {
        // Arguments that are wanted by now may go later.
        let seen = |resident: &Arc<dyn Resident>| {
            let argument = || {
                let occupied = resident.occupied().filter(|occupied| own.contains(&occupied.block))?;
                Some(Spillable { size: occupied.size, key: resident.use_key()?, copy: resident.copy() })
            };
            resident.spillable().or_else(argument)
        };
        let mut candidates = Candidates::seen(memory, tier, seen, |_| true);
        let mut arrays = Vec::new();
        while let Some(Candidate { copy, size, resident, .. }) = candidates.pop_if(|_| true) {
            let Some(block) = resident.occupied().map(|occupied| occupied.block) else { continue };
            arrays.push(Array { block, size, is_own: own.contains(&block), copy });
        }
        Self { arrays, tier }
    }

    /// What stays beside the arguments, which stay, too. Those that are `waiting` in the tier come back. O(n) and the
    /// tier's allocations.
    pub fn beside_arguments(&self, waiting: &[(Bytes, BlockId)]) -> FxHashSet<BlockId> {
        let (own, others) = self.arrays.iter().partition(|array| array.is_own);
        let mut filling = Filling::begin(self.tier, others, &own);
        filling.fill();
        filling.come_back(waiting);
        filling.fill();
        filling.left.into_iter().chain(own).map(|array| array.block).collect()
    }

    /// The same where the arguments go as well: those that do are not among what stays, and come back.
    pub fn after_arguments(&self, waiting: &[(Bytes, BlockId)]) -> FxHashSet<BlockId> {
        let mut filling = Filling::begin(self.tier, self.arrays.clone(), &[]);
        filling.fill();
        let (own, others) = filling.left.iter().partition(|array| array.is_own);
        filling.left = others;
        filling.come_back(waiting);
        filling.fill();
        filling.left.into_iter().chain(own).map(|array| array.block).collect()
    }
}

/// A tier that is imagined, and what is to go there.
struct Filling {
    tier: Arena,
    /// In the order in which it goes.
    left: Vec<Array>,
    /// Copies of what does not go: they give way first, from the end on.
    copies: Vec<(Bytes, BlockId)>,
    /// What all copies take of arrays that are on the device.
    copied: Bytes,
    /// Arguments that went.
    own: Vec<(Bytes, BlockId)>,
}

impl Filling {
    /// Arrays are `left`; those that are `staying` may have copies, too.
    fn begin(tier: &Tier, left: Vec<Array>, staying: &[Array]) -> Self {
        let copies: Vec<_> = staying.iter().rev().filter_map(|array| Some((array.size, array.copy?))).collect();
        let others = left.iter().filter(|array| array.copy.is_some()).map(|array| array.size);
        let copied = copies.iter().map(|&(size, _)| size).chain(others).sum();
        Self { tier: tier.memory.imagined(), left, copies, copied, own: Vec::new() }
    }

    /// Arrays go while there is room, as in [`super::tier_room`]. O(n) for n arrays, and the tier's allocations.
    fn fill(&mut self) {
        let mut order = std::mem::take(&mut self.left);
        // From here on the copies have given way; and nothing as large as this has room.
        let (mut end, mut refused) = (order.len(), Bytes::MAX);
        for at in 0..order.len() {
            let array = order[at];
            let block = match array.copy {
                Some(copy) => {
                    self.copied -= array.size;
                    Some(copy)
                }
                None if array.size >= refused => None,
                None => self.take(array.size, &mut order[at + 1..], at + 1, &mut end),
            };
            match block {
                Some(block) if array.is_own => self.own.push((array.size, block)),
                Some(_) => {}
                None => {
                    refused = refused.min(array.size);
                    self.left.push(array);
                }
            }
        }
    }

    /// A block of the tier. Copies give way: of those of `others`, which are in their order `from` there on, the last.
    fn take(&mut self, size: Bytes, others: &mut [Array], from: usize, end: &mut usize) -> Option<BlockId> {
        loop {
            if let Ok(block) = self.tier.allocate(size) {
                return Some(block.id);
            }
            if self.tier.stats().available() + self.copied < size {
                return None;
            }
            let last = || {
                while *end > from {
                    *end -= 1;
                    let other = &mut others[*end - from];
                    if let Some(copy) = other.copy.take() {
                        return Some((other.size, copy));
                    }
                }
                None
            };
            let (freed, copy) = self.copies.pop().or_else(last)?;
            self.copied -= freed;
            // What the tier does not know any more has gone by now.
            drop(self.tier.free(copy));
        }
    }

    /// Arguments come back: those that went, and those that are `waiting`. Copies of them are kept.
    fn come_back(&mut self, waiting: &[(Bytes, BlockId)]) {
        let before = self.copies.len();
        self.copies.append(&mut self.own);
        self.copies.extend_from_slice(waiting);
        self.copied += self.copies[before..].iter().map(|&(size, _)| size).sum::<Bytes>();
    }
}
