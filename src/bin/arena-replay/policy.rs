//! Where blocks go: what a replay asks of an allocator, and our arena as one.

use std::fmt;

use pjrt_arena::{
    device::fake::FakeBacking,
    memory::{Arena, BlockId, Strategy},
    units::{Address, Bytes},
};

use crate::trace::UNIT;

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyName {
    Preallocate,
    Growing,
    Bfc,
}

impl PolicyName {
    pub(crate) const ALL: [Self; 3] = [Self::Preallocate, Self::Growing, Self::Bfc];

    fn text(self) -> &'static str {
        match self {
            Self::Preallocate => "preallocate",
            Self::Growing => "growing",
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

    /// Takes `size` bytes, by moving other blocks if need be; `None` when there is no room.
    fn allocate(&mut self, size: Bytes, work: &mut Work) -> Option<(Self::Block, Address)>;

    /// Frees a block that it gave.
    fn free(&mut self, block: Self::Block);

    /// Notes that an outsider holds the block's address until it is freed. Says nothing to a policy that never moves.
    fn pin(&mut self, _block: Self::Block, _work: &mut Work) {}

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
    /// An arena of `capacity` bytes, rounded down to 256.
    ///
    /// # Errors
    /// The arena's, for a capacity that it cannot have.
    pub(crate) fn new(strategy: Strategy, capacity: Bytes) -> Result<Self, String> {
        let device = FakeBacking::new(capacity, UNIT);
        let arena = Arena::new("replay".into(), strategy, capacity, Box::new(device.clone()));
        Ok(Self { arena: arena.map_err(|error| error.message)?, device })
    }
}

impl Policy for ArenaPolicy {
    type Block = BlockId;

    // Inlined, with a match: a copy of the result on its way costs 3 ns, which would count as the arena's.
    #[inline(always)]
    fn allocate(&mut self, size: Bytes, _: &mut Work) -> Option<(BlockId, Address)> {
        match self.arena.allocate(size) {
            Ok(block) => Some((block.id, block.address)),
            Err(_) => None,
        }
    }

    #[inline(always)]
    fn free(&mut self, block: BlockId) {
        self.arena.free(block).expect("the block was allocated here and freed once");
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
