//! Allocation traces: reading them, and replaying them on an arena.
//!
//! A line is `a ID BYTES` (take) or `f ID` (free). `data/traces/README.md` says where the traces come from.

use std::{collections::HashMap, fs, path::Path};

use pjrt_arena::{
    memory::{Arena, BlockId, OutOfMemory},
    units::Bytes,
};

/// Traces of real programs and planners: the figures to meet.
pub const RECORDED: [&str; 3] = ["idealloc_G_1", "idealloc_resnet50", "mit_magma"];
/// Puzzles made to be hard to pack.
pub const ADVERSARIAL: [&str; 6] =
    ["minimalloc_A", "minimalloc_B", "minimalloc_C", "minimalloc_D", "minimalloc_E", "minimalloc_F"];

/// One line of a trace. Ids are renumbered from zero in the order of their first take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Block `id` of so many bytes is taken.
    Take {
        /// The block's number.
        id: usize,
        /// Its size.
        size: Bytes,
    },
    /// Block `id` is freed.
    Free {
        /// The block's number.
        id: usize,
    },
}

/// A trace and what can be said about it without an allocator.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The lines.
    pub events: Vec<Event>,
    /// Blocks taken.
    pub blocks: usize,
    /// The most bytes held at once, each block rounded up to 256 bytes: no allocator that does not move blocks, with
    /// that unit, needs less.
    pub peak: Bytes,
}

impl Trace {
    /// Reads `data/traces/<name>.ev`.
    ///
    /// # Panics
    /// When the file is missing or has a line of another form: the tests' own data is broken.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/traces").join(format!("{name}.ev"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut ids: HashMap<&str, (usize, Bytes)> = HashMap::new();
        let (mut events, mut blocks) = (Vec::new(), 0);
        let (mut live, mut peak) = (Bytes::ZERO, Bytes::ZERO);
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["a", id, size] => {
                    let size: Bytes = size.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
                    let rounded = size.max(Bytes::new(1)).checked_round_up(Bytes::new(256)).expect("far from 2^64");
                    assert!(ids.insert(id, (blocks, rounded)).is_none(), "{name}: `{line}` takes a live id");
                    events.push(Event::Take { id: blocks, size });
                    blocks += 1;
                    live += rounded;
                    peak = peak.max(live);
                }
                ["f", id] => {
                    let (id, rounded) = ids.remove(id).unwrap_or_else(|| panic!("{name}: `{line}` frees no live id"));
                    events.push(Event::Free { id });
                    live -= rounded;
                }
                _ => panic!("{name}: `{line}` is neither `a ID BYTES` nor `f ID`"),
            }
        }
        Self { events, blocks, peak }
    }

    /// Replays the trace on `arena`, and frees what it leaves.
    ///
    /// # Errors
    /// The first request that finds no room.
    ///
    /// # Panics
    /// When the arena refuses to free a block that it gave.
    pub fn replay(&self, arena: &Arena) -> Result<(), OutOfMemory> {
        let mut held: Vec<Option<BlockId>> = vec![None; self.blocks];
        let free = |id: BlockId| arena.free(id).unwrap_or_else(|error| panic!("{error}"));
        let result = self.events.iter().try_for_each(|event| {
            match *event {
                Event::Take { id, size } => held[id] = Some(arena.allocate(size)?.id),
                Event::Free { id } => held[id].take().into_iter().for_each(free),
            }
            Ok(())
        });
        held.into_iter().flatten().for_each(free);
        result
    }
}
