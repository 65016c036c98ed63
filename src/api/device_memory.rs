//! The memory of one device as the API knows it: the arena, who lies in it, and what moves the bytes.

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::buffer::Buffer;
use crate::{
    device::Mover,
    memory::{Arena, Block, BlockId},
    report::timeline::{TIMELINE, What},
    units::Bytes,
};

/// One device's memory.
pub struct DeviceMemory {
    arena: Arena,
    /// The device behind the arena, where it can move bytes.
    pub mover: Box<dyn Mover>,
    /// Who lies in which block.
    pub roster: Roster,
    /// Bytes in use that hold no element: the padding of a TPU's tiles.
    padding: AtomicU64,
}

impl DeviceMemory {
    /// The memory of `arena`, whose bytes `mover` moves.
    pub fn new(arena: Arena, mover: Box<dyn Mover>) -> Arc<Self> {
        Arc::new(Self { arena, mover, roster: Roster::default(), padding: AtomicU64::new(0) })
    }
}

impl DeviceMemory {
    /// Bytes in use that hold no element.
    pub fn padding(&self) -> Bytes {
        Bytes::new(self.padding.load(Ordering::Relaxed))
    }
}

impl Deref for DeviceMemory {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        &self.arena
    }
}

/// The buffers by their block's number. A place keeps the last buffer that had it, which may be gone: entering costs
/// one lock, leaving nothing.
#[derive(Default)]
pub struct Roster(Mutex<Vec<Weak<Buffer>>>);

impl Roster {
    /// Notes that `buffer` lies in `block`.
    pub fn enter(&self, block: BlockId, buffer: &Arc<Buffer>) {
        let entry = Arc::downgrade(buffer);
        let before = {
            let mut places = self.0.lock();
            if places.len() <= block.index() {
                places.resize(block.index() + 1, Weak::new());
            }
            std::mem::replace(&mut places[block.index()], entry)
        };
        // The last trace of a buffer may go here: not under the lock.
        drop(before);
    }

    /// All buffers that still exist.
    pub fn buffers(&self) -> Vec<Arc<Buffer>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// A block of an arena; freed when dropped.
pub struct Held {
    home: Arc<DeviceMemory>,
    block: Block,
    padding: Bytes,
}

impl Held {
    /// Takes `block` of `home` in hand, `padding` of whose bytes hold no element.
    pub fn new(home: Arc<DeviceMemory>, block: Block, padding: Bytes) -> Self {
        if !padding.is_zero() {
            home.padding.fetch_add(padding.get(), Ordering::Relaxed);
        }
        Self { home, block, padding }
    }

    /// Where the block begins.
    pub fn address(&self) -> usize {
        self.block.address.get() as usize
    }

    /// The block.
    pub fn block(&self) -> Block {
        self.block
    }

    /// The memory that it is a block of.
    pub fn home(&self) -> &Arc<DeviceMemory> {
        &self.home
    }

    /// Says that the block lies at another address now.
    pub fn moved_to(&mut self, address: crate::units::Address) {
        self.block.address = address;
    }

    /// An outsider holds the address.
    pub fn pin(&self) {
        self.report(self.home.pin(self.block.id));
    }

    /// Nobody outside holds the address any more.
    pub fn unpin(&self) {
        self.report(self.home.unpin(self.block.id));
    }

    /// Its owner let go; the engine still uses it.
    pub fn retire(&self) {
        self.report(self.home.retire(self.block.id));
    }

    /// An arena refuses only what would be a bug of ours.
    fn report(&self, outcome: crate::error::Result<()>) {
        if let Err(error) = outcome {
            log::error!("{error}");
        }
    }

    /// The size asked for.
    pub fn size(&self) -> Bytes {
        self.block.size
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.padding.is_zero() {
            self.home.padding.fetch_sub(self.padding.get(), Ordering::Relaxed);
        }
        let since = TIMELINE.clock();
        self.report(self.home.free(self.block.id));
        if let Some(since) = since {
            let in_use = self.home.stats().bytes_in_use;
            TIMELINE.note(self.home.name(), since, What::Freed { bytes: self.block.size, in_use });
        }
    }
}
