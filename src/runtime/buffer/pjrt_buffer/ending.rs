//! How a buffer ends: deletion, destruction, and the reuse of its block and handle.

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, EngineError, Live, Outcome},
    memory::Provenance,
    runtime::{
        buffer::{
            pjrt_buffer::{Buffer, LARGEST_CACHED},
            storage::{Access, Storage},
            usage::{Life, Trust, User},
            vacant::VacantBuffer,
        },
        device_memory::{
            Allocation,
            dropped::{DroppedArray, OrderedBy, Refused},
        },
    },
    sys,
};

impl Buffer {
    /// `PJRT_Buffer_Delete`: the buffer ends for its owner. What the engine still uses stays until it is done.
    ///
    /// # Errors
    /// The engine's.
    pub fn delete(&self) -> Outcome {
        let mut state = self.state();
        if !state.end(Life::Deleted) {
            return Ok(());
        }
        // A copy under way deletes the handle when it ends.
        let handle = if state.is_copied() { None } else { state.view().map(EngineBuffer::raw) };
        drop(state);
        let outcome = self.delete_handle(handle);
        self.retire_or_free();
        Ok(outcome?)
    }

    /// Deletes the engine's buffer, if there is one. The caller may hold no lock: the engine may tell an outsider in
    /// this call.
    ///
    /// # Errors
    /// The engine's.
    pub fn delete_handle(&self, handle: Option<*mut sys::PJRT_Buffer>) -> Result<(), EngineError> {
        let Some(handle) = handle.filter(|_| self.session.is_open()) else { return Ok(()) };
        // SAFETY: the client is open, and the handle is alive until this buffer is destroyed; it was not donated, so
        // this does not block.
        let live = unsafe { Live::new(self.session.engine, handle) };
        live.ask::<sys::PJRT_Buffer_Delete_Args>().map(drop)
    }

    /// `PJRT_Buffer_Destroy`: ends the caller's handle. Returns a buffer whose engine handle may only be destroyed
    /// once the program that consumed it is done: the operations under way keep it until then.
    #[must_use]
    #[inline]
    pub fn destroy(self: Arc<Self>) -> Option<Arc<Self>> {
        let mut state = self.state();
        let referenced = state.forget_references();
        if referenced && let Some(allocation) = state.allocation() {
            allocation.unpin();
        }
        // The engine still counts the references of a handle, and would answer its donation with a copy elsewhere.
        if !referenced && self.access == Access::Full && self.session.is_open() {
            // In this order: a buffer that is vacated and not kept would stay vacant.
            if let Some(slot) = &self.cache_slot
                && let Some(vacated) = state.vacate()
            {
                drop(state);
                let (cache, destination) = (Arc::clone(&slot.cache), slot.destination);
                cache.put(destination, self, vacated);
                return None;
            }
            if state.begin_recycling() {
                drop(state);
                self.offer();
                return None;
            }
        }
        let consumed = state.life() == Life::Donated && !state.is_unused();
        let was_live = state.end(Life::Deleted);
        drop(state);
        if consumed {
            return Some(self);
        }
        self.destroy_handle();
        // `PJRT_Buffer_Delete` has retired the block before; it is retired once.
        if was_live {
            self.retire_or_free();
        } else {
            self.release_if_unused();
        }
        None
    }

    /// Destroys the engine's buffer, if there still is one.
    pub fn destroy_handle(&self) {
        let view = self.state().take_view();
        // After the lock is released.
        drop(view);
    }

    /// Offers the block of a buffer that its owner dropped while it is in use to results that are launched later.
    fn offer(self: Arc<Self>) {
        // A small result is cached once it is free: that costs less.
        if self.shape.size <= LARGEST_CACHED && !self.session.orders_executions {
            return;
        }
        let place = {
            let state = self.state();
            state.allocation().map(|block| (Arc::clone(block.memory()), block.size(), block.provenance().origin))
        };
        if let Some((memory, block, origin)) = place {
            let bytes = self.shape.size;
            memory.dropped.offer(self, (bytes, block), origin);
        }
    }

    /// Gives a buffer that had none of its own the memory that it lies in; freed at once if nothing uses it any more.
    ///
    /// # Errors
    /// The memory, if the buffer was donated: then it is the result's of a program.
    pub fn take_over(&self, memory: Storage) -> Result<(), Storage> {
        let (before, freed) = {
            let mut state = self.state();
            if state.life() == Life::Donated {
                return Err(memory);
            }
            let before = std::mem::replace(&mut state.storage, memory);
            (before, state.take_unneeded())
        };
        // Dropped without the lock.
        drop((before, freed));
        Ok(())
    }

    /// Puts back a block that was taken out, or frees it if nothing uses it any more.
    fn put_back(&self, allocation: Allocation) {
        let freed = {
            let mut state = self.state();
            state.storage = Storage::Arena(allocation);
            state.take_unneeded()
        };
        drop(freed);
    }

    /// Ends an operation's use of the bytes, on any thread; `wrote` says that the operation wrote them and succeeded.
    /// If this was the last use of a buffer that is recycling, returns it, to be reused or destroyed.
    pub fn end_operation_use(self: Arc<Self>, wrote: bool, user: User) -> Option<VacantBuffer> {
        let mut state = self.state();
        if wrote {
            state.mark_defined();
        }
        state.end_use(user);
        if state.recycling && state.is_free() {
            state.recycling = false;
            if let Some(vacated) = state.vacate_free(true) {
                drop(state);
                return Some(VacantBuffer::of(self, vacated));
            }
        }
        let freed = state.take_unneeded();
        drop(state);
        // The arena has a lock of its own: freed after the buffer's is released.
        drop(freed);
        None
    }
}

impl DroppedArray<Allocation> for Buffer {
    fn is_in_use(&self) -> bool {
        self.state().recycling
    }

    fn take(
        &self,
        provenance: Provenance,
        ordered: OrderedBy<'_>,
    ) -> Result<(Option<EngineBuffer>, Allocation), Refused> {
        let mut state = self.state();
        if let OrderedBy::Buffer(reads_result_of) = ordered {
            match state.trust_of_recycling() {
                Trust::Any => {}
                Trust::Behind(run) => {
                    // It asks other buffers. No use of this one begins meanwhile.
                    drop(state);
                    if !reads_result_of(run) {
                        return Err(Refused::ThisProgram);
                    }
                    state = self.state();
                }
                Trust::Nobody => return Err(Refused::Always),
            }
        }
        let (view, mut allocation) = state.take_while_executing().ok_or(Refused::Always)?;
        drop(state);
        match allocation.renew(provenance) {
            Ok(_) => Ok((view, allocation)),
            Err(error) => {
                log::error!("{error}");
                self.take_back(allocation);
                Err(Refused::Always)
            }
        }
    }

    fn take_back(&self, allocation: Allocation) {
        allocation.retire();
        self.put_back(allocation);
    }
}
