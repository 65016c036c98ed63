//! A block of an arena, as the buffer that lies in it holds it.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    error::Result,
    memory::{Block, Execution, MoveBarrier, OriginId, PinReason, Provenance},
    report::timeline::{TIMELINE, What},
    runtime::device_memory::memory::DeviceMemory,
    units::{Address, Bytes},
};

/// A block of an arena; freed when dropped.
pub struct Allocation {
    memory: Arc<DeviceMemory>,
    block: Block,
    padding: Bytes,
    provenance: Provenance,
}

impl Allocation {
    /// Takes `block` of `home` in hand, which `maker` makes and `padding` of whose bytes hold no element.
    pub fn new(memory: Arc<DeviceMemory>, block: Block, padding: Bytes, provenance: Provenance) -> Self {
        if !padding.is_zero() {
            memory.padding.fetch_add(padding.get(), Ordering::Relaxed);
        }
        Self { memory, block, padding, provenance }
    }

    /// Says what the block holds now, and if that is so, that another run writes it: a program took it over, or writes it
    /// again.
    pub fn set_provenance(&mut self, origin: OriginId, run: Option<Execution>) {
        self.provenance.origin = origin;
        if let Some(run) = run {
            self.provenance.run = run;
        }
    }

    /// Where the block begins.
    pub fn address(&self) -> usize {
        self.block.address.get() as usize
    }

    /// The block.
    pub fn block(&self) -> Block {
        self.block
    }

    /// Who made the contents.
    pub fn provenance(&self) -> Provenance {
        self.provenance
    }

    /// The memory that it is a block of.
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// Says that the block lies at another address now.
    pub fn moved_to(&mut self, address: Address) {
        self.block.address = address;
    }

    /// An outsider holds the address, because of `why`.
    pub fn pin(&self, why: MoveBarrier) {
        self.report(self.memory.pin_because(self.block.id, PinReason(why.number())));
    }

    /// Nobody outside holds the address any more.
    pub fn unpin(&self) {
        self.report(self.memory.unpin(self.block.id));
    }

    /// Its owner let go; the engine still uses it.
    pub fn retire(&self) {
        self.report(self.memory.retire_as(self.block.id, Some(self.provenance)));
    }

    /// Takes a retired block up again, for `maker`, once the engine is done with it. Whether its number is another one
    /// now, so that the residents does not know who lies there.
    ///
    /// # Errors
    /// The arena's, which would be a bug of ours; the block must not be used then.
    pub fn renew(&mut self, provenance: Provenance) -> Result<bool> {
        let id = self.memory.reuse_in_place(self.block.id, provenance)?;
        let before = std::mem::replace(&mut self.block.id, id);
        self.provenance = provenance;
        Ok(id.index() != before.index())
    }

    /// An arena refuses only what would be a bug of ours.
    fn report(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            log::error!("{error}");
        }
    }

    /// The size asked for.
    pub fn size(&self) -> Bytes {
        self.block.size
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if !self.padding.is_zero() {
            self.memory.padding.fetch_sub(self.padding.get(), Ordering::Relaxed);
        }
        let since = TIMELINE.clock();
        self.report(self.memory.free_as(self.block.id, Some(self.provenance)));
        if let Some(since) = since {
            let freed = || What::Freed { bytes: self.block.size, in_use: self.memory.stats().bytes_in_use };
            TIMELINE.note(self.memory.name(), since, freed);
        }
    }
}
