//! A block with the view that the engine will write a result into.

use std::sync::Arc;

use crate::{
    engine::EngineBuffer,
    runtime::{
        buffer::Buffer,
        device_memory::{Allocation, dropped::DroppedArray},
    },
};

/// See the module's documentation. Dropped before a program was passed it, it destroys the view and frees the block.
pub struct Destination {
    /// The view. It goes before the block does.
    pub view: EngineBuffer,
    /// The block.
    pub block: DestinationBlock,
    /// The buffer that had the block in the execution before, if it comes from the output cache.
    pub reused: Option<Arc<Buffer>>,
}

impl Destination {
    /// A destination in a block that nothing uses.
    pub fn new(view: EngineBuffer, allocation: Allocation) -> Self {
        Self { view, block: DestinationBlock::new(allocation, None), reused: None }
    }

    /// The block's address.
    pub fn address(&self) -> usize {
        self.block.allocation.as_ref().map_or(0, Allocation::address)
    }
}

/// A block, and the array that had it before, if executions still use it: that array takes the block back if there is
/// no next execution.
pub struct DestinationBlock {
    allocation: Option<Allocation>,
    previous: Option<Arc<dyn DroppedArray<Allocation>>>,
}

impl DestinationBlock {
    /// A block that `previous` had, if executions of that one still use it.
    #[inline]
    pub fn new(allocation: Allocation, previous: Option<Arc<dyn DroppedArray<Allocation>>>) -> Self {
        Self { allocation: Some(allocation), previous }
    }

    /// The block.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }

    /// The block, taken out.
    #[inline]
    pub fn take(mut self) -> Option<Allocation> {
        let allocation = self.allocation.take();
        self.previous = None;
        // Nothing is left to give back, so that the hot path need not look.
        std::mem::forget(self);
        allocation
    }
}

impl Drop for DestinationBlock {
    fn drop(&mut self) {
        if let (Some(allocation), Some(previous)) = (self.allocation.take(), self.previous.take()) {
            previous.take_back(allocation);
        }
    }
}
