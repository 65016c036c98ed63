//! Programs' scratch: the low end of the pool, kept for programs while they run, as a TPU does.
//!
//! ```text
//!  | scratch |  blocks, holes ...                                                         |
//!  0         floor = the largest scratch of the programs under way, or what it was before
//! ```
//!
//! A device runs one program after another, so programs that wait for each other share one scratch. When the last
//! one is done the floor stays up, because the next step wants it again; an allocation that finds no room lowers it to
//! what is needed at that time: on a TPU too, arrays outrank programs (XLA, `docs/errors/error_0100.md`).

use std::fmt;

use crate::{
    error::{Code, Error, Result},
    memory::{
        arena::{Arena, Compaction, State},
        space::NodeId,
    },
    units::{Bytes, short},
};

/// The scratch at the bottom of one arena.
#[derive(Debug, Default)]
pub(super) struct Floor {
    span: Option<NodeId>,
    bytes: Bytes,
    /// What the programs under way need.
    under_way: Vec<Bytes>,
}

impl Floor {
    /// The span that is kept.
    pub(super) fn span(&self) -> Option<NodeId> {
        self.span
    }

    /// What is kept now.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// There is no room for a program's scratch. All numbers are of the instant of the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoScratch {
    /// What the program needs.
    pub wanted: Bytes,
    /// As in [`crate::memory::Stats::free_bytes`].
    pub free: Bytes,
    /// As in [`crate::memory::Stats::reserved_bytes`].
    pub reserved: Bytes,
}

impl fmt::Display for NoScratch {
    /// The TPU runtime's words (XLA, `docs/errors/error_0101.md`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reservable = self.free + self.reserved;
        write!(
            f,
            "Attempting to reserve {} at the bottom of memory. That was not possible. There are {} free, {} reserved, \
             and {} reservable.",
            short(self.wanted),
            short(self.free),
            short(self.reserved),
            short(reservable)
        )
    }
}

impl std::error::Error for NoScratch {}

impl From<NoScratch> for Error {
    fn from(error: NoScratch) -> Self {
        Self::new(Code::ResourceExhausted, error.to_string())
    }
}

impl Arena {
    /// Keeps the lowest `bytes` of the pool for a program, until [`Self::end_scratch`] with the same number. A strategy
    /// whose pool is not one region keeps nothing. O(programs under way).
    ///
    /// # Errors
    /// The numbers, when a block is in the way; [`super::Goal::Bottom`] may move it.
    pub fn begin_scratch(&self, bytes: Bytes) -> Result<(), NoScratch> {
        self.state.lock().begin_scratch(bytes)
    }

    /// A program that [`Self::begin_scratch`] kept `bytes` for is done.
    pub fn end_scratch(&self, bytes: Bytes) {
        let under_way = &mut self.state.lock().scratch.under_way;
        if let Some(index) = under_way.iter().position(|&other| other == bytes) {
            under_way.swap_remove(index);
        }
    }
}

impl Compaction<'_> {
    /// Ends the compaction, and keeps the low end that it emptied before another allocation can use it.
    ///
    /// # Errors
    /// As [`Arena::begin_scratch`].
    pub fn begin_scratch(self, bytes: Bytes) -> Result<(), NoScratch> {
        self.finish(|state, _| state.begin_scratch(bytes))
    }
}

impl State {
    fn begin_scratch(&mut self, bytes: Bytes) -> Result<(), NoScratch> {
        if bytes > self.scratch.bytes
            && let Some(region) = self.placement.bottom()
        {
            let floor = self.scratch.span;
            let space = self.placement.space_mut();
            let raised = space.and_then(|space| Some((space.raise_floor(region, floor, bytes)?, space)));
            let Some((span, space)) = raised else {
                return Err(NoScratch { wanted: bytes, free: self.placement.free(), reserved: self.scratch.bytes });
            };
            let before = self.scratch.bytes;
            self.scratch.bytes = space.size(span);
            self.scratch.span = Some(span);
            self.counters.reserved_total += self.scratch.bytes.saturating_sub(before);
            self.note_scratch(before);
            self.counters.peak_reserved = self.counters.peak_reserved.max(self.scratch.bytes);
        }
        self.scratch.under_way.push(bytes);
        Ok(())
    }

    /// Gives up what no program under way needs; whether that was anything.
    #[cold]
    pub(super) fn lower_floor(&mut self) -> bool {
        let needed = self.scratch.under_way.iter().copied().max().unwrap_or(Bytes::ZERO);
        let Some(span) = self.scratch.span else { return false };
        let Some(space) = self.placement.space_mut() else { return false };
        let before = self.scratch.bytes;
        if needed.is_zero() {
            // The region stays: the strategy keeps it whatever is in it.
            let _ = space.free(span);
            (self.scratch.span, self.scratch.bytes) = (None, Bytes::ZERO);
        } else {
            space.trim_span(span, needed);
            self.scratch.bytes = space.size(span);
        }
        self.note_scratch(before);
        self.scratch.bytes < before
    }
}
