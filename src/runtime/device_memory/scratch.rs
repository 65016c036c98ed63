//! The part of a device's memory that is reserved for a program's scratch.

use std::sync::Arc;

use crate::{memory::Execution, runtime::device_memory::memory::DeviceMemory, units::Bytes};

/// The lowest part of a device's memory, reserved for one execution of a program.
pub struct ScratchReservation {
    memory: Arc<DeviceMemory>,
    bytes: Bytes,
}

impl ScratchReservation {
    /// A reservation of `bytes`, which the arena has just made.
    pub fn new(memory: &Arc<DeviceMemory>, bytes: Bytes) -> Self {
        Self { memory: Arc::clone(memory), bytes }
    }

    /// The program is about to run: see [`crate::memory::Arena::note_launch`].
    pub fn note_launch(&self, run: Execution) {
        self.memory.note_launch(self.bytes, run);
    }
}

impl Drop for ScratchReservation {
    fn drop(&mut self) {
        self.memory.end_scratch(self.bytes);
    }
}
