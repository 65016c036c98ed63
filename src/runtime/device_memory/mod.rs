//! The memory of one device as the API knows it: the arena, who lies in it, and what moves the bytes.

pub mod origins;

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    device::Carrier,
    error::Result,
    memory::{Arena, Block, BlockId, BlockInfo, Execution, OriginId, PinReason, Provenance, Timestamp},
    report::timeline::{TIMELINE, What},
    runtime::{
        allocator::admission::SharedPool,
        buffer::{Buffer, usage::MoveBarrier},
    },
    units::Bytes,
};

/// One device's memory.
pub struct DeviceMemory {
    arena: Arena,
    /// The device behind the arena: it moves bytes, and brings them there.
    pub carrier: Box<dyn Carrier>,
    /// [`Carrier::is_host`], without the way to the carrier: each allocation asks.
    pub on_host: bool,
    /// What the engine takes of the same memory for itself, where it does.
    pub shared: Option<SharedPool>,
    /// Who lies in which block.
    pub residents: Residents,
    /// Bytes in use that hold no element: the padding of a TPU's tiles.
    padding: AtomicU64,
    /// Programs' runs.
    runs: AtomicU32,
    /// Whether anybody wants to know when.
    keeps_time: bool,
}

impl DeviceMemory {
    /// The memory of `arena`, whose bytes `carrier` moves.
    pub fn new(arena: Arena, carrier: Box<dyn Carrier>) -> Arc<Self> {
        let keeps_time = arena.records_history();
        let (padding, runs) = (AtomicU64::new(0), AtomicU32::new(0));
        let on_host = carrier.is_host();
        Arc::new(Self {
            arena,
            carrier,
            on_host,
            shared: None,
            residents: Residents::default(),
            padding,
            runs,
            keeps_time,
        })
    }

    /// As [`Self::new`], of memory that the engine takes its programs' scratch from as well.
    pub fn shared_with_engine(arena: Arena, carrier: Box<dyn Carrier>, shared: SharedPool) -> Arc<Self> {
        let mut memory = Self::new(arena, carrier);
        // Nobody else has it yet.
        if let Some(memory) = Arc::get_mut(&mut memory) {
            memory.shared = Some(shared);
        }
        memory
    }
}

impl DeviceMemory {
    /// Bytes in use that hold no element.
    pub fn padding(&self) -> Bytes {
        Bytes::new(self.padding.load(Ordering::Relaxed))
    }

    /// Whether the engine may have some of it for programs' scratch.
    pub fn lends_scratch(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| !shared.budget.taken().1.is_zero())
    }

    /// Numbers one run of a program. Without a lock: it is part of each execution.
    pub fn begin_run(&self) -> Execution {
        let step = self.runs.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Execution { step, at: if self.keeps_time { Timestamp::about_now() } else { Timestamp::UNKNOWN } }
    }

    /// Puts into `blocks` what their buffers know better than the arena: who made them last, without asking it for room,
    /// and why they cannot move. O(blocks).
    pub fn complete(&self, blocks: &mut [BlockInfo]) {
        let mut places: FxHashMap<BlockId, usize> = FxHashMap::default();
        places.extend(blocks.iter().enumerate().map(|(place, info)| (info.block.id, place)));
        for buffer in self.residents.buffers() {
            let usage = buffer.usage();
            let Some((id, maker)) = usage.peek(|body| body.held().map(|held| (held.block.id, held.maker))) else {
                continue;
            };
            let Some(info) = places.get(&id).and_then(|&place| blocks.get_mut(place)) else { continue };
            info.provenance = info.provenance.updated(maker);
            info.pin = PinReason(usage.stay().map_or(0, MoveBarrier::number));
        }
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
pub struct Residents(Mutex<Vec<Weak<Buffer>>>);

impl Residents {
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
pub struct Allocation {
    home: Arc<DeviceMemory>,
    block: Block,
    padding: Bytes,
    maker: Provenance,
}

impl Allocation {
    /// Takes `block` of `home` in hand, which `maker` makes and `padding` of whose bytes hold no element.
    pub fn new(home: Arc<DeviceMemory>, block: Block, padding: Bytes, maker: Provenance) -> Self {
        if !padding.is_zero() {
            home.padding.fetch_add(padding.get(), Ordering::Relaxed);
        }
        Self { home, block, padding, maker }
    }

    /// Says what the block holds now, and if that is so, that another run writes it: a program took it over, or writes it
    /// again.
    pub fn made_by(&mut self, origin: OriginId, run: Option<Execution>) {
        self.maker.origin = origin;
        if let Some(run) = run {
            self.maker.run = run;
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

    /// The memory that it is a block of.
    pub fn home(&self) -> &Arc<DeviceMemory> {
        &self.home
    }

    /// Says that the block lies at another address now.
    pub fn moved_to(&mut self, address: crate::units::Address) {
        self.block.address = address;
    }

    /// An outsider holds the address, because of `why`.
    pub fn pin(&self, why: MoveBarrier) {
        self.report(self.home.pin_because(self.block.id, PinReason(why.number())));
    }

    /// Nobody outside holds the address any more.
    pub fn unpin(&self) {
        self.report(self.home.unpin(self.block.id));
    }

    /// Its owner let go; the engine still uses it.
    pub fn retire(&self) {
        self.report(self.home.retire_as(self.block.id, Some(self.maker)));
    }

    /// Takes a retired block up again, for `maker`, once the engine is done with it. Whether its number is another one
    /// now, so that the residents does not know who lies there.
    ///
    /// # Errors
    /// The arena's, which would be a bug of ours; the block must not be used then.
    pub fn renew(&mut self, maker: Provenance) -> Result<bool> {
        let id = self.home.reuse_in_place(self.block.id, maker)?;
        let before = std::mem::replace(&mut self.block.id, id);
        self.maker = maker;
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
            self.home.padding.fetch_sub(self.padding.get(), Ordering::Relaxed);
        }
        let since = TIMELINE.clock();
        self.report(self.home.free_as(self.block.id, Some(self.maker)));
        if let Some(since) = since {
            let freed = || What::Freed { bytes: self.block.size, in_use: self.home.stats().bytes_in_use };
            TIMELINE.note(self.home.name(), since, freed);
        }
    }
}
