//! Reuse in place: a retired block becomes another, live one.
//!
//! ```text
//!   retired block 7.1  -- reuse in place -->  live block 7.2, at the same address
//! ```
//!
//! The effect is that of freeing the block and allocating its size again, had the allocation found the same place: the
//! old id is stale, and numbers, peaks and history show one block going and one coming. But the place is never free in
//! between, so no other allocation can take it.

use crate::{
    error::{Error, Result},
    memory::{
        arena::{core::Arena, state::State, watched::Watched},
        block_table::{BlockId, Record},
        provenance::{Provenance, Request},
        space::node::SpanState,
        strategy::placement::Placed,
    },
};

impl Arena {
    /// Makes a retired block another, live one in the same place, and returns its id. The device must have finished
    /// with the bytes. O(1).
    ///
    /// # Errors
    /// `NOT_FOUND` for a stale or unknown id, `FAILED_PRECONDITION` for a block that is not retired; nothing changes
    /// then.
    pub fn reuse_in_place(&self, id: BlockId, provenance: Provenance) -> Result<BlockId> {
        let mut state = self.state.lock();
        let record = *state.table.get(id).ok_or_else(|| self.unknown(id))?;
        if record.state != SpanState::Retired {
            let name = &self.name;
            return Err(Error::failed_precondition(format!("arena `{name}`: block {id} is not retired")));
        }
        let reused = state.reuse(id, &record, provenance, &self.backing);
        // Threads that wait for retired blocks counted on this one.
        self.state.wake(&state);
        Ok(reused)
    }
}

impl State {
    fn reuse(&mut self, id: BlockId, record: &Record, provenance: Provenance, backing: &Watched) -> BlockId {
        let Record { requested: size, address, place, .. } = *record;
        let held = self.placement.reuse(place);
        // One reading of the clock for both: they are one event.
        let at = self.history.is_on().then(|| self.note_free(id, record, held, false));
        self.table.remove(id);
        self.counters.pending -= size;
        self.counters.pending_blocks -= 1;
        self.enter(Request { size, provenance }, Placed { place, address, held }, at, backing)
    }
}
