//! A vacant buffer that the engine will write a result into.

use std::sync::Arc;

use crate::{
    engine::EngineBuffer,
    memory::{Execution, OriginId},
    runtime::{
        buffer::{Buffer, VacantBuffer, usage::Definition},
        device_memory::{Allocation, dropped::DroppedArray},
    },
};

/// See the module's documentation. Dropped before a program was passed it, it destroys the view and frees the block;
/// but an array that executions still use takes the block back that it had.
pub struct Destination {
    /// The buffer.
    pub vacant: VacantBuffer,
    /// The array that had the block before, if executions still use it.
    previous: Option<Arc<dyn DroppedArray<Allocation>>>,
}

impl Destination {
    /// A buffer in whose block `previous` was, if executions of that one still use it.
    #[inline]
    pub fn new(vacant: VacantBuffer, previous: Option<Arc<dyn DroppedArray<Allocation>>>) -> Self {
        Self { vacant, previous }
    }

    /// Whether the engine begins a program that is donated this at once: no use of the view before is under way for the
    /// engine.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.previous.is_none() && !self.vacant.is_transferred()
    }

    /// As [`VacantBuffer::occupy`]: the program comes, so that the array before gets nothing back.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn occupy(
        &mut self,
        output: EngineBuffer,
        written_by: (OriginId, Execution),
        writing: Definition,
    ) -> Result<(Arc<Buffer>, Option<EngineBuffer>), EngineBuffer> {
        self.previous = None;
        self.vacant.occupy(output, written_by, writing)
    }

    /// The view and the block, of a program that comes; `None` if a result has them.
    #[must_use]
    pub fn take_out(&mut self) -> Option<(Option<EngineBuffer>, Allocation)> {
        self.previous = None;
        self.vacant.take_out()
    }
}

impl Drop for Destination {
    #[inline]
    fn drop(&mut self) {
        if let Some(previous) = self.previous.take()
            && let Some((view, allocation)) = self.vacant.take_out()
        {
            // The view goes before the block does.
            drop(view);
            previous.take_back(allocation);
        }
    }
}
