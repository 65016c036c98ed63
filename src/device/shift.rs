//! A block and where it goes: what is uncovered, and in which order its parts go.

use std::cmp::Ordering;

use crate::units::{Address, Bytes};

/// A part of a device's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: Address,
    pub(super) bytes: Bytes,
}

impl Extent {
    pub(super) fn end(self) -> Address {
        self.start + self.bytes
    }

    /// The last `bytes` of it, which are no more than it has.
    pub(super) fn last(self, bytes: Bytes) -> Self {
        Self { start: self.start + (self.bytes - bytes), bytes }
    }

    /// The first `bytes` of it.
    pub(super) fn first(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    /// The whole units in it; no bytes where there are none.
    pub(super) fn whole(self, unit: Bytes) -> Self {
        let end = Bytes::new(self.end().get()).round_down(unit);
        let start = Bytes::new(self.start.get()).checked_round_up(unit).unwrap_or(end);
        Self { start: Address::new(start.get()), bytes: end.saturating_sub(start) }
    }
}

/// A block and where it goes, with what that uncovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub(super) source: Extent,
    pub(super) destination: Extent,
    /// What of the destination is not source.
    pub(super) hole: Extent,
    /// What of the source is not destination.
    pub(super) gap: Extent,
    pub(super) direction: Direction,
}

/// Which way a block goes. Its parts go in this order: the foremost first, so that none is overwritten before it has
/// moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Down,
    Up,
}

impl Shift {
    /// From `source` to `to`; `None` if that is no move.
    pub(super) fn new(source: Extent, to: Address) -> Option<Self> {
        let destination = Extent { start: to, ..source };
        match to.cmp(&source.start) {
            _ if source.bytes.is_zero() => None,
            Ordering::Equal => None,
            Ordering::Less => {
                let apart = source.bytes.min(source.start - to);
                let (hole, gap) = (destination.first(apart), source.last(apart));
                Some(Self { source, destination, hole, gap, direction: Direction::Down })
            }
            Ordering::Greater => {
                let apart = source.bytes.min(to - source.start);
                let (hole, gap) = (destination.last(apart), source.first(apart));
                Some(Self { source, destination, hole, gap, direction: Direction::Up })
            }
        }
    }

    /// The foremost `bytes` of it, and what is left.
    pub(super) fn split(self, bytes: Bytes) -> (Option<Self>, Option<Self>) {
        let rest = self.source.bytes - bytes;
        let part = |of: fn(Extent, Bytes) -> Extent, bytes| {
            Self::new(of(self.source, bytes), of(self.destination, bytes).start)
        };
        match self.direction {
            Direction::Down => (part(Extent::first, bytes), part(Extent::last, rest)),
            Direction::Up => (part(Extent::last, bytes), part(Extent::first, rest)),
        }
    }
}
