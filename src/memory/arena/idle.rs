//! Trimming what was not used lately: how much that was, and which holes are discarded.
//!
//! ```text
//!  holes by size:   |a| | b | |    c    | |         d           |
//!                   \___ stay ___________________/\__ discarded _/    what stays: the bytes that use may rise by
//! ```
//!
//! Best fit takes the smallest hole that fits, from its low end. So the largest holes are discarded first, and what
//! stays of the last one is its low end. The plan is made from a list of the holes; each piece of it is checked again,
//! and discarded, under the lock: what a block has taken meanwhile is not touched. When use rises above what was to
//! stay, the rest of the plan is dropped.

use crate::{
    memory::{arena::core::Arena, space::node::NodeId},
    region::AddressRange,
    units::{Address, Bytes},
};

/// The most that is discarded while the arena is locked: a millisecond's work.
const PIECE: Bytes = Bytes::mib(16);

/// Parts of holes below this size are not worth a call.
const LEAST: Bytes = Bytes::kib(64);

/// The parts of holes to discard, in pieces, those of the largest hole first.
#[derive(Debug)]
pub struct Surplus {
    /// Where more was used in this window, it is not surplus any more.
    most: Bytes,
    /// What is left of it; the largest last.
    parts: Vec<Part>,
}

/// A part of a hole.
#[derive(Clone, Copy, Debug)]
struct Part {
    hole: NodeId,
    region: AddressRange,
}

impl Arena {
    /// What live and retired blocks asked for, summed. O(1).
    pub fn used(&self) -> Bytes {
        self.state.lock().counters.used()
    }

    /// The highest [`Self::used`] since the last call, which this one makes start over. O(1).
    pub fn end_window(&self) -> Bytes {
        let mut state = self.state.lock();
        state.note_used();
        let used = state.counters.used();
        std::mem::replace(&mut state.counters.window_peak, used)
    }

    /// [`Self::used`], and how much of what blocks ever took is resident: at most that much, where holes are not many.
    /// O(1).
    pub fn warm(&self) -> (Bytes, Bytes) {
        let counters = &self.state.lock().counters;
        (counters.used(), counters.warm.max(counters.most_used))
    }

    /// By how much [`Self::used`] would be more than what is resident with another block of this size. O(1).
    pub fn rises_by(&self, size: Bytes) -> Bytes {
        let counters = &self.state.lock().counters;
        (counters.used() + size).saturating_sub(counters.warm.max(counters.most_used))
    }

    /// Counts that so many bytes of holes are not resident, as the system says. O(1).
    pub fn cooled(&self, bytes: Bytes) {
        self.state.lock().cool(bytes);
    }

    /// Plans what to discard where use is expected to stay within `keep`. O(spans) with the lock, and sorting without.
    pub fn surplus(&self, keep: Bytes) -> Surplus {
        let (mut holes, used) = {
            let state = self.state.lock();
            let holes: Vec<(NodeId, AddressRange)> =
                state.placement.space().map(|space| space.holes().collect()).unwrap_or_default();
            (holes, state.counters.used())
        };
        holes.sort_unstable_by_key(|(_, hole)| (hole.bytes, hole.address));
        let mut stays = keep.saturating_sub(used);
        let mut parts = Vec::new();
        for (hole, whole) in holes {
            let here = stays.min(whole.bytes);
            stays -= here;
            let region = AddressRange { address: whole.address + here, bytes: whole.bytes - here };
            if region.bytes >= LEAST {
                parts.push(Part { hole, region });
            }
        }
        Surplus { most: keep, parts }
    }

    /// Calls `discard` with what is kept for programs' scratch, where nothing writes there, and returns the sum of its
    /// answers. The arena is locked for a piece at a time. O(pieces).
    pub fn discard_kept(&self, mut discard: impl FnMut(AddressRange) -> Bytes) -> Bytes {
        let (mut discarded, mut offset) = (Bytes::ZERO, Bytes::ZERO);
        loop {
            let mut state = self.state.lock();
            let Some(kept) = state.scratch_region().filter(|kept| kept.bytes > offset) else { return discarded };
            let piece = AddressRange { address: kept.address + offset, bytes: PIECE.min(kept.bytes - offset) };
            let bytes = discard(piece);
            state.cool(bytes);
            offset += piece.bytes;
            discarded += bytes;
        }
    }

    /// Calls `discard` with the next piece of `surplus` while the arena is locked, as far as it still is a hole, and
    /// returns its answer; `None` at the end, and when use has risen above what was to stay. O(1).
    pub fn discard_next(&self, surplus: &mut Surplus, discard: impl FnOnce(AddressRange) -> Bytes) -> Option<Bytes> {
        let Part { hole, region } = surplus.next_piece()?;
        let mut state = self.state.lock();
        state.note_used();
        if state.counters.window_peak > surplus.most {
            surplus.parts.clear();
            return None;
        }
        let now = state.placement.space().and_then(|space| space.hole(hole));
        let bytes = now.and_then(|now| overlap(now, region)).map_or(Bytes::ZERO, discard);
        state.cool(bytes);
        Some(bytes)
    }

    /// Releases empty regions, the largest first, until those that stay are at most `keep` less what is used; none when
    /// use has risen above `keep` in this window. Returns their sum. Only `growing` keeps such regions.
    pub fn trim_to(&self, keep: Bytes) -> Bytes {
        let surplus = {
            let mut state = self.state.lock();
            state.note_used();
            if state.counters.window_peak > keep {
                return Bytes::ZERO;
            }
            let used = state.counters.used();
            let surplus = state.placement.trim_to(keep.saturating_sub(used));
            state.note_surplus(&surplus);
            state.cool(surplus.iter().map(|region| region.bytes).sum());
            surplus
        };
        let released = surplus.iter().map(|region| region.bytes).sum();
        self.release(surplus);
        released
    }
}

impl Surplus {
    /// The same, however much was used in this window.
    pub fn at_once(self) -> Self {
        Self { most: Bytes::MAX, ..self }
    }

    /// Takes the next piece out, from low addresses to high. Pieces end where pages do, so that none is cut in two.
    fn next_piece(&mut self) -> Option<Part> {
        let part = self.parts.last_mut()?;
        let Part { hole, region } = *part;
        let end = Bytes::new(region.address.get() + 1).checked_round_up(PIECE).unwrap_or(Bytes::MAX);
        let bytes = region.bytes.min(end - Bytes::new(region.address.get()));
        if bytes == region.bytes {
            self.parts.pop();
        } else {
            part.region = AddressRange { address: region.address + bytes, bytes: region.bytes - bytes };
        }
        Some(Part { hole, region: AddressRange { address: region.address, bytes } })
    }
}

fn overlap(one: AddressRange, other: AddressRange) -> Option<AddressRange> {
    let start: Address = one.address.max(other.address);
    let end = (one.address + one.bytes).min(other.address + other.bytes);
    (start < end).then(|| AddressRange { address: start, bytes: end - start })
}
