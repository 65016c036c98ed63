//! Where blocks go: what a replay asks of an allocator, and our arena as one.

use std::{fmt, time::Duration};

use pjrt_arena::{
    device::fake::FakeBacking,
    memory::{Arena, BlockId, Compaction, Goal, Move, Strategy, compaction::Costs},
    units::{Address, Bytes},
};

use crate::trace::UNIT;

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyName {
    Preallocate,
    Growing,
    Tpu,
    Bfc,
}

impl PolicyName {
    pub(crate) const ALL: [Self; 4] = [Self::Preallocate, Self::Growing, Self::Tpu, Self::Bfc];

    fn text(self) -> &'static str {
        match self {
            Self::Preallocate => "preallocate",
            Self::Growing => "growing",
            Self::Tpu => "tpu",
            Self::Bfc => "bfc",
        }
    }

    /// The policy called `name`, in any case of letters.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.text().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// What a policy did beyond taking and freeing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Blocks moved.
    pub(crate) moves: u64,
    /// Their bytes.
    pub(crate) moved: Bytes,
    /// Plans carried out.
    pub(crate) compactions: u64,
    /// The longest plan, in nanoseconds; `None` where nothing was planned.
    pub(crate) plan_ns_max: Option<u64>,
}

/// An allocator under replay, of a fixed capacity.
pub(crate) trait Policy {
    /// What it knows a block by.
    type Block: Copy;

    /// Takes `size` bytes, by moving other blocks if need be, which `moved` is told one by one and in order; `None`
    /// when there is no room.
    fn allocate(&mut self, size: Bytes, moved: &mut impl FnMut(Move)) -> Option<(Self::Block, Address)>;

    /// Frees a block that it gave.
    fn free(&mut self, block: Self::Block);

    /// Notes that an outsider holds the block's address until it is freed. Before, it and others may move. Says nothing
    /// to a policy that never moves.
    fn pin(&mut self, _block: Self::Block, _moved: &mut impl FnMut(Move)) {}

    /// What it did so far.
    fn work(&self) -> Work {
        Work::default()
    }

    /// The places of all blocks held, in any order, where the policy keeps such a list.
    fn places(&self) -> Option<Vec<(Address, Bytes)>> {
        None
    }

    /// Checks the policy's books when no block is held.
    ///
    /// # Errors
    /// Says what is left that should not be.
    fn settled(&self) -> Result<(), String>;
}

/// The arena on a device without memory.
#[derive(Debug)]
pub(crate) struct ArenaPolicy {
    arena: Arena,
    device: FakeBacking,
}

impl ArenaPolicy {
    /// An arena of `capacity` bytes, rounded down to 256; above 1 TiB to 512, and so on, as the arena's granule
    /// doubles.
    ///
    /// # Errors
    /// The arena's, for a capacity that it cannot have.
    pub(crate) fn new(strategy: Strategy, capacity: Bytes) -> Result<Self, String> {
        let mut granule = UNIT;
        while capacity.get() / granule.get() > u64::from(u32::MAX) {
            granule = granule + granule;
        }
        let device = FakeBacking::new(capacity, granule);
        let arena = Arena::new("replay".into(), strategy, capacity, Box::new(device.clone()));
        Ok(Self { arena: arena.map_err(|error| error.message)?, device })
    }

    fn moves(&self) -> bool {
        self.arena.strategy() == Strategy::Tpu
    }

    #[cold]
    #[inline(never)]
    fn allocate_by_moving(&self, size: Bytes, moved: &mut impl FnMut(Move)) -> Option<(BlockId, Address)> {
        let compaction = self.arena.plan(Goal::Hole(size), &Costs::COPY, &|_| true).ok()?;
        let block = carry_out(compaction, moved).allocate(size).ok()?;
        Some((block.id, block.address))
    }
}

/// Makes the moves of a plan. There are no bytes to move.
fn carry_out<'a>(mut compaction: Compaction<'a>, moved: &mut impl FnMut(Move)) -> Compaction<'a> {
    for step in compaction.moves().to_vec() {
        compaction.commit().expect("nobody else uses the arena");
        moved(step);
    }
    compaction
}

impl Policy for ArenaPolicy {
    type Block = BlockId;

    // Inlined, with a match: a copy of the result on its way costs 3 ns, which would count as the arena's.
    #[inline(always)]
    fn allocate(&mut self, size: Bytes, moved: &mut impl FnMut(Move)) -> Option<(BlockId, Address)> {
        match self.arena.allocate(size) {
            Ok(block) => Some((block.id, block.address)),
            Err(_) if self.moves() => self.allocate_by_moving(size, moved),
            Err(_) => None,
        }
    }

    #[inline(always)]
    fn free(&mut self, block: BlockId) {
        self.arena.free(block).expect("the block was allocated here and freed once");
    }

    fn pin(&mut self, block: BlockId, moved: &mut impl FnMut(Move)) {
        if !self.moves() {
            return;
        }
        if let Ok(compaction) = self.arena.plan_pin_making_way(block, &Costs::COPY, u64::MAX, &|_| true) {
            drop(carry_out(compaction, moved));
        }
        self.arena.pin(block).expect("the block lives");
    }

    fn work(&self) -> Work {
        let stats = self.arena.stats();
        let planned = Some(stats.longest_plan).filter(|time| *time > Duration::ZERO);
        Work {
            moves: stats.moves,
            moved: stats.moved_bytes,
            compactions: stats.compactions,
            plan_ns_max: planned.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    fn places(&self) -> Option<Vec<(Address, Bytes)>> {
        Some(self.arena.blocks().into_iter().map(|info| (info.block.address, info.block.size)).collect())
    }

    fn settled(&self) -> Result<(), String> {
        let stats = self.arena.stats();
        let held = stats.bytes_in_use + stats.pending_bytes + stats.slack_bytes;
        let misuse = self.device.violations();
        if held.is_zero() && stats.free_bytes == stats.pool_bytes && misuse == 0 {
            return Ok(());
        }
        Err(format!("nothing is held, but the device was misused {misuse} times, and the arena says: {stats:?}"))
    }
}
