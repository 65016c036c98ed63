//! A block of an arena, as the buffer that lies in it has it.

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
    /// Owns `block` of `memory`, which `provenance` wrote, or will write, and `padding` of whose bytes hold no
    /// element.
    pub fn new(memory: Arc<DeviceMemory>, block: Block, padding: Bytes, provenance: Provenance) -> Self {
        if !padding.is_zero() {
            memory.padding.fetch_add(padding.get(), Ordering::Relaxed);
        }
        Self { memory, block, padding, provenance }
    }

    /// Records what the block holds now, and, if it is `Some`, which execution wrote it: a program consumed the
    /// block, or writes it again.
    pub fn set_provenance(&mut self, origin: OriginId, run: Option<Execution>) {
        self.provenance.origin = origin;
        if let Some(run) = run {
            self.provenance.run = run;
        }
    }

    /// The block's address.
    pub fn address(&self) -> usize {
        self.block.address.get() as usize
    }

    /// The block.
    pub fn block(&self) -> Block {
        self.block
    }

    /// What wrote the contents.
    pub fn provenance(&self) -> Provenance {
        self.provenance
    }

    /// The memory whose block this is.
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// Records that the block lies at another address now.
    pub fn moved_to(&mut self, address: Address) {
        self.block.address = address;
    }

    /// An outsider holds the address, because of `why`.
    pub fn pin(&self, why: MoveBarrier) {
        self.report(self.memory.pin_because(self.block.id, PinReason(why.number())));
    }

    /// No outsider holds the address any more.
    pub fn unpin(&self) {
        self.report(self.memory.unpin(self.block.id));
    }

    /// Its owner has destroyed the buffer; the engine still uses the block.
    pub fn retire(&self) {
        self.report(self.memory.retire_as(self.block.id, Some(self.provenance)));
    }

    /// Makes a retired block live again, for `provenance`, once the engine is done with it. Whether its number is
    /// another one now, so that the residents have no entry for it.
    ///
    /// # Errors
    /// The arena's, which would be a bug of pjrt-arena; the block must not be used then.
    pub fn renew(&mut self, provenance: Provenance) -> Result<bool> {
        let id = self.memory.reuse_in_place(self.block.id, provenance)?;
        let before = std::mem::replace(&mut self.block.id, id);
        self.provenance = provenance;
        Ok(id.index() != before.index())
    }

    /// An arena refuses only what would be a bug of pjrt-arena.
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
