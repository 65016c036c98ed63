//! Which arrays stay because a tier has no room for them, where nothing else is under way: known before one goes.
//!
//! ```text
//!  spill.rs    arrays that the call does not use go in their order, while they fit
//!  launch.rs   then its arguments go, too; they come back, and others go where they were
//! ```

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    memory::{Arena, BlockId},
    runtime::{
        allocator::{
            call_needs::{Argument, ArgumentPlace},
            spill::candidates::{Candidate, Candidates},
        },
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

    /// What stays beside the `arguments` of the call that are on the device, which stay, too. Those that wait in the
    /// tier come back. O(n) and the tier's allocations, and for each argument that comes back, `comes`.
    pub fn beside_arguments(&self, arguments: &[Argument], comes: &Comes<'_>) -> FxHashSet<BlockId> {
        let (own, others) = self.arrays.iter().partition(|array| array.is_own);
        Filling::begin(self.tier, others, own).stay(arguments, comes)
    }

    /// The same where the arguments go as well: those that do are not among what stays, and come back.
    pub fn after_arguments(&self, arguments: &[Argument], comes: &Comes<'_>) -> FxHashSet<BlockId> {
        Filling::begin(self.tier, self.arrays.clone(), Vec::new()).stay(arguments, comes)
    }
}

/// Whether arguments of these sizes find room on the device, one after the other, beside blocks that stay.
pub type Comes<'a> = dyn Fn(&FxHashSet<BlockId>, &[Bytes]) -> bool + 'a;

/// A tier that is imagined, and what is to go there.
struct Filling {
    tier: Arena,
    /// In the order in which it goes.
    left: Vec<Array>,
    /// What does not go.
    staying: Vec<Array>,
    /// Copies of what does not go: they give way first, from the end on.
    copies: Vec<(Bytes, BlockId)>,
    /// What all copies take of arrays that are on the device.
    copied: Bytes,
    /// Arguments that went, by their blocks of the device: their blocks of the tier.
    gone: FxHashMap<BlockId, BlockId>,
}

impl Filling {
    /// Arrays are `left`; those that are `staying` may have copies, too.
    fn begin(tier: &Tier, left: Vec<Array>, staying: Vec<Array>) -> Self {
        let copies: Vec<_> = staying.iter().rev().filter_map(|array| Some((array.size, array.copy?))).collect();
        let others = left.iter().filter(|array| array.copy.is_some()).map(|array| array.size);
        let copied = copies.iter().map(|&(size, _)| size).chain(others).sum();
        Self { tier: tier.memory.imagined(), left, staying, copies, copied, gone: FxHashMap::default() }
    }

    /// What stays once all has gone that can, and the arguments have come back.
    fn stay(mut self, arguments: &[Argument], comes: &Comes<'_>) -> FxHashSet<BlockId> {
        self.fill();
        // An argument for which there was no room goes no more.
        let (own, others): (Vec<Array>, _) = self.left.iter().partition(|array| array.is_own);
        self.left = others;
        self.staying.extend(own);
        self.come_back(arguments, comes);
        self.stays()
    }

    fn stays(&self) -> FxHashSet<BlockId> {
        self.left.iter().chain(&self.staying).map(|array| array.block).collect()
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
                Some(block) if array.is_own => _ = self.gone.insert(array.block, block),
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

    /// Arguments come back, while there is room for them on the device: those that went, and those that waited in the
    /// tier. Copies of them are kept, and give way to others that go.
    fn come_back(&mut self, arguments: &[Argument], comes: &Comes<'_>) {
        let mut back = Vec::new();
        for argument in arguments {
            let copy = match argument.at {
                ArgumentPlace::Tier(block) => Some(block),
                ArgumentPlace::Device(block) => self.gone.get(&block).copied(),
            };
            let Some(copy) = copy else { continue };
            back.push(argument.size);
            self.copies.push((argument.size, copy));
            self.copied += argument.size;
            let Some(smallest) = self.left.iter().map(|array| array.size).min() else { return };
            if self.tier.stats().available() + self.copied < smallest {
                continue;
            }
            if !comes(&self.stays(), &back) {
                return;
            }
            self.fill();
        }
    }
}
