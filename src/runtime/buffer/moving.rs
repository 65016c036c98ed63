//! Buffers as the mover knows them.

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, Raw},
    error::{Error, Result},
    memory::{BlockId, MoveBarrier},
    runtime::{
        buffer::{body::Body, pjrt_buffer::Buffer},
        device_memory::{Allocation, LockedForMove, Occupied, Resident},
    },
    sys,
    units::{Address, Bytes},
};

impl Resident for Buffer {
    fn occupied(&self) -> Option<Occupied> {
        let occupied =
            |held: &Allocation| Occupied { block: held.block().id, size: held.size(), provenance: held.provenance() };
        self.usage().peek(|body| body.held().map(occupied))
    }

    fn move_barrier(&self) -> Option<MoveBarrier> {
        self.usage().move_barrier()
    }

    fn lock_for_move(self: Arc<Self>, block: BlockId) -> Option<Box<dyn LockedForMove>> {
        let look = |body: &Body| {
            let held = body.held()?;
            (held.block().id == block && self.session.is_open()).then(|| body.handle())
        };
        let view = self.usage().lock_for_move(look)?;
        Some(Box::new(Locked { buffer: self, view: Some(view), prepared: None }))
    }
}

/// A buffer that is locked for a move.
struct Locked {
    buffer: Arc<Buffer>,
    /// Its view, until it has another one.
    view: Option<Raw<sys::PJRT_Buffer>>,
    /// The view at the new place, and the place.
    prepared: Option<(EngineBuffer, Address)>,
}

impl LockedForMove for Locked {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.buffer.shape.size as u64)
    }

    unsafe fn prepare(&mut self, to: Address) -> Result<()> {
        let Buffer { session, memory, shape, .. } = &*self.buffer;
        // SAFETY: the bytes are there, in a block that stays, as this function asks; the client was open when the buffer was
        // locked, in this call of the C API. The view is new, and ours.
        let view = unsafe {
            let view = session.view(*memory, to.get() as usize, shape.array());
            EngineBuffer::own(session, view.map_err(|error| Error::internal(error.message()))?)
        };
        self.prepared = Some((view, to));
        Ok(())
    }

    fn moved(mut self: Box<Self>) {
        let Some((fresh, to)) = self.prepared.take() else { return };
        let Some(old) = self.view.take() else { return };
        self.buffer.usage().unlock_after_move(|body| body.move_to(fresh.release(), to));
        // SAFETY: the old view was the buffer's, which has the new one; nothing uses it.
        unsafe { self.buffer.session.destroy(old) };
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.view.is_some() {
            self.buffer.usage().unlock_after_move(|_| ());
        }
    }
}
