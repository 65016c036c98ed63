//! A cursor over bytes that were written by others: every read is checked.

use crate::program::reject::Reject;

const END: Reject = Reject::new("the bytecode ends too early");

/// A place in the file, to take what was read since as raw bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::program) struct Mark(usize);

/// Reads primitives from the front of a byte slice.
#[derive(Clone, Debug)]
pub(in crate::program) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(in crate::program) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes that are left.
    pub(in crate::program) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(in crate::program) fn is_empty(&self) -> bool {
        self.left() == 0
    }

    pub(in crate::program) fn mark(&self) -> Mark {
        Mark(self.at)
    }

    /// The raw bytes between `mark` and here.
    pub(in crate::program) fn since(&self, mark: Mark) -> &'a [u8] {
        self.bytes.get(mark.0..self.at).unwrap_or_default()
    }

    /// Everything that was not read yet.
    pub(in crate::program) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(in crate::program) fn byte(&mut self) -> Result<u8, Reject> {
        let byte = *self.bytes.get(self.at).ok_or(END)?;
        self.at += 1;
        Ok(byte)
    }

    pub(in crate::program) fn take(&mut self, length: u64) -> Result<&'a [u8], Reject> {
        let length = usize::try_from(length).map_err(|_| END)?;
        let taken = self.rest().get(..length).ok_or(END)?;
        self.at += length;
        Ok(taken)
    }

    /// A prefix varint: the trailing zero bits of the first byte count the bytes that follow it.
    pub(in crate::program) fn varint(&mut self) -> Result<u64, Reject> {
        let first = self.byte()?;
        if first & 1 == 1 {
            return Ok(u64::from(first >> 1));
        }
        // At most 8: an all-zero first byte is followed by the plain value.
        let extra = first.trailing_zeros();
        let mut word = [0; 8];
        if first == 0 {
            word.copy_from_slice(self.take(8)?);
            return Ok(u64::from_le_bytes(word));
        }
        word[0] = first;
        let tail = self.take(u64::from(extra))?;
        word[1..=tail.len()].copy_from_slice(tail);
        Ok(u64::from_le_bytes(word) >> (extra + 1))
    }

    /// A zigzag varint.
    pub(in crate::program) fn signed(&mut self) -> Result<i64, Reject> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// The number of things that follow, each at least one byte long: more than the bytes left is refused, which bounds
    /// every allocation by the input.
    pub(in crate::program) fn count(&mut self) -> Result<usize, Reject> {
        let count = self.varint()?;
        self.bounded(count)
    }

    /// `count` as a number of things of at least one byte each that still have to follow.
    pub(in crate::program) fn bounded(&self, count: u64) -> Result<usize, Reject> {
        match usize::try_from(count) {
            Ok(count) if count <= self.left() => Ok(count),
            _ => Err(Reject::found("a count exceeds the bytes that are left", count)),
        }
    }

    /// `count` varints wrapped by `id`.
    pub(in crate::program) fn list<T>(&mut self, id: impl Fn(u64) -> T) -> Result<Vec<T>, Reject> {
        let count = self.count()?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(id(self.varint()?));
        }
        Ok(list)
    }

    /// Reads past a counted list of varints.
    pub(in crate::program) fn skip_list(&mut self) -> Result<(), Reject> {
        for _ in 0..self.count()? {
            self.varint()?;
        }
        Ok(())
    }

    /// Bytes up to a NUL, which is read too.
    pub(in crate::program) fn c_string(&mut self) -> Result<&'a [u8], Reject> {
        let length = self.rest().iter().position(|&byte| byte == 0).ok_or(END)?;
        let text = self.take(length as u64)?;
        self.byte()?;
        Ok(text)
    }

    /// A section: its id and payload. Aligned ones, which only resource blobs use, are refused, as alignment counts
    /// from the start of the file and an edit would move them.
    pub(in crate::program) fn section(&mut self) -> Result<(u8, &'a [u8]), Reject> {
        let id = self.byte()?;
        if id & 0x80 != 0 {
            return Err(Reject::new("an aligned section"));
        }
        let length = self.varint()?;
        Ok((id, self.take(length)?))
    }

    /// A section that must have `expected` as its id.
    pub(in crate::program) fn section_of(&mut self, expected: u8) -> Result<&'a [u8], Reject> {
        let (id, payload) = self.section()?;
        if id != expected {
            return Err(Reject::found("a nested section of another kind", u64::from(id)));
        }
        Ok(payload)
    }

    /// Refuses what follows the last thing that was read.
    pub(in crate::program) fn finish(&self, reason: &'static str) -> Result<(), Reject> {
        if self.is_empty() { Ok(()) } else { Err(Reject::found(reason, self.left() as u64)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::bytecode::writer::{put_signed, put_varint};

    #[test]
    fn varints_round_trip_at_every_length() {
        let mut lengths = Vec::new();
        for bits in 0..=64 {
            for value in [1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1), 1u64.checked_shl(bits).unwrap_or(0)] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                lengths.push(out.len());
                let mut cursor = Cursor::new(&out);
                assert_eq!(cursor.varint(), Ok(value));
                assert!(cursor.is_empty());
                for cut in 0..out.len() {
                    assert_eq!(Cursor::new(&out[..cut]).varint(), Err(END));
                }
            }
        }
        lengths.dedup();
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!(lengths, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn varints_have_the_documented_bytes() {
        // BytecodeFormat.md: one byte holds 7 bits, two hold 14, an empty prefix is followed by 8 plain bytes.
        for (value, expected) in [
            (0, vec![0x01]),
            (127, vec![0xff]),
            (128, vec![0x02, 0x02]),
            (0x3fff, vec![0xfe, 0xff]),
            (u64::MAX, vec![0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, expected);
        }
        // A longer form than needed is legal input.
        assert_eq!(Cursor::new(&[0b0000_0110, 0]).varint(), Ok(1));
    }

    #[test]
    fn signed_varints_round_trip() {
        for value in [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            put_signed(&mut out, value);
            assert_eq!(Cursor::new(&out).signed(), Ok(value));
        }
    }

    #[test]
    fn a_count_is_bounded_by_the_bytes_left() {
        let mut out = Vec::new();
        put_varint(&mut out, 3);
        out.extend([1, 1]);
        assert!(Cursor::new(&out).count().is_err());
        out.push(1);
        assert_eq!(Cursor::new(&out).count(), Ok(3));
    }
}
