//! Which parts of a move are exchanged, and which are copied.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{
    device::{
        host::{
            cuts::{self, Cuts},
            exchange,
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

    /// Moves `shift`.
    ///
    /// # Safety
    /// As for `Mover::relocate`.
    pub(super) unsafe fn carry(&self, shift: Shift) {
        let Some((first, last)) = self.edges(shift) else {
            // SAFETY: by the contract both ranges lie in regions of this device, which are mapped, and no other thread
            // uses them.
            return unsafe { exchange::copy(shift.source, shift.destination) };
        };
        let (edge, rest) = shift.split(first);
        let (whole, other_edge) = match rest {
            Some(rest) => rest.split(rest.source.bytes - last),
            None => (None, None),
        };
        // SAFETY: each part's two ranges are parts of those that the contract covers. They go in order, the foremost
        // first, so that none is overwritten before it has moved; the middle one is whole units, as `carry_whole` asks.
        unsafe {
            edge.into_iter().for_each(|part| exchange::copy(part.source, part.destination));
            whole.into_iter().for_each(|part| self.carry_whole(part));
            other_edge.into_iter().for_each(|part| exchange::copy(part.source, part.destination));
        }
    }

    /// Moves whole units, by exchanging them as far as that goes.
    ///
    /// # Safety
    /// As for `Mover::relocate`; both ranges are whole units.
    unsafe fn carry_whole(&self, shift: Shift) {
        // Held while the kernel works: the book must say where mappings end when the next exchange reads it.
        let mut cuts = self.cuts.lock();
        let mut left = Some(shift);
        while let Some(shift) = left {
            if self.are_refused() || !cuts.have_room() {
                drop(cuts);
                // SAFETY: what is left of two ranges that lie in regions of this device and that no other thread uses.
                return unsafe { exchange::copy(shift.source, shift.destination) };
            }
            let bytes = cuts.piece(shift);
            let (piece, rest) = shift.split(bytes);
            left = rest;
            let Some(piece) = piece else { continue };
            // Between cuts, a piece is worth an exchange where other threads sleep: it keeps the pages warm as well.
            if bytes.get() < self.least.get() / 4 {
                // SAFETY: a part of two ranges that lie in regions of this device and that no other thread uses.
                unsafe { exchange::copy(piece.source, piece.destination) };
                continue;
            }
            // SAFETY: both ranges are whole units, so whole pages, of mappings of this device that no other thread
            // uses; `exchange` passes `remap` pairs of such extents that do not overlap.
            let done = unsafe { exchange::exchange(piece, &mut |from, to| exchange::remap(from, to)) };
            cuts.exchanged(piece);
            if let Err(errno) = done {
                self.refused.store(true, Ordering::Relaxed);
                log::info!("moves of blocks copy from now on, because mremap of {} failed: {errno}", bytes);
            }
        }
    }
}
