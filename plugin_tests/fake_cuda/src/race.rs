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

use std::{collections::BTreeMap, ops::Range};

use crate::{
    clock::{Clock, HOST, Point},
    memory::{Piece, overlap},
};

/// Uses of all memory.
#[derive(Debug, Default)]
pub struct Races {
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

#[derive(Clone, Copy, Debug)]
struct Use {
    point: Point,
    what: &'static str,
    /// What to add to a place in the memory to get the address by which it was used.
    base: u64,
}

impl Use {
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
        clock: &Clock,
        what: &'static str,
        pieces: &[Piece],
        write: bool,
    ) -> Vec<String> {
        let mut found = BTreeMap::new();
        for piece in pieces {
            let parts = self.spaces.entry(piece.space).or_default();
            let (start, end) = (piece.offset, piece.offset + piece.bytes);
            cut(parts, start);
            cut(parts, end);
            fill(parts, start, end);
            let this = Use { point, what, base: piece.address.wrapping_sub(piece.offset) };
            for (&at, part) in parts.range_mut(start..end) {
                let range = at.wrapping_add(this.base)..part.end.wrapping_add(this.base);
                if let Some(other) = part.write.filter(|other| !clock.has_seen(other.point)) {
                    note(&mut found, other, true, range.clone());
                }
                if write {
                    for &other in part.reads.iter().filter(|other| !clock.has_seen(other.point)) {
                        note(&mut found, other, false, range.clone());
                    }
                    part.write = Some(this);
                    part.reads.clear();
                } else {
                    part.reads.retain(|other| (other.point.line, other.base) != (point.line, this.base));
                    part.reads.push(this);
                }
            }
            if write {
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
            for (&other, wrote) in uses.filter(|(other, _)| !host.has_seen(other.point)) {
                let range = at.wrapping_add(other.base)..part.end.wrapping_add(other.base);
                if overlap(&range, gone) {
                    note(&mut found, other, wrote, range.start.max(gone.start)..range.end.min(gone.end));
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
        assert!(races.access(write, &a, "a", &[piece(0, 100)], true).is_empty());
        // Another stream's read in the middle, and one that only touches the end.
        let read = b.tick(2);
        let found = races.access(read, &b, "b", &[piece(40, 20)], false);
        let words = "b (operation 1 of stream 0x200) reads 20 bytes at 0x1028, not ordered after a (operation 1 of \
                     stream 0x100), which writes them";
        assert_eq!(found, [words]);
        let read = b.tick(2);
        assert!(races.access(read, &b, "b", &[piece(100, 4)], false).is_empty());
        // The first stream writes again: only the middle is read by somebody else.
        let write = a.tick(1);
        let found = races.access(write, &a, "a", &[piece(0, 100)], true);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("20 bytes at 0x1028"), "{found:?}");
        assert_eq!(races.spaces[&7].len(), 2);
    }

    #[test]
    fn what_goes_away_must_have_been_seen_to_end() {
        let (mut races, mut a, mut host) = (Races::default(), Clock::default(), Clock::default());
        let write = a.tick(1);
        races.access(write, &a, "a", &[piece(0, 100)], true);
        assert_eq!(races.retire(&host, 7, &(0x1000..0x1001), "freed").len(), 1);
        // Other addresses of the same memory.
        assert!(races.retire(&host, 7, &(0x2000..0x3000), "freed").is_empty());
        host.join(&a);
        assert!(races.retire(&host, 7, &(0x1000..0x1001), "freed").is_empty());
    }
}
