//! Damage to an input.

use std::ops::Range;

use fastrand::Rng;

/// An input of the corpus, and which parts of it stand behind a length of eight bytes.
pub(crate) struct Entry {
    pub(crate) bytes: Vec<u8>,
    sections: Vec<Range<usize>>,
}

/// A length in MLIR's bytecode: 0, and eight bytes.
const LENGTH: usize = 8;

impl Entry {
    /// Of MLIR bytecode the sections are found, and their lengths written with eight bytes, so that they can be set
    /// right after damage: behind lengths that still fit, damage gets further.
    pub(crate) fn new(input: &[u8]) -> Self {
        Self::of_sections(input).unwrap_or_else(|| Self { bytes: input.to_vec(), sections: Vec::new() })
    }

    fn of_sections(file: &[u8]) -> Option<Self> {
        let producer = file.strip_prefix(b"ML\xefR")?.get(1..)?;
        let head = 5 + producer.iter().position(|&byte| byte == 0)? + 1;
        let mut rest = file.get(head..)?;
        let mut entry = Self { bytes: file[..head].to_vec(), sections: Vec::new() };
        while let Some((&id, tail)) = rest.split_first() {
            let length_bytes = (tail.first()?.trailing_zeros() as usize + 1).min(9);
            let mut word = [0; LENGTH];
            let read = tail.get(..length_bytes)?;
            if length_bytes == 9 {
                word.copy_from_slice(&read[1..]);
            } else {
                word[..length_bytes].copy_from_slice(read);
            }
            let length = usize::try_from(u64::from_le_bytes(word) >> (length_bytes % 9)).ok()?;
            let payload = tail.get(length_bytes..)?.get(..length)?;
            entry.bytes.extend([id, 0]);
            entry.bytes.extend((length as u64).to_le_bytes());
            entry.sections.push(entry.bytes.len()..entry.bytes.len() + length);
            entry.bytes.extend(payload);
            rest = &tail[length_bytes + length..];
        }
        (!entry.sections.is_empty()).then_some(entry)
    }

    /// Writes the input to `out`, damaged in a few places; pieces may come from `other`.
    pub(crate) fn damaged(&self, other: &Self, rng: &mut Rng, out: &mut Vec<u8>) {
        out.clear();
        out.extend(&self.bytes);
        if self.sections.is_empty() || rng.u8(0..16) == 0 {
            damage(out, 0..self.bytes.len(), &other.bytes, rng);
            return;
        }
        let section = self.sections[rng.usize(0..self.sections.len())].clone();
        let start = section.start;
        let length = damage(out, section, &other.bytes, rng) as u64;
        out[start - LENGTH..start].copy_from_slice(&length.to_le_bytes());
    }
}

const TELLING: [u8; 10] = [0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff, 0x40, 0x09];

/// Damages a part of `bytes`; how long that part is now. Most damage keeps its length, and so what encloses it.
fn damage(bytes: &mut Vec<u8>, part: Range<usize>, other: &[u8], rng: &mut Rng) -> usize {
    let (start, mut end) = (part.start, part.end);
    for _ in 0..1 + rng.u32(0..8).leading_zeros() - 29 {
        let at = rng.usize(start..=end);
        let longest = 1 << rng.u32(0..10).min(rng.u32(0..10));
        let length = rng.usize(0..=longest.min(end - at));
        let before = bytes.len();
        match rng.u8(0..20) {
            0..=3 if at < end => bytes[at] ^= 1 << rng.u32(0..8),
            4..=6 if at < end => bytes[at] = TELLING[rng.usize(0..TELLING.len())],
            7..=8 if at < end => bytes[at] = rng.u8(..),
            9..=10 if at < end => bytes[at] = bytes[at].wrapping_add(rng.u8(0..9)).wrapping_sub(4),
            // In MLIR's bytecode numbers stand above one bit.
            11 if at < end => bytes[at] = bytes[at].wrapping_add(2 * rng.u8(0..9)).wrapping_sub(8),
            12..=13 => {
                let from = rng.usize(start..=end - length);
                bytes.copy_within(from..from + length, at);
            }
            14..=15 => {
                let length = length.min(other.len());
                let from = rng.usize(0..=other.len() - length);
                bytes[at..at + length].copy_from_slice(&other[from..from + length]);
            }
            16 => bytes.insert(at, TELLING[rng.usize(0..TELLING.len())]),
            17 => _ = bytes.drain(at..at + length),
            18 => {
                let piece = bytes[at..at + length].repeat(1 + rng.usize(0..8));
                bytes.splice(at..at, piece);
            }
            19 if rng.bool() => _ = bytes.drain(at..end),
            _ => {
                let from = rng.usize(0..=other.len());
                let piece = &other[from..(from + 1 + rng.usize(0..64)).min(other.len())];
                bytes.splice(at..at + length, piece.iter().copied());
            }
        }
        end = end + bytes.len() - before;
    }
    end - start
}
