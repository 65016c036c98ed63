//! Which parts of a move are exchanged, and which are copied.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{
    device::{
        host::{
            cuts::{self, Cuts},
            exchange::Move,
        },
        shift::{Direction, Extent, Shift},
    },
    units::{Address, Bytes},
};

/// From what size on an exchange is worth it, whatever else runs; `mover` has the measurements.
const LEAST: Bytes = Bytes::mib(16);

/// How exchanges go on this device.
#[derive(Debug)]
pub(super) struct Exchanges {
    pub(super) unit: Bytes,
    pub(super) least: Bytes,
    /// The kernel refused one: all is copied from then on.
    refused: AtomicBool,
    pub(super) cuts: Mutex<Cuts>,
}

impl Exchanges {
    /// Of whole units, within the running kernel's limit of mappings.
    pub(super) fn new(unit: Bytes) -> Self {
        Self::with(unit, LEAST, Cuts::new(cuts::limit()))
    }

    /// Of ranges that are alike within `unit` and have `least` bytes.
    pub(super) fn with(unit: Bytes, least: Bytes, cuts: Cuts) -> Self {
        Self { unit, least: least.max(unit), refused: AtomicBool::new(false), cuts: Mutex::new(cuts) }
    }

    pub(super) fn are_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Notes that a region is released.
    pub(super) fn released(&self, region: Extent) {
        self.cuts.lock().forget(region);
    }

    /// Bytes before the first and behind the last whole unit in the order in which the parts go, where the whole
    /// units in between are enough for an exchange.
    fn edges(&self, shift: Shift) -> Option<(Bytes, Bytes)> {
        let Shift { source, destination, direction, .. } = shift;
        let rest = |address: Address| address.get() % self.unit.get();
        if self.are_refused() || rest(source.start) != rest(destination.start) || source.bytes < self.least {
            return None;
        }
        let tail = Bytes::new(rest(source.end()));
        let head = Bytes::new((self.unit.get() - rest(source.start)) % self.unit.get());
        let whole = source.bytes.checked_sub(head)?.checked_sub(tail)?;
        (whole >= self.least).then_some(match direction {
            Direction::Down => (head, tail),
            Direction::Up => (tail, head),
        })
    }

    /// Makes a move.
    pub(super) fn carry(&self, block: Move) {
        let shift = block.shift();
        let Some((first, last)) = self.edges(shift) else { return block.copy() };
        // In order, the foremost first, so that no part is overwritten before it has moved.
        let (edge, rest) = block.split(first);
        let (whole, other_edge) = match rest {
            Some(rest) => {
                let bytes = rest.shift().source.bytes - last;
                rest.split(bytes)
            }
            None => (None, None),
        };
        edge.into_iter().for_each(Move::copy);
        whole.into_iter().for_each(|part| self.carry_whole(part));
        other_edge.into_iter().for_each(Move::copy);
    }

    /// Moves whole units, by exchanging them as far as that goes.
    fn carry_whole(&self, block: Move) {
        // Held while the kernel works: the book must say where mappings end when the next exchange reads it.
        let mut cuts = self.cuts.lock();
        let mut left = Some(block);
        while let Some(block) = left {
            if self.are_refused() || !cuts.have_room() {
                drop(cuts);
                return block.copy();
            }
            let bytes = cuts.piece(block.shift());
            let (piece, rest) = block.split(bytes);
            left = rest;
            let Some(piece) = piece else { continue };
            // Between cuts, a piece is worth an exchange where other threads sleep: it keeps the pages warm as well.
            if bytes.get() < self.least.get() / 4 {
                piece.copy();
                continue;
            }
            let shift = piece.shift();
            let done = piece.exchange(&mut |_| Ok(()));
            cuts.exchanged(shift);
            if let Err(errno) = done {
                self.refused.store(true, Ordering::Relaxed);
                log::info!("moves of blocks copy from now on, because mremap of {} failed: {errno}", bytes);
            }
        }
    }
}
