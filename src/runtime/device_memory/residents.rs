//! Which buffer lies in which block, and what compaction asks of it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::{
    error::Result,
    memory::{BlockId, MoveBarrier, Provenance, next_use::UseKey},
    runtime::device_memory::allocation::Allocation,
    units::{Address, Bytes},
};

/// What lies in a block: a buffer, as the layers below know it.
pub trait Resident: Send + Sync {
    /// The block at this instant; `None` once the memory is no longer this resident's.
    fn occupied(&self) -> Option<Occupied>;

    /// Why its bytes may not move at this instant; `None` if they may. Waits for nothing.
    fn move_barrier(&self) -> Option<MoveBarrier>;

    /// Whether the bytes may be spilled at this instant: they may move, and no launch is about to use them.
    fn may_spill(&self) -> bool;

    /// Whether a copy of the bytes is kept in the memory's tier.
    fn has_copy(&self) -> bool;

    /// Keeps a copy in the tier no longer; how many bytes it had.
    fn forget_copy(&self) -> Bytes;

    /// What the past knows this resident by.
    fn use_key(&self) -> Option<UseKey>;

    /// Locks the bytes for a move, if they lie in `block` and may move: every other thread waits until the lock is
    /// dropped.
    fn lock_for_move(self: Arc<Self>, block: BlockId) -> Option<Box<dyn LockedForMove>>;

    /// As [`Self::lock_for_move`], unless a launch is about to use the bytes.
    fn lock_to_spill(self: Arc<Self>, block: BlockId) -> Option<Box<dyn LockedForMove>>;
}

/// The block that a resident lies in.
#[derive(Clone, Copy, Debug)]
pub struct Occupied {
    /// The block.
    pub block: BlockId,
    /// The size that was asked for.
    pub size: Bytes,
    /// What wrote the contents.
    pub provenance: Provenance,
}

/// A resident whose bytes only the holder of this lock uses. Dropped, the resident is where it was before, and others
/// may use it again.
pub trait LockedForMove {
    /// Where the bytes are.
    fn address(&self) -> Option<Address>;

    /// How many bytes have to be moved: a block's padding need not be.
    fn bytes(&self) -> Bytes;

    /// Prepares the engine's view of the bytes, which are at `to` already.
    ///
    /// # Errors
    /// The engine's; nothing has changed then.
    ///
    /// # Safety
    /// The bytes must be at `to`, in a block of the same memory that stays as long as the resident.
    unsafe fn prepare(&mut self, to: Address) -> Result<()>;

    /// The resident is at the prepared address from now on, and the old view ends.
    fn moved(self: Box<Self>);

    /// The address of a copy in its memory's tier that holds the same bytes.
    fn copy(&self) -> Option<Address>;

    /// The resident has `block` of its memory's tier from now on, or its copy there if that is `None`, at the prepared
    /// address: the old view ends, and the old block is freed.
    fn spilled(self: Box<Self>, block: Option<Allocation>);
}

/// The residents by their block's number. An entry keeps the last resident that had the block, which may be gone:
/// entering costs one lock, leaving nothing.
#[derive(Default)]
pub struct Residents(Mutex<Vec<Option<Weak<dyn Resident>>>>);

impl Residents {
    /// Notes that `resident` lies in `block`.
    pub fn enter(&self, block: BlockId, resident: Weak<dyn Resident>) {
        let before = {
            let mut entries = self.0.lock();
            if entries.len() <= block.index() {
                entries.resize(block.index() + 1, None);
            }
            entries[block.index()].replace(resident)
        };
        // Dropped without the lock: this may be the last reference to a resident.
        drop(before);
    }

    /// The residents of these blocks, as far as they still exist.
    pub fn of(&self, blocks: &[BlockId]) -> Vec<(BlockId, Arc<dyn Resident>)> {
        let found: Vec<_> = {
            let entries = self.0.lock();
            let entry = |block: &BlockId| Some((*block, entries.get(block.index())?.as_ref()?.upgrade()?));
            blocks.iter().filter_map(entry).collect()
        };
        let lies_there = |block, resident: &Arc<dyn Resident>| resident.occupied().is_some_and(|at| at.block == block);
        // Without the lock: what is dropped here may be the last reference to a resident.
        found.into_iter().filter(|(block, resident)| lies_there(*block, resident)).collect()
    }

    /// All residents that still exist. O(blocks).
    pub fn all(&self) -> Vec<Arc<dyn Resident>> {
        self.0.lock().iter().flatten().filter_map(Weak::upgrade).collect()
    }
}
