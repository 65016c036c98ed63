//! The race detector: who used which bytes last, and whether the next one comes after.
//!
//! ```text
//!  memory 7   | 0 .. 4096: written by A, read by B and C | 4096 .. 8192: written by D |
//!                  a write must come after A, B and C          a read must come after D
//! ```
//!
//! Bytes are known by the physical memory that they lie in, so that two addresses of the same memory are seen to be the
//! same. Whether one operation comes after another one is a question to vector clocks, answered when the later one is
//! put into its stream. So a finding depends on the order of the calls alone: what is not ordered is found also where
//! it went well, and each time. Two things may hide one, and none invents one: the host is one line (see
//! [`crate::clock::HOST`]), and a query that says that all is done orders what comes next, as does a function of
//! `cuLaunchHostFunc` when it begins.
//!
//! Of kernels that are interpreted this is not wholly so. They are noted when they have run, because nobody knows
//! before what they use, and by lines of 64 bytes (`simulator/gpu`, where kernels run):
//!
//! ```text
//!  calls    kernel on 1 ----- fill on 2, which waits for it ---- copy on 3, which waits for nothing ---- (the kernel has run)
//!  noted                      fill                               copy: not ordered                       kernel, late: before
//!                                                                with the fill                           the fill; not ordered
//!                                                                                                        with the copy
//! ```
//!
//! Their clocks are those of their launches, and two operations are ordered if either has seen the other; so what
//! streams and events order is never found, whenever the kernel ran. But that matters in two ways. What was noted
//! before it and then written over by an operation that comes after it is not compared with it: a race of the two is
//! hidden. And memory that is taken away before its use is noted is told otherwise: the kernel finds nothing there, or
//! ends and its memory is gone.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use crate::{
    clock::{Clock, DeferredClocks, HOST, Point},
    memory::{Piece, overlap},
};

/// Uses of all memory.
#[derive(Debug, Default)]
pub struct Races {
    /// What came before collectives, as far as it is known by now.
    pub deferred: DeferredClocks,
    /// By the number of the memory, then by the place where the part begins.
    spaces: BTreeMap<u64, BTreeMap<u64, Part>>,
}

/// Bytes that were used alike.
#[derive(Clone, Debug, Default)]
struct Part {
    end: u64,
    write: Option<Use>,
    /// Since the write; the last of each line by each address.
    reads: Vec<Use>,
}

#[derive(Clone, Debug)]
struct Use {
    point: Point,
    what: &'static str,
    /// What to add to a place in the memory to get the address by which it was used.
    base: u64,
    /// What had been seen when it was put into its stream.
    clock: Arc<Clock>,
}

impl Use {
    /// Whether one of the two comes after the other. A kernel is noted when it runs: what was put into streams after it
    /// may be here before.
    fn is_ordered(&self, point: Point, clock: &Clock, deferred: &DeferredClocks) -> bool {
        deferred.has_seen(clock, self.point) || deferred.has_seen(&self.clock, point)
    }

    /// Whether this comes after the operation `point`, although it was noted before.
    fn is_after(&self, point: Point, clock: &Clock, deferred: &DeferredClocks) -> bool {
        !clock.has_seen(self.point) && self.point != point && deferred.has_seen(&self.clock, point)
    }

    fn name(&self) -> String {
        name(self.what, self.point)
    }
}

fn name(what: &str, Point { line, number }: Point) -> String {
    if line == HOST { what.to_owned() } else { format!("{what} (operation {number} of stream {:#x})", line << 8) }
}

/// What was found against one other operation, over all parts.
#[derive(Debug)]
struct Found {
    other: Use,
    wrote: bool,
    range: Range<u64>,
}

fn note(found: &mut BTreeMap<(Point, bool), Found>, other: Use, wrote: bool, range: Range<u64>) {
    let entry = found.entry((other.point, wrote)).or_insert_with(|| Found { other, wrote, range: range.clone() });
    entry.range = entry.range.start.min(range.start)..entry.range.end.max(range.end);
}

fn verb(wrote: bool) -> &'static str {
    if wrote { "writes" } else { "reads" }
}

impl Races {
    /// Notes that the operation `point`, which comes after all that `clock` has seen, uses memory; gives a sentence for
    /// each operation that it should come after and does not.
    pub fn access(
        &mut self,
        point: Point,
        clock: &Arc<Clock>,
        what: &'static str,
        pieces: &[Piece],
        write: bool,
    ) -> Vec<String> {
        let mut found = BTreeMap::new();
        let deferred = &self.deferred;
        for piece in pieces {
            let parts = self.spaces.entry(piece.space).or_default();
            let (start, end) = (piece.offset, piece.offset + piece.bytes);
            cut(parts, start);
            cut(parts, end);
            fill(parts, start, end);
            let this = Use { point, what, base: piece.address.wrapping_sub(piece.offset), clock: Arc::clone(clock) };
            for (&at, part) in parts.range_mut(start..end) {
                let range = at.wrapping_add(this.base)..part.end.wrapping_add(this.base);
                if let Some(other) = part.write.as_ref().filter(|other| !other.is_ordered(point, clock, deferred)) {
                    note(&mut found, other.clone(), true, range.clone());
                }
                // The later write stays, with what has read it since. Who comes after that write comes after this
                // operation too; who comes after this operation alone may still race with that write, which must not be
                // forgotten.
                let late = part.write.as_ref().is_some_and(|other| other.is_after(point, clock, deferred));
                if write {
                    for other in part.reads.iter().filter(|other| !other.is_ordered(point, clock, deferred)) {
                        note(&mut found, other.clone(), false, range.clone());
                    }
                    if !late {
                        part.write = Some(this.clone());
                        part.reads.retain(|other| other.is_after(point, clock, deferred));
                    }
                } else if !late {
                    // Of a line the last read stands for those before it: this one, unless it is noted late.
                    let alike = |other: &Use| (other.point.line, other.base) == (point.line, this.base);
                    if !part.reads.iter().any(|other| alike(other) && other.point.number > point.number) {
                        part.reads.retain(|other| !alike(other));
                        part.reads.push(this.clone());
                    }
                }
            }
            if write
                && parts.range(start..end).all(|(_, part)| {
                    part.write.as_ref().is_some_and(|last| last.point == point) && part.reads.is_empty()
                })
            {
                // All of it is alike now.
                parts.retain(|&at, _| !(start < at && at < end));
                if let Some(part) = parts.get_mut(&start) {
                    part.end = end;
                }
            }
        }
        let sentence = |Found { other, wrote, range }: Found| {
            format!(
                "{} {} {} bytes at {:#x}, not ordered after {}, which {} them",
                name(what, point),
                verb(write),
                range.end - range.start,
                range.start,
                other.name(),
                verb(wrote)
            )
        };
        found.into_values().map(sentence).collect()
    }

    /// A sentence for each operation that uses memory by addresses that go away, and that `host` has not seen the end
    /// of.
    pub fn retire(&self, host: &Clock, space: u64, gone: &Range<u64>, how: &str) -> Vec<String> {
        let mut found = BTreeMap::new();
        for (&at, part) in self.spaces.get(&space).into_iter().flatten() {
            let uses =
                part.write.iter().map(|other| (other, true)).chain(part.reads.iter().map(|other| (other, false)));
            for (other, wrote) in uses.filter(|(other, _)| !self.deferred.has_seen(host, other.point)) {
                let range = at.wrapping_add(other.base)..part.end.wrapping_add(other.base);
                if overlap(&range, gone) {
                    note(&mut found, other.clone(), wrote, range.start.max(gone.start)..range.end.min(gone.end));
                }
            }
        }
        let sentence = |Found { other, wrote, range }: Found| {
            format!(
                "{} bytes at {:#x} are {how} while in use: {}, which {} them, has not been seen to end",
                range.end - range.start,
                range.start,
                other.name(),
                verb(wrote)
            )
        };
        found.into_values().map(sentence).collect()
    }

    /// Drops what is known of memory that is gone.
    pub fn forget(&mut self, space: u64) {
        self.spaces.remove(&space);
    }
}

/// Cuts the part that `at` lies in.
fn cut(parts: &mut BTreeMap<u64, Part>, at: u64) {
    let Some((_, part)) = parts.range_mut(..at).next_back() else { return };
    if part.end > at {
        let rest = part.clone();
        part.end = at;
        parts.insert(at, rest);
    }
}

/// Makes parts where there were none.
fn fill(parts: &mut BTreeMap<u64, Part>, start: u64, end: u64) {
    let (mut at, mut gaps) = (start, Vec::new());
    for (&next, part) in parts.range(start..end) {
        if at < next {
            gaps.push((at, next));
        }
        at = part.end;
    }
    if at < end {
        gaps.push((at, end));
    }
    parts.extend(gaps.into_iter().map(|(from, to)| (from, Part { end: to, ..Part::default() })));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, bytes: u64) -> Piece {
        Piece { space: 7, offset, address: 0x1000 + offset, bytes }
    }

    #[test]
    fn parts_are_cut_where_uses_begin_and_end() {
        let (mut races, mut a, mut b) = (Races::default(), Clock::default(), Clock::default());
        let write = a.tick(1);
        assert!(races.access(write, &Arc::new(a.clone()), "a", &[piece(0, 100)], true).is_empty());
        // Another stream's read in the middle, and one that only touches the end.
        let read = b.tick(2);
        let found = races.access(read, &Arc::new(b.clone()), "b", &[piece(40, 20)], false);
        let words = "b (operation 1 of stream 0x200) reads 20 bytes at 0x1028, not ordered after a (operation 1 of \
                     stream 0x100), which writes them";
        assert_eq!(found, [words]);
        let read = b.tick(2);
        assert!(races.access(read, &Arc::new(b.clone()), "b", &[piece(100, 4)], false).is_empty());
        // The first stream writes again: only the middle is read by somebody else.
        let write = a.tick(1);
        let found = races.access(write, &Arc::new(a.clone()), "a", &[piece(0, 100)], true);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("20 bytes at 0x1028"), "{found:?}");
        assert_eq!(races.spaces[&7].len(), 2);
    }

    #[test]
    fn what_goes_away_must_have_been_seen_to_end() {
        let (mut races, mut a, mut host) = (Races::default(), Clock::default(), Clock::default());
        let write = a.tick(1);
        races.access(write, &Arc::new(a.clone()), "a", &[piece(0, 100)], true);
        assert_eq!(races.retire(&host, 7, &(0x1000..0x1001), "freed").len(), 1);
        // Other addresses of the same memory.
        assert!(races.retire(&host, 7, &(0x2000..0x3000), "freed").is_empty());
        host.join(&a);
        assert!(races.retire(&host, 7, &(0x1000..0x1001), "freed").is_empty());
    }
}
