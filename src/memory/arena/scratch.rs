//! Programs' scratch: the low end of the pool, kept for programs while they run, as a TPU does.
//!
//! ```text
//!  | scratch |  blocks, holes ...                                                         |
//!  0         floor = the largest scratch of the programs under way, or what it was before
//! ```
//!
//! While a block at the low end cannot move, because an outsider holds its address, scratch lies in another hole: a TPU
//! has no such blocks, and programs must not fail for as long as a NumPy view lives. Up to a MiB of it (or a thousandth
//! of the pool) lies at the high end while there is any block at the low one: nothing is moved for so little.
//!
//! A device runs one program after another, so programs that wait for each other share one scratch. When the last
//! one is done the floor stays up, because the next step wants it again; an allocation that finds no room lowers it to
//! what is needed at that time: on a TPU too, arrays outrank programs (XLA, `docs/errors/error_0100.md`).

use crate::{
    memory::{
        arena::{compaction::Compaction, core::Arena},
        oom::OutOfMemory,
        provenance::Execution,
        space::node::SpanState,
    },
    units::Bytes,
};

impl Arena {
    /// Keeps the lowest `bytes` of the pool for a program, until [`Self::end_scratch`] with the same number. A strategy
    /// whose pool is not one region keeps nothing. O(programs under way).
    ///
    /// # Errors
    /// The numbers, when a block is in the way; [`super::Goal::Bottom`] may move it.
    pub fn begin_scratch(&self, bytes: Bytes) -> Result<(), OutOfMemory> {
        let mut state = self.state.lock();
        if state.begin_scratch(bytes) { Ok(()) } else { Err(self.no_scratch(&state, bytes)) }
    }

    /// As [`Self::begin_scratch`], wherever there is a hole: for a low end with a block that cannot move, such as one
    /// whose address an outsider holds. It stays there until no program needs any and an allocation takes the room.
    ///
    /// # Errors
    /// The numbers, when no hole has so much; [`super::Goal::Hole`] may open one.
    pub fn begin_scratch_anywhere(&self, bytes: Bytes) -> Result<(), OutOfMemory> {
        let mut state = self.state.lock();
        if state.begin_scratch_anywhere(bytes) { Ok(()) } else { Err(self.no_scratch(&state, bytes)) }
    }

    /// Whether a pinned block lies in the lowest `bytes` of the pool. O(spans there).
    pub fn is_bottom_pinned(&self, bytes: Bytes) -> bool {
        let state = self.state.lock();
        let Some((space, bottom)) = state.placement.space().zip(state.placement.bottom()) else { return false };
        let end = space.region(bottom).map(|region| region.address + bytes);
        let mut low = space.spans(bottom).take_while(|span| Some(span.address) < end);
        low.any(|span| span.state == SpanState::Pinned)
    }

    /// A program that needs `bytes` of scratch is about to run, as `run`: they count in the peaks, with what is in use
    /// now. So a peak is what the program needs, whether those before it have ended or not. O(1).
    pub fn note_launch(&self, bytes: Bytes, run: Execution) {
        self.state.lock().note_launch(bytes, run);
    }

    /// A program that [`Self::begin_scratch`] kept `bytes` for is done.
    pub fn end_scratch(&self, bytes: Bytes) {
        let mut state = self.state.lock();
        let under_way = &mut state.scratch.under_way;
        // Of several that need as much, what is kept is the same whichever it is; a launch that failed was the last.
        if let Some(index) = under_way.iter().rposition(|&(other, _)| other == bytes) {
            under_way.remove(index);
            self.state.wake(&state);
        }
    }
}

impl Compaction<'_> {
    /// Ends the compaction, and keeps the low end that it emptied before another allocation can use it.
    ///
    /// # Errors
    /// As [`Arena::begin_scratch`].
    pub fn begin_scratch(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        self.finish(
            |state, arena| if state.begin_scratch(bytes) { Ok(()) } else { Err(arena.no_scratch(state, bytes)) },
        )
    }

    /// Ends the compaction, and keeps what it opened before another allocation can use it.
    ///
    /// # Errors
    /// As [`Arena::begin_scratch_anywhere`].
    pub fn begin_scratch_anywhere(self, bytes: Bytes) -> Result<(), OutOfMemory> {
        self.finish(
            |state, arena| {
                if state.begin_scratch_anywhere(bytes) { Ok(()) } else { Err(arena.no_scratch(state, bytes)) }
            },
        )
    }
}
