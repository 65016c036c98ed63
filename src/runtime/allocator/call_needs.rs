//! What a call needs of a memory, and what it has of that already.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    memory::{BlockId, Needs},
    runtime::device_memory::DeviceMemory,
    units::Bytes,
};

/// What a call needs of one memory, of which it may have a part.
#[derive(Clone, Default)]
pub struct CallNeeds {
    /// All that it needs beside its arguments.
    pub needs: Needs,
    /// What it has of that.
    pub had: Had,
    /// Its arguments, where arrays are spilled, without those that stay where they are.
    pub arguments: Vec<Argument>,
    /// What the same call needs of other devices.
    pub elsewhere: Vec<(Arc<DeviceMemory>, CallNeeds)>,
}

/// An argument of a call, where arrays are spilled.
#[derive(Clone, Copy)]
pub struct Argument {
    /// What it takes of the device.
    pub size: Bytes,
    /// Where it is.
    pub at: ArgumentPlace,
}

/// Where an argument is.
#[derive(Clone, Copy)]
pub enum ArgumentPlace {
    /// In this block of the device.
    Device(BlockId),
    /// In this block of its tier.
    Tier(BlockId),
}

/// What a call has of what it needs of one memory.
#[derive(Clone, Default)]
pub struct Had {
    /// All together.
    pub bytes: Bytes,
    /// Whether its scratch is kept.
    pub scratch: bool,
    /// Blocks for the first of its arrays.
    pub blocks: Vec<BlockId>,
}

impl CallNeeds {
    /// Those of a call that needs one array.
    pub fn of(size: Bytes) -> Self {
        Self { needs: Needs::of(size), ..Self::default() }
    }

    /// All that it needs beside arguments in blocks that are `staying`.
    pub fn beside(&self, staying: &FxHashSet<BlockId>) -> Needs {
        let comes = |argument: &&Argument| match argument.at {
            ArgumentPlace::Device(block) => !staying.contains(&block),
            ArgumentPlace::Tier(_) => true,
        };
        let arguments = self.arguments.iter().filter(comes).map(|argument| argument.size);
        Needs { arguments: arguments.collect(), ..self.needs.clone() }
    }

    /// The blocks of the arguments that are on the device.
    pub fn own(&self) -> FxHashSet<BlockId> {
        let block = |argument: &Argument| match argument.at {
            ArgumentPlace::Device(block) => Some(block),
            ArgumentPlace::Tier(_) => None,
        };
        self.arguments.iter().filter_map(block).collect()
    }

    /// The sizes of the arguments that wait in the tier.
    pub fn waiting(&self) -> impl Iterator<Item = Bytes> {
        let waits = |argument: &&Argument| matches!(argument.at, ArgumentPlace::Tier(_));
        self.arguments.iter().filter(waits).map(|argument| argument.size)
    }

    /// All that it needs, and its arguments that wait in the tier.
    pub fn all(&self) -> Needs {
        Needs { arguments: self.waiting().collect(), ..self.needs.clone() }
    }

    /// The same without what it has.
    pub fn rest(&self) -> Needs {
        Needs {
            arguments: self.waiting().collect(),
            scratch: if self.had.scratch { Bytes::ZERO } else { self.needs.scratch },
            arrays: self.needs.arrays.get(self.had.blocks.len()..).unwrap_or_default().to_vec(),
        }
    }
}
