//! The part of a device's memory that is set aside for a program's scratch.

use std::sync::Arc;

use crate::{runtime::device_memory::memory::DeviceMemory, units::Bytes};

/// The lowest part of a device's memory, kept for one run of a program.
pub struct ScratchReservation {
    memory: Arc<DeviceMemory>,
    bytes: Bytes,
}

impl ScratchReservation {
    /// Of `bytes` that the arena has just begun to keep.
    pub fn new(memory: &Arc<DeviceMemory>, bytes: Bytes) -> Self {
        Self { memory: Arc::clone(memory), bytes }
    }
}

impl Drop for ScratchReservation {
    fn drop(&mut self) {
        self.memory.end_scratch(self.bytes);
    }
}
