//! Buffers as compaction and spilling know them.

use std::sync::Arc;

use crate::{
    engine::EngineBuffer,
    error::{Error, Result},
    memory::{BlockId, MoveBarrier, Provenance, next_use::UseKey},
    runtime::{
        buffer::{body::Body, pjrt_buffer::Buffer, storage::Storage},
        device_memory::{Allocation, LockedForMove, Occupied, Resident, Spillable},
        shape::Shape,
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

    fn may_spill(&self) -> bool {
        self.usage().move_barrier().is_none() && self.usage().peek(|body| body.wanted == 0)
    }

    fn spillable(&self) -> Option<Spillable> {
        self.usage().peek_movable(|body| {
            let allocation = body.allocation().filter(|_| body.wanted == 0)?;
            let key = UseKey::new(allocation.provenance(), || self.number.get());
            Some(Spillable { size: allocation.size(), key, copy: body.storage.copy_block() })
        })
    }

    fn copy(&self) -> Option<BlockId> {
        self.usage().peek(|body| body.storage.copy_block())
    }

    fn forget_copy(&self) -> Bytes {
        let forgotten = self.usage().lock().storage.forget_copy();
        forgotten.map_or(Bytes::ZERO, |copy| copy.size())
    }

    fn use_key(&self) -> Option<UseKey> {
        // Only a program's results share their buffer with others, in the output cache, and have another key.
        let provenance = self.usage().peek(|body| body.block().map(Allocation::provenance))?;
        Some(UseKey::new(provenance, || self.number.get()))
    }

    fn waits(&self) -> Option<(Arc<Shape>, Provenance)> {
        let state = self.state();
        match &state.storage {
            Storage::Spilled(spilled) if state.move_barrier().is_none() => {
                Some((Arc::clone(&self.shape), spilled.provenance()))
            }
            _ => None,
        }
    }

    fn bring_back(self: Arc<Self>, allocation: Allocation) -> Result<bool> {
        let from = |body: &Body| match &body.storage {
            Storage::Spilled(spilled) if self.session.is_open() => Some(Address::new(spilled.address() as u64)),
            _ => None,
        };
        let Some(from) = self.usage().lock_for_move(from) else { return Ok(false) };
        let mut locked = Locked { buffer: Arc::clone(&self), locked: true, prepared: None };
        let to = allocation.block().address;
        let memory = allocation.memory();
        let Some(tier) = &memory.tier else { return Ok(false) };
        // SAFETY: the locked buffer's bytes are at `from`, and nothing uses them; the new block is as large, and
        // nothing uses it.
        unsafe { tier.copy(memory, from, to, locked.bytes())? };
        // SAFETY: the bytes are in the new block, which lives as long as the allocation that the buffer gets.
        unsafe { locked.prepare(to)? };
        let Some((fresh, _)) = locked.prepared.take() else { return Ok(false) };
        locked.locked = false;
        let old = self.usage().unlock_after_move(|body| {
            body.storage.came_back(allocation);
            body.replace_view(fresh)
        });
        self.enter_residents();
        drop(old);
        Ok(true)
    }

    fn lock_for_move(self: Arc<Self>, block: BlockId) -> Option<Box<dyn LockedForMove>> {
        self.lock_if(block, |_| true)
    }

    fn lock_to_spill(self: Arc<Self>, block: BlockId) -> Option<Box<dyn LockedForMove>> {
        self.lock_if(block, |body| body.wanted == 0)
    }
}

impl Buffer {
    /// Locks the buffer for a move, if it lies in `block` and may move, and `may` says so.
    fn lock_if(self: Arc<Self>, block: BlockId, may: impl FnOnce(&Body) -> bool) -> Option<Box<dyn LockedForMove>> {
        let look = |body: &Body| {
            let allocation = body.allocation()?;
            (allocation.block().id == block && self.session.is_open() && may(body)).then_some(())
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
    fn address(&self) -> Option<Address> {
        let address = self.buffer.usage().peek(|body| body.storage.address())?;
        Some(Address::new(address as u64))
    }

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

    fn copy(&self) -> Option<Address> {
        self.buffer.usage().peek(|body| body.storage.copy())
    }

    fn spilled(mut self: Box<Self>, block: Option<Allocation>) -> Option<BlockId> {
        let (fresh, _) = self.prepared.take()?;
        self.locked = false;
        let (old, waits_in) = self.buffer.usage().unlock_after_move(|body| {
            let view = body.replace_view(fresh);
            let held = match block {
                Some(block) => std::mem::replace(&mut body.storage, Storage::Spilled(block)).into_allocation(),
                None => body.storage.spill_to_copy(),
            };
            let waits_in = body.storage.block().map(|block| block.block().id);
            ((view, held), waits_in)
        });
        // As above: the view first.
        drop(old);
        waits_in
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.locked {
            self.buffer.usage().unlock_after_move(|_| ());
        }
    }
}
