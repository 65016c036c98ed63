//! What a snapshot holds.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    memory::{AddressRange, BlockInfo, OriginId, Stats, history::Events},
    report::stacks::{StackId, Stacks},
    units::Bytes,
};

/// How an array came into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OriginKind {
    /// Not known.
    Unknown = 0,
    /// A program wrote it.
    Result = 1,
    /// It came from the host's memory at once.
    Host = 2,
    /// It is a copy of another array.
    Copy = 3,
    /// It came from the host piece by piece.
    Transfer = 4,
    /// A program's scratch.
    Scratch = 5,
    /// Otherwise: memory that was not written yet.
    Other = 6,
}

impl OriginKind {
    /// Every kind, by its number.
    pub const ALL: [Self; 7] =
        [Self::Unknown, Self::Result, Self::Host, Self::Copy, Self::Transfer, Self::Scratch, Self::Other];

    /// The origin of which nothing but this kind is known: each table of origins begins with those.
    pub const fn origin(self) -> OriginId {
        OriginId::new(self as u32)
    }
}

/// One row of the table of origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// How it came into being.
    pub kind: OriginKind,
    /// The program's name, or empty.
    pub program: Arc<str>,
    /// The number of the program's result.
    pub result: Option<usize>,
    /// XLA's notation of the shape, or empty.
    pub shape: Arc<str>,
    /// The Python code that made it, where that was recorded, and its innermost frame in words.
    pub made_by: Option<(StackId, Arc<str>)>,
}

impl Origin {
    /// One of which nothing is known but its kind.
    pub fn plain(kind: OriginKind) -> Self {
        Self { kind, program: "".into(), result: None, shape: "".into(), made_by: None }
    }

    /// The Python stack that made it.
    pub fn stack(&self) -> StackId {
        self.made_by.as_ref().map_or(StackId::NONE, |(stack, _)| *stack)
    }
}

impl fmt::Display for Origin {
    /// For people: `jit_train_step output 3 f32[8192,8192]`, `from host bf16[4,4] at train.py:12 (load)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (program, shape) = (&self.program, &self.shape);
        match (self.kind, self.result) {
            (OriginKind::Unknown, _) => return f.write_str("unknown"),
            (OriginKind::Result, Some(result)) => write!(f, "{program} output {result}"),
            (OriginKind::Result, None) => f.write_str("a program's result"),
            (OriginKind::Host, _) => f.write_str("from host"),
            (OriginKind::Copy, _) => f.write_str(if shape.is_empty() { "copy" } else { "copy of" }),
            (OriginKind::Transfer, _) => f.write_str(if shape.is_empty() { "transfer" } else { "transfer of" }),
            (OriginKind::Scratch, _) => f.write_str("programs' scratch"),
            (OriginKind::Other, _) => f.write_str("uninitialized"),
        }?;
        if !shape.is_empty() {
            write!(f, " {shape}")?;
        }
        self.made_by.as_ref().map_or(Ok(()), |(_, place)| write!(f, " at {place}"))
    }
}

/// The arenas of a process at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The version of this library.
    pub library: &'static str,
    /// The process's number.
    pub process: u32,
    /// The name of the program file, without folders and arguments.
    pub command: String,
    /// Now.
    pub written: SystemTime,
    /// What all times count from.
    pub began: SystemTime,
    /// Now, in nanoseconds since then.
    pub now: u64,
    /// By their ids.
    pub origins: Vec<Origin>,
    /// The Python stacks that they name.
    pub stacks: Stacks,
    /// Why blocks stay where they are, in words; row 0 is empty.
    pub pin_reasons: Vec<&'static str>,
    /// In the order of their clients.
    pub devices: Vec<Device>,
}

/// One device.
#[derive(Clone, Debug)]
pub struct Device {
    /// As the arena is called.
    pub name: String,
    /// The strategy's name.
    pub strategy: &'static str,
    /// Whether live blocks are moved to make room.
    pub compaction: bool,
    /// The arena's numbers.
    pub stats: Stats,
    /// What the engine holds itself.
    pub engine: Bytes,
    /// Held from the device now, by address.
    pub regions: Vec<AddressRange>,
    /// Now, by address; `pin` says why a block stays where it is, pinned or not.
    pub blocks: Vec<BlockInfo>,
    /// Kept for programs' scratch.
    pub scratch: Option<AddressRange>,
    /// What happened before.
    pub events: Events,
}

impl Snapshot {
    /// The words for an origin.
    pub(super) fn label(&self, id: OriginId) -> String {
        self.origins.get(id.row() as usize).map_or_else(|| "unknown".to_owned(), ToString::to_string)
    }
}

/// Nanoseconds since 1970.
pub(super) fn unix_nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()
}
