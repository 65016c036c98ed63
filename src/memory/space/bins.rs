//! Which bin a hole belongs to, and which bins hold any: two levels of bitmaps over `ROWS` x 32 bins.
//!
//! ```text
//!  size in granules     row                columns: the five bits after the leading one
//!  0..32                0                  the size itself
//!  32..64               1                  steps of 1
//!  64..128              2                  steps of 2
//!  ...                  ...                steps of 1/32 of the row's start, so at most 3.1 % wide
//!  2^31..2^32           27                 steps of 2^26
//! ```
//!
//! The layout is TLSF's (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for real-time systems",
//! ECRTS 2004). Where TLSF rounds a request up to the next bin, the index searches the request's own bin first.

/// Bits of a size after its leading one that choose the column.
const COLUMN_BITS: u32 = 5;
const COLUMNS: u32 = 1 << COLUMN_BITS;
/// Enough rows for sizes of 32 bits: one linear row and one for each leading bit from the fifth up.
const ROWS: u32 = u32::BITS - COLUMN_BITS + 1;

/// A bin's number; larger numbers hold larger holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bin(u32);

impl Bin {
    /// The bin of holes of `granules`.
    pub(super) fn of(granules: u32) -> Self {
        if granules < COLUMNS {
            return Self(granules);
        }
        let shift = granules.ilog2() - COLUMN_BITS;
        // `granules >> shift` lies in 32..64: its leading one carries into the row, so that rows join without a gap.
        Self((shift << COLUMN_BITS) + (granules >> shift))
    }

    fn row(self) -> usize {
        (self.0 / COLUMNS) as usize
    }

    fn column(self) -> u32 {
        self.0 % COLUMNS
    }
}

/// The first hole of each bin, and which bins have one.
#[derive(Clone, Debug)]
pub(super) struct Bins<T> {
    heads: Box<[Option<T>]>,
    rows: u32,
    columns: [u32; ROWS as usize],
}

impl<T: Copy> Bins<T> {
    pub(super) fn new() -> Self {
        Self { heads: vec![None; (ROWS * COLUMNS) as usize].into_boxed_slice(), rows: 0, columns: [0; ROWS as usize] }
    }

    /// The first hole of `bin`.
    pub(super) fn head(&self, bin: Bin) -> Option<T> {
        self.heads[bin.0 as usize]
    }

    /// Makes `head` the first hole of `bin`; `None` marks the bin as empty.
    pub(super) fn set_head(&mut self, bin: Bin, head: Option<T>) {
        self.heads[bin.0 as usize] = head;
        let (row, bit) = (bin.row(), 1 << bin.column());
        match head {
            Some(_) => self.columns[row] |= bit,
            None => self.columns[row] &= !bit,
        }
        match self.columns[row] {
            0 => self.rows &= !(1 << row),
            _ => self.rows |= 1 << row,
        }
    }

    /// The first non-empty bin above `bin`. O(1).
    pub(super) fn next_above(&self, bin: Bin) -> Option<Bin> {
        let row = bin.row();
        // Shifting in two steps: by 32 at once, as column 31 would need, is an overflow.
        let columns = self.columns[row] & ((!0u32 << bin.column()) << 1);
        let (row, columns) = match columns {
            0 => {
                let rows = self.rows & ((!0u32 << row) << 1);
                if rows == 0 {
                    return None;
                }
                let row = rows.trailing_zeros() as usize;
                (row, self.columns[row])
            }
            _ => (row, columns),
        };
        Some(Bin(row as u32 * COLUMNS + columns.trailing_zeros()))
    }

    /// The non-empty bin of the largest holes. O(1).
    pub(super) fn last(&self) -> Option<Bin> {
        let row = self.rows.checked_ilog2()?;
        Some(Bin(row * COLUMNS + self.columns[row as usize].ilog2()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_sizes_without_gap_or_overlap() {
        assert_eq!(Bin::of(u32::MAX).0, ROWS * COLUMNS - 1);
        let mut last = Bin::of(0);
        for granules in 1..100_000 {
            let bin = Bin::of(granules);
            assert!(bin == last || bin.0 == last.0 + 1, "{granules}");
            last = bin;
        }
    }

    #[test]
    fn every_bin_is_found_from_below_and_nothing_else_is() {
        let all: Vec<u32> = (0..ROWS * COLUMNS).collect();
        for &only in &all {
            let mut bins = Bins::new();
            bins.set_head(Bin(only), Some(7u32));
            assert_eq!(bins.last(), Some(Bin(only)));
            for from in [0, only / 2, only.saturating_sub(1), only, (only + 1).min(ROWS * COLUMNS - 1)] {
                assert_eq!(bins.next_above(Bin(from)), (from < only).then_some(Bin(only)), "{from} {only}");
            }
            bins.set_head(Bin(only), None);
            assert_eq!(bins.last(), None);
            assert_eq!(bins.next_above(Bin(0)), None);
        }
    }
}
