//! The memory of one device: the arena, its residents, and the carrier that moves their bytes.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rustc_hash::FxHashMap;

use crate::{
    device::Carrier,
    memory::{Arena, BlockId, BlockInfo, Execution, MoveBarrier, PinReason, Timestamp},
    runtime::device_memory::{residents::Residents, shared_pool::SharedPool, spill_record::SpillRecord},
    units::Bytes,
};

/// The memory of the host that a device's arrays are spilled to.
pub struct Tier {
    /// The memory. Its blocks stay where they are until they are freed.
    pub memory: Arc<DeviceMemory>,
    /// What went there, came back, and is used when.
    pub record: SpillRecord,
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
    /// The buffer in each block.
    pub residents: Residents,
    /// Bytes in use that hold no element: the padding of a TPU's tiles.
    pub(super) padding: AtomicU64,
    /// Bytes in use that hold what arrays of another memory hold as well, which were spilled here before.
    pub copies: AtomicU64,
    /// Executions of programs.
    runs: AtomicU32,
    /// Whether executions are timed, for the history.
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
            tier: None,
            residents: Residents::default(),
            padding,
            copies: AtomicU64::new(0),
            runs,
            keeps_time,
        })
    }

    /// As [`Self::new`], of memory that the engine takes its programs' scratch from as well.
    pub fn shared_with_engine(arena: Arena, carrier: Box<dyn Carrier>, shared: SharedPool) -> Arc<Self> {
        let mut memory = Self::new(arena, carrier);
        // Nothing else refers to it yet.
        if let Some(memory) = Arc::get_mut(&mut memory) {
            memory.shared = Some(shared);
        }
        memory
    }

    /// As [`Self::new`], of memory whose arrays are spilled to `tier`.
    pub fn with_tier(arena: Arena, carrier: Box<dyn Carrier>, tier: Arc<Self>) -> Arc<Self> {
        let mut memory = Self::new(arena, carrier);
        // Nothing else refers to it yet.
        if let Some(memory) = Arc::get_mut(&mut memory) {
            memory.tier = Some(Tier { memory: tier, record: SpillRecord::default() });
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

    /// Numbers one execution of a program. Without a lock: it is part of each execution.
    pub fn begin_run(&self) -> Execution {
        let step = self.runs.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Execution { step, at: if self.keeps_time { Timestamp::about_now() } else { Timestamp::UNKNOWN } }
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
