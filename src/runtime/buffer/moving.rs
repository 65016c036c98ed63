//! Buffers as compaction knows them.

use std::sync::Arc;

use crate::{
    engine::EngineBuffer,
    error::{Error, Result},
    memory::{BlockId, MoveBarrier},
    runtime::{
        buffer::{body::Body, pjrt_buffer::Buffer},
        device_memory::{Allocation, LockedForMove, Occupied, Resident},
    },
    units::{Address, Bytes},
};

impl Resident for Buffer {
    fn occupied(&self) -> Option<Occupied> {
        let occupied = |allocation: &Allocation| Occupied {
            block: allocation.block().id,
            size: allocation.size(),
            provenance: allocation.provenance(),
        };
        self.usage().peek(|body| body.allocation().map(occupied))
    }

    fn move_barrier(&self) -> Option<MoveBarrier> {
        self.usage().move_barrier()
    }

    fn lock_for_move(self: Arc<Self>, block: BlockId) -> Option<Box<dyn LockedForMove>> {
        let look = |body: &Body| {
            let allocation = body.allocation()?;
            (allocation.block().id == block && self.session.is_open()).then_some(())
        };
        self.usage().lock_for_move(look)?;
        Some(Box::new(Locked { buffer: self, locked: true, prepared: None }))
    }
}

/// A buffer that is locked for a move.
struct Locked {
    buffer: Arc<Buffer>,
    /// Whether it still is.
    locked: bool,
    /// The view at the new address, and the address.
    prepared: Option<(EngineBuffer, Address)>,
}

impl LockedForMove for Locked {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.buffer.shape.size as u64)
    }

    unsafe fn prepare(&mut self, to: Address) -> Result<()> {
        let Buffer { session, memory, shape, .. } = &*self.buffer;
        // SAFETY: the bytes are at `to`, in a block that outlives the view, as this function asks; the client was
        // open when the buffer was locked, in this call of the C API.
        let view = unsafe { EngineBuffer::view(session, *memory, to.get() as usize, shape.array()) };
        self.prepared = Some((view.map_err(|error| Error::internal(error.message()))?, to));
        Ok(())
    }

    fn moved(mut self: Box<Self>) {
        let Some((fresh, to)) = self.prepared.take() else { return };
        self.locked = false;
        let old = self.buffer.usage().unlock_after_move(|body| body.move_to(fresh, to));
        // Nothing uses it any more, and no lock is held.
        drop(old);
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.locked {
            self.buffer.usage().unlock_after_move(|_| ());
        }
    }
}
