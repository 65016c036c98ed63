//! A buffer without an array, whose block and view the result of a program may take.
//!
//! ```text
//!   destroyed by its owner ---> VacantBuffer <--- new, in a block that was allocated for a result
//!                                |   ^   |
//!                       output cache     destination ---> a program writes into it, and it is the result's buffer
//!                                                    `--> the result lies elsewhere: block and view go their own ways
//! ```
//!
//! To everyone else there is nothing in the block: it is no resident's, and it does not move.

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, EngineError, Live, Raw, asynchronous::Dependency, views},
    error::{Error, Result},
    memory::{Execution, OriginId, Provenance},
    runtime::{
        buffer::{
            body::{Body, Vacated},
            pjrt_buffer::{Buffer, CacheSlot, Place},
            storage::{Access, Storage},
            usage::{Definition, Life, State},
        },
        device_memory::Allocation,
        shape::Shape,
    },
    sys,
};

/// See the module's documentation.
///
/// Dropped, it destroys the view, which may block, and frees the block: only in calls of the C API, and without a lock.
pub struct VacantBuffer {
    /// `None` once a result has it, or its parts were taken.
    buffer: Option<Arc<Buffer>>,
    vacated: Vacated,
    /// Whether the buffer is among the residents of its memory.
    resident: bool,
}

impl VacantBuffer {
    /// A new buffer over `view`, a view of the block, for a result of this shape.
    pub fn new(
        view: EngineBuffer,
        place: Place,
        shape: Arc<Shape>,
        allocation: Allocation,
        cache_slot: Option<CacheSlot>,
    ) -> Self {
        let (handle, address) = (Raw(view.raw()), allocation.address());
        let vacated = Vacated { handle, address, retired: false, whole: true, transferred: false };
        let session = view.session();
        let body = Body::vacant(view, Storage::Arena(allocation));
        let buffer = Buffer::with_body(session, body, place, shape, Access::Full, cache_slot);
        buffer.state().end(Life::Deleted);
        Self { buffer: Some(buffer), vacated, resident: false }
    }

    /// A buffer that was vacated.
    #[inline]
    pub fn of(buffer: Arc<Buffer>, vacated: Vacated) -> Self {
        Self { buffer: Some(buffer), vacated, resident: true }
    }

    /// The engine's buffer.
    #[inline]
    pub fn handle(&self) -> *mut sys::PJRT_Buffer {
        self.vacated.handle.0
    }

    /// The block's address.
    #[inline]
    pub fn address(&self) -> usize {
        self.vacated.address
    }

    /// Whether a transfer or a query has used the bytes.
    #[inline]
    pub fn is_transferred(&self) -> bool {
        self.vacated.transferred
    }

    /// The array's bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.shape.size as u64)
    }

    /// The buffer, until a result has it.
    #[inline]
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        self.buffer.as_ref()
    }

    /// Looks at the block, until a result has it.
    pub fn with_block<R>(&self, look: impl FnOnce(&Allocation) -> R) -> Option<R> {
        let state = self.buffer.as_ref()?.state();
        state.storage.allocation().map(look)
    }

    /// Whether a program that was donated the engine's buffer has consumed it; also where the engine does not say.
    /// Asking does not block, even while the program runs.
    pub fn is_consumed(&self) -> bool {
        let Some(buffer) = self.buffer.as_ref().filter(|buffer| buffer.session.is_open()) else { return false };
        // SAFETY: the client is open, and the engine's buffer lives until it is taken out of the buffer or replaced,
        // which this knows of.
        views::is_consumed(unsafe { Live::new(buffer.session.engine, self.vacated.handle.0) }, true)
    }

    /// Keeps it in the cache for the next execution, if there may be one. Only in calls of the C API.
    pub fn keep(mut self) {
        if let Some(buffer) = self.buffer.take_if(|buffer| self.vacated.whole && buffer.cache_slot().is_some())
            && let Some(slot) = buffer.cache_slot()
        {
            let (cache, destination) = (Arc::clone(&slot.cache), slot.destination);
            cache.put(destination, buffer, self.vacated);
        }
    }

    /// Says that the block has no owner until it is written again.
    pub fn retire(&mut self) {
        if !std::mem::replace(&mut self.vacated.retired, true) {
            self.with_block(Allocation::retire);
        }
    }

    /// Makes a retired block one that the execution in `provenance` is about to write.
    ///
    /// # Errors
    /// The arena's, which would be a bug of pjrt-arena.
    #[inline]
    pub fn renew(&mut self, provenance: Provenance) -> Result<()> {
        if std::mem::take(&mut self.vacated.retired) { self.renew_retired(provenance) } else { Ok(()) }
    }

    fn renew_retired(&mut self, provenance: Provenance) -> Result<()> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let mut state = buffer.state();
        if let Some(allocation) = state.storage.allocation_mut()
            && allocation.renew(provenance)?
        {
            // The residents know it by another number, and not at all by this one.
            self.resident = false;
        }
        Ok(())
    }

    /// A program has written an array into the buffer, of which `output` is the engine's buffer: it is live, and not
    /// this one's any longer. Returns the engine's buffer that the program consumed, too.
    ///
    /// # Errors
    /// `output`, if a result has the buffer already.
    #[inline]
    pub fn occupy(
        &mut self,
        output: EngineBuffer,
        (origin, run): (OriginId, Execution),
        writing: Definition,
    ) -> std::result::Result<(Arc<Buffer>, Option<EngineBuffer>), EngineBuffer> {
        let Some(buffer) = self.buffer.take() else { return Err(output) };
        let mut state = buffer.state();
        state.occupy();
        if let Some(allocation) = state.storage.allocation_mut() {
            allocation.set_provenance(origin, Some(run));
            if !self.resident {
                allocation.memory().residents.enter(allocation.block().id, buffer.as_resident());
            }
        }
        let consumed = state.replace_view(output);
        state.define_by(writing);
        drop(state);
        Ok((buffer, consumed))
    }

    /// Takes the engine's buffer and the block out; `None` if a result has them. The engine's buffer goes before the
    /// block, and without a lock.
    #[must_use]
    pub fn take_out(&mut self) -> Option<(Option<EngineBuffer>, Allocation)> {
        self.buffer.take()?.state().take_out()
    }

    /// Frees the block, on any thread. The engine's buffer is dropped where that may block.
    pub fn free(mut self) -> Option<EngineBuffer> {
        self.take_out()?.0
    }

    /// Has the programs that are passed the engine's buffer from here on wait for what is given back.
    ///
    /// # Errors
    /// As [`EngineBuffer::wait_for`].
    pub fn wait_for(&mut self) -> std::result::Result<Dependency, EngineError> {
        let mut view = self.state().and_then(|mut state| state.take_view()).ok_or_else(gone)?;
        // Without the lock.
        let outcome = view.wait_for();
        drop(self.replace_view(view));
        outcome
    }

    /// Replaces the engine's buffer, and returns the one before.
    #[must_use]
    pub fn replace_view(&mut self, view: EngineBuffer) -> Option<EngineBuffer> {
        self.vacated.handle = Raw(view.raw());
        self.state().and_then(|mut state| state.replace_view(view))
    }

    fn state(&self) -> Option<parking_lot::MutexGuard<'_, State<Body>>> {
        self.buffer.as_ref().map(|buffer| buffer.state())
    }
}

/// What would be a bug of pjrt-arena.
#[cold]
fn gone() -> EngineError {
    EngineError::Own(Error::internal("a destination is used after a result has taken it"))
}

impl Drop for VacantBuffer {
    #[inline]
    fn drop(&mut self) {
        if self.buffer.is_some() {
            // The view first.
            drop(self.take_out());
        }
    }
}
