//! The memory of one device: the arena, blocks of it as their owners have them, who lies in which, and the carrier that
//! moves their bytes.
//!
//! ```text
//!  DeviceMemory --residents--> Resident (a buffer) --owns--> Allocation (a block) --of--> DeviceMemory
//! ```

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    device::Carrier,
    error::{Error, Result},
    memory::{
        AddressRange, Arena, Block, BlockId, BlockInfo, Execution, MoveBarrier, OriginId, PinReason, Provenance,
        Timestamp,
        next_use::{NextUse, UseKey},
    },
    report::timeline::{TIMELINE, What},
    runtime::{
        device_memory::{
            dropped::DroppedArrays, group_part::GroupPart, moves::Moves, shared_pool::SharedPool,
            spill_record::SpillRecord,
        },
        shape::Shape,
    },
    units::{Address, Bytes},
};

/// The memory of the host that a device's arrays are spilled to. A GPU reads and writes it by itself: it is pinned.
pub struct Tier {
    /// The memory. Its blocks stay where they are until they are freed.
    pub memory: Arc<DeviceMemory>,
    /// The arrays that are there, among those that were.
    pub waiting: Residents,
    /// What went there, came back, and is used when.
    pub record: SpillRecord,
    /// Why the last array that was to go there did not; without a text where the limit is why. `None` once one went.
    pub trouble: Mutex<Option<Error>>,
}

impl Tier {
    /// What waits there, in bytes: without the copies of arrays that came back.
    pub fn waits(&self) -> Bytes {
        self.memory.stats().bytes_in_use.saturating_sub(self.copies())
    }

    /// The copies of arrays that came back, in bytes.
    pub fn copies(&self) -> Bytes {
        Bytes::new(self.memory.copies.load(Ordering::Relaxed))
    }

    /// The arrays that wait there and may come back, the one that is used first at the beginning. O(n log n).
    pub fn waiting_by_use(&self) -> Vec<(NextUse, Arc<dyn Resident>)> {
        let waiting = self.waiting.all().into_iter().filter(|resident| resident.waits().is_some());
        let (waiting, keys): (Vec<_>, Vec<_>) =
            waiting.filter_map(|resident| resident.use_key().map(|key| (resident, key))).unzip();
        let mut order: Vec<_> = self.record.next_uses(&keys).into_iter().zip(waiting).collect();
        order.sort_by_key(|&(next, _)| next);
        order
    }

    /// Copies bytes from the tier to `device`, whose tier this is, or there from it. They are there on return.
    ///
    /// # Errors
    /// The device's, or the disk's.
    ///
    /// # Safety
    /// As for [`Carrier::copy`], until this returns.
    pub unsafe fn copy(&self, device: &DeviceMemory, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        // A GPU copies from and to memory that was pinned for it; memory in files is known to its own carrier alone.
        let carrier = if device.on_host { &self.memory.carrier } else { &device.carrier };
        // SAFETY: by the contract, and both ranges are memory that this carrier knows: see above.
        unsafe { carrier.copy_now(from, to, bytes) }
    }
}

/// One device's memory.
pub struct DeviceMemory {
    arena: Arena,
    /// Moves bytes on the device behind the arena, and to it.
    pub carrier: Box<dyn Carrier>,
    /// [`Carrier::is_host`], without a virtual call: each allocation asks.
    pub on_host: bool,
    /// What the engine takes of the same memory for itself, if it does.
    pub shared: Option<SharedPool>,
    /// Where arrays are spilled to, if they are.
    pub tier: Option<Tier>,
    /// The part in the group of processes that share the device, if there is one.
    pub group: Option<Arc<GroupPart>>,
    /// The buffer in each block.
    pub residents: Residents,
    /// Bytes in use that hold no element: the padding of a TPU's tiles.
    pub(super) padding: AtomicU64,
    /// Bytes in use that hold what arrays of another memory hold as well, which were spilled here before.
    pub copies: AtomicU64,
    /// Arrays that their owners dropped while programs use them.
    pub dropped: DroppedArrays<Allocation>,
    /// The moves of its arrays that are under way.
    pub moves: Moves,
    /// Executions of programs.
    runs: AtomicU32,
    /// Whether executions are timed, for the history.
    keeps_time: AtomicBool,
}

impl DeviceMemory {
    /// The memory of `arena`, whose bytes `carrier` moves.
    pub fn new(arena: Arena, carrier: Box<dyn Carrier>) -> Arc<Self> {
        let keeps_time = AtomicBool::new(arena.records_history());
        let (padding, runs) = (AtomicU64::new(0), AtomicU32::new(0));
        let on_host = carrier.is_host();
        Arc::new(Self {
            arena,
            carrier,
            on_host,
            shared: None,
            tier: None,
            group: None,
            residents: Residents::default(),
            padding,
            copies: AtomicU64::new(0),
            dropped: DroppedArrays::default(),
            moves: Moves::default(),
            runs,
            keeps_time,
        })
    }

    /// Gives the pages of a hole back to the device, and returns how much that was: nothing where the device refuses.
    ///
    /// # Safety
    /// The hole must lie in a region of this memory, and the arena must allocate nothing in it meanwhile.
    pub unsafe fn discard(&self, hole: AddressRange) -> Bytes {
        // SAFETY: as this function asks; the carrier is that of the arena's device.
        unsafe { self.carrier.discard(hole.address, hole.bytes) }.unwrap_or_else(|error| {
            log::warn!("a hole of {} could not be given back: {error}", hole.bytes);
            Bytes::ZERO
        })
    }

    /// As [`Self::new`], of memory that the engine takes its programs' scratch from as well, if `shared` is given, and
    /// whose arrays are spilled to `tier`, and that is shared with other processes as `group` says, if those are.
    pub fn with(
        arena: Arena,
        carrier: Box<dyn Carrier>,
        (shared, tier, group): (Option<SharedPool>, Option<Arc<Self>>, Option<Arc<GroupPart>>),
    ) -> Arc<Self> {
        let mut memory = Self::new(arena, carrier);
        // Nothing else refers to it yet.
        if let Some(memory) = Arc::get_mut(&mut memory) {
            memory.shared = shared;
            memory.group = group;
            memory.tier = tier.map(|memory| Tier {
                memory,
                waiting: Residents::default(),
                record: SpillRecord::default(),
                trouble: Mutex::default(),
            });
        }
        memory
    }
}

impl DeviceMemory {
    /// Bytes in use that hold no element.
    pub fn padding(&self) -> Bytes {
        Bytes::new(self.padding.load(Ordering::Relaxed))
    }

    /// Whether some of it is granted to the engine for programs' scratch.
    pub fn lends_scratch(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| !shared.budget.taken().1.is_zero())
    }

    /// How many executions were numbered.
    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::Relaxed)
    }

    /// Numbers one execution of a program. Without a lock: it is part of each execution.
    pub fn begin_run(&self) -> Execution {
        let step = self.runs.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let keeps_time = self.keeps_time.load(Ordering::Relaxed);
        Execution { step, at: if keeps_time { Timestamp::about_now() } else { Timestamp::UNKNOWN } }
    }

    /// Remembers the last `events` events from here on, with 0 none.
    pub fn keep_history(&self, events: usize) {
        self.arena.keep_history(events);
        self.keeps_time.store(events > 0, Ordering::Relaxed);
    }

    /// Completes `blocks` with what their buffers know and the arena does not: what wrote them last without an
    /// allocation, and why they cannot move. O(blocks).
    pub fn complete(&self, blocks: &mut [BlockInfo]) {
        let mut places: FxHashMap<BlockId, usize> = FxHashMap::default();
        places.extend(blocks.iter().enumerate().map(|(place, info)| (info.block.id, place)));
        for resident in self.residents.all() {
            let Some(occupied) = resident.occupied() else { continue };
            let Some(info) = places.get(&occupied.block).and_then(|&place| blocks.get_mut(place)) else { continue };
            info.provenance = info.provenance.updated(occupied.provenance);
            info.pin = PinReason(resident.move_barrier().map_or(0, MoveBarrier::number));
        }
    }
}

impl Deref for DeviceMemory {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        &self.arena
    }
}

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

/// What lies in a block: a buffer, as the layers below know it.
pub trait Resident: Send + Sync {
    /// The block at this instant; `None` once the memory is no longer this resident's.
    fn occupied(&self) -> Option<Occupied>;

    /// Why its bytes may not move at this instant; `None` if they may. Waits for nothing.
    fn move_barrier(&self) -> Option<MoveBarrier>;

    /// Whether the bytes may be spilled at this instant: they may move, and no launch is about to use them.
    fn may_spill(&self) -> bool;

    /// What spilling it would mean, if [`Self::may_spill`].
    fn spillable(&self) -> Option<Spillable>;

    /// The block of a copy of the bytes that is kept in the memory's tier.
    fn copy(&self) -> Option<BlockId>;

    /// Keeps a copy in the tier no longer; how many bytes it had.
    fn forget_copy(&self) -> Bytes;

    /// What the past knows this resident by.
    fn use_key(&self) -> Option<UseKey>;

    /// What waits in the tier, and what wrote it, if it is this resident that may come back: nobody uses it there.
    fn waits(&self) -> Option<(Arc<Shape>, Provenance)>;

    /// Brings what waits in the tier into a block of its memory. Whether it did: it is not there where it came back
    /// already, an outsider or a transfer uses it where it is, or it has ended.
    ///
    /// # Errors
    /// The device's or the engine's; the bytes are where they were then.
    fn bring_back(self: Arc<Self>, block: Allocation) -> Result<bool>;

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

/// An array that may be spilled.
#[derive(Clone, Copy, Debug)]
pub struct Spillable {
    /// The size that was asked for.
    pub size: Bytes,
    /// What the past knows it by.
    pub key: UseKey,
    /// The block of a copy that is kept in the tier.
    pub copy: Option<BlockId>,
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
    /// address: the old view ends, and the old block is freed. Returns the number of the block in the tier.
    fn spilled(self: Box<Self>, block: Option<Allocation>) -> Option<BlockId>;
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
