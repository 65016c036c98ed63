//! Blocks of the tier for arrays that are spilled. Where it has no room, copies that are kept there give way.

use std::sync::Arc;

use crate::{
    error::{Code, Error},
    memory::{Provenance, Request},
    runtime::{
        allocator::spill::candidates::Candidates,
        device_memory::{Allocation, DeviceMemory, Resident, Tier},
    },
    units::Bytes,
};

/// The room of a tier while arrays are spilled there, one after the other: it does not grow meanwhile, but for what is
/// freed beside that.
pub struct TierRoom<'a> {
    memory: &'a DeviceMemory,
    tier: &'a Tier,
    /// The smallest size for which there was no room.
    refused: Bytes,
    /// Whether an array did not go there.
    troubled: bool,
    /// Those whose copies give way, the first of them at the end; listed once, when the first one has to.
    copies: Option<Vec<Arc<dyn Resident>>>,
}

impl<'a> TierRoom<'a> {
    /// That of the tier of `memory`.
    pub fn new(memory: &'a DeviceMemory, tier: &'a Tier) -> Self {
        Self { memory, tier, refused: Bytes::MAX, troubled: false, copies: None }
    }

    /// Whether there may be room for so many bytes.
    pub fn may_hold(&self, bytes: Bytes) -> bool {
        bytes < self.refused
    }

    /// A block, or `None`, after which nothing as large is looked for. Copies of arrays that are used soon are kept no
    /// longer, as far as it needs: first of those that may not go, then of `others`, the one that is used first at the
    /// beginning. None gives way where all of them would not do. O(n log n) for n arrays once, and otherwise O(copies
    /// that give way).
    pub fn allocate(&mut self, size: Bytes, provenance: Provenance, others: &Candidates) -> Option<Allocation> {
        if !self.may_hold(size) {
            return None;
        }
        let found = self.try_allocate(size, provenance, others);
        match found {
            Ok(allocation) => {
                if !self.troubled {
                    *self.tier.trouble.lock() = None;
                }
                Some(allocation)
            }
            Err(error) => {
                self.refused = size;
                self.note(error);
                None
            }
        }
    }

    /// An array was not written to its block. After RESOURCE_EXHAUSTED there is no room for others either.
    pub fn failed(&mut self, error: Error) {
        if error.code == Code::ResourceExhausted {
            self.refused = Bytes::ZERO;
        }
        self.note(error);
    }

    fn note(&mut self, error: Error) {
        self.troubled = true;
        *self.tier.trouble.lock() = Some(error);
    }

    fn try_allocate(&mut self, size: Bytes, provenance: Provenance, others: &Candidates) -> Result<Allocation, Error> {
        let Tier { memory: tier, .. } = self.tier;
        let allocate = || tier.allocate(Request { size, provenance });
        let owned = |block| Allocation::new(Arc::clone(tier), block, Bytes::ZERO, provenance);
        let mut numbers = match allocate() {
            Ok(block) => return Ok(owned(block)),
            Err(numbers) => numbers,
        };
        let could_do = || tier.stats().available() + self.tier.copies() >= size;
        while could_do() {
            let copies = self.copies.get_or_insert_with(|| copies_of(self.memory, others));
            let Some(resident) = copies.pop() else { break };
            if resident.forget_copy().is_zero() {
                continue;
            }
            match allocate() {
                Ok(block) => return Ok(owned(block)),
                Err(refused) => numbers = refused,
            }
        }
        // The numbers are in the text for the limit already.
        Err(numbers.refusal.map_or_else(|| Error::new(Code::ResourceExhausted, ""), |refusal| *refusal))
    }
}

/// The residents that have copies, the one whose copy is given up first at the end.
fn copies_of(memory: &DeviceMemory, others: &Candidates) -> Vec<Arc<dyn Resident>> {
    let mut order = others.last_at_the_end();
    order.retain(|resident| resident.copy().is_some());
    order.extend(
        memory.residents.all().into_iter().filter(|resident| resident.copy().is_some() && !resident.may_spill()).rev(),
    );
    order
}
