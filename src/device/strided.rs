//! Copies of strided host arrays into dense blocks.
//!
//! Dimensions that lie dense in the source are first merged, so that a contiguous array is one `memcpy` and a slice of
//! one is a `memcpy` a row. What is left is walked in the order of the destination; where the source runs fastest along
//! another dimension than the destination does (a transposed array), the two are walked in tiles, so that each cache
//! line of the source is read once.
//!
//! Large arrays are copied by several threads, each of which takes one band of the destination after the other. What
//! they gain most from is memory that was not used before: the kernel clears a page at its first use, which takes six
//! times as long as copying into it. Measured on two processors, in ms with one thread and with two:
//!
//! ```text
//!               used before      first use
//!     4 MiB    0.07   0.08      1.18   0.65
//!     8 MiB    0.16   0.14      2.4    1.3
//!    64 MiB    3.1    2.9      21     11
//!   256 MiB   12.6   11.9      84     45
//! ```

use std::ptr;

use smallvec::SmallVec;

use crate::device::pieces;

/// Bytes of a dense array that are worth a thread: on idle processors two threads win from twice as many on. On busy
/// ones a copy into memory used before can lose, by the time that a helper waits for its turn.
const DENSE_WORTH: usize = 4 << 20;

/// The same of a strided one, which takes longer.
const STRIDED_WORTH: usize = 1 << 20;

/// Bytes that a thread copies before it looks for more: long against the look, short against the wait for the last.
const BAND: usize = 1 << 20;

/// Elements along each side of a tile: 64 lines of the source and of the destination fit into a 32 KiB cache together.
const TILE: usize = 64;

/// One dimension: how many elements, and how many bytes from one to the next in the source and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dimension {
    count: usize,
    from: isize,
    to: isize,
}

/// Whether an array of `dims` elements of `element` bytes lies dense in the default layout, whatever the strides along
/// dimensions of one element are.
pub fn is_dense(dims: &[i64], strides: Option<&[i64]>, element: usize) -> bool {
    strides.is_none_or(|strides| merge(dims, strides, element).is_empty())
}

/// Copies `bytes` bytes.
///
/// # Safety
/// `from` must be readable and `to` writable for `bytes` bytes, and the two must not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: one dimension of `bytes` elements of one byte is all of the array: readable, writable and apart by the
    // contract.
    unsafe { in_bands(from, to, &[Dimension { count: bytes, from: 1, to: 1 }], 1, Cut::of(bytes, DENSE_WORTH)) }
}

/// Copies an array of `dims` elements of `element` bytes to `to`, dense with the last dimension fastest. `strides` are
/// the source's in bytes, zero and negative ones included; without them the source is dense too.
///
/// # Safety
/// `from` must be readable at every element, `to` writable for the whole dense array, and the two must not overlap.
/// `strides` must be as many as `dims`, which must not be negative.
pub unsafe fn copy_to_dense(from: *const u8, to: *mut u8, dims: &[i64], strides: Option<&[i64]>, element: usize) {
    let total = dims.iter().map(|&dim| dim as usize).product::<usize>() * element;
    if total == 0 {
        return;
    }
    match strides.map(|strides| merge(dims, strides, element)) {
        Some(dimensions) if !dimensions.is_empty() => {
            // SAFETY: the merged dimensions describe the same elements as the caller's, which are readable; the
            // destination is writable for `total` bytes and apart from them. None is empty, because `total` is not
            // zero.
            unsafe { in_bands(from, to, &dimensions, element, Cut::of(total, STRIDED_WORTH)) }
        }
        // SAFETY: both are dense, so `total` bytes from either pointer on are the array: readable, writable and apart.
        _ => unsafe { copy(from, to, total) },
    }
}

/// The two ends of a copy, for threads that each write a part of their own.
#[derive(Clone, Copy)]
struct Ends(*const u8, *mut u8);
// SAFETY: only `in_bands` makes them, and shares them with threads that end before it does, so both arrays outlive the
// uses. Each thread writes a band of the destination that no other has, and the source is only read.
unsafe impl Sync for Ends {}

impl Ends {
    /// Both, out of a closure that captures them as one.
    fn both(&self) -> &Self {
        self
    }
}

/// How a copy is divided.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Threads at most, if there are bands enough.
    threads: usize,
    /// Bytes of a band at least, up to the array's end.
    band: usize,
}

impl Cut {
    /// For an array of so many bytes, of which each `worth` are worth a thread.
    fn of(bytes: usize, worth: usize) -> Self {
        Self { threads: bytes / worth, band: BAND }
    }
}

/// Copies in bands along the slowest dimension of the destination, each of which one thread writes alone.
///
/// # Safety
/// As for [`copy_to_dense`]; the dimensions must be all of the array, and none of them empty.
unsafe fn in_bands(from: *const u8, to: *mut u8, dimensions: &[Dimension], element: usize, cut: Cut) {
    let slowest = dimensions[0];
    if cut.threads <= 1 {
        // SAFETY: `walk` asks for the same arrays and dimensions as this function.
        return unsafe { walk(from, to, dimensions, element) };
    }
    // Where the source runs fastest along this dimension, a cut elsewhere than between tiles would divide its lines.
    let fastest = dimensions.iter().all(|dimension| slowest.from.unsigned_abs() <= dimension.from.unsigned_abs());
    let unit = if fastest { TILE } else { 1 };
    let height = cut.band.div_ceil(slowest.to.unsigned_abs()).next_multiple_of(unit);
    let ends = Ends(from, to);
    pieces::each(slowest.count.div_ceil(height), cut.threads, |number| {
        let Ends(from, to) = *ends.both();
        let first = number * height;
        let mut band: SmallVec<[Dimension; 6]> = SmallVec::from_slice(dimensions);
        band[0].count = height.min(slowest.count - first);
        let first = first as isize;
        // SAFETY: the band's first element and its count lie within the array, so it is readable and writable by the
        // contract, and `pieces::each` gives each number, so each band, to one thread.
        unsafe { walk(from.offset(first * slowest.from), to.offset(first * slowest.to), &band, element) }
    });
}

/// The dimensions, slowest first, without those of one element, and with neighbours merged where the source steps over
/// them evenly. Empty when the source is dense.
fn merge(dims: &[i64], strides: &[i64], element: usize) -> SmallVec<[Dimension; 6]> {
    let mut merged: SmallVec<[Dimension; 6]> = SmallVec::new();
    let mut to = element as isize;
    // From the fastest dimension to the slowest, so that each one knows how dense what lies inside it is.
    for (&dim, &stride) in dims.iter().zip(strides).rev() {
        let (count, from) = (dim as usize, stride as isize);
        if count == 1 {
            continue;
        }
        match merged.last_mut() {
            Some(inner) if from == inner.from * inner.count as isize => inner.count *= count,
            _ => merged.push(Dimension { count, from, to }),
        }
        to *= count as isize;
    }
    if let [only] = merged.as_slice()
        && only.from == only.to
    {
        merged.clear();
    }
    merged.reverse();
    merged
}

/// Copies element by element, row by row or tile by tile.
///
/// # Safety
/// As for [`copy_to_dense`].
unsafe fn walk(from: *const u8, to: *mut u8, dimensions: &[Dimension], element: usize) {
    let (outer, inner) = match dimensions {
        [] => return,
        [.., row] if row.from == element as isize => {
            let bytes = row.count * element;
            let outer = &dimensions[..dimensions.len() - 1];
            // SAFETY: the last dimension is dense on both sides, so `bytes` from each of its starts on are readable and
            // writable.
            return unsafe { each(from, to, outer, &mut |from, to| ptr::copy_nonoverlapping(from, to, bytes)) };
        }
        [single] => {
            for index in 0..single.count as isize {
                // SAFETY: the index is below the count of the one dimension, so an element lies there on either side.
                unsafe { one(from.offset(index * single.from), to.offset(index * single.to), element) }
            }
            return;
        }
        [outer @ .., row] => (outer, *row),
    };
    // Tile the fastest dimension of the destination against the fastest of the source.
    let fastest = (0..outer.len()).min_by_key(|&at| outer[at].from.unsigned_abs()).unwrap_or(0);
    let other = outer[fastest];
    let mut rest: SmallVec<[Dimension; 6]> = SmallVec::from_slice(outer);
    rest.remove(fastest);
    // SAFETY: `rest`, `other` and `inner` are all dimensions, so every element that `each` and `tiles` come to is the
    // array's.
    unsafe { each(from, to, &rest, &mut |from, to| tiles(from, to, other, inner, element)) }
}

/// Calls `body` at each element of `dimensions`.
///
/// # Safety
/// Every combination of indices below the counts must lead to a place within the arrays.
unsafe fn each(from: *const u8, to: *mut u8, dimensions: &[Dimension], body: &mut dyn FnMut(*const u8, *mut u8)) {
    match dimensions {
        [] => body(from, to),
        [first, rest @ ..] => {
            for index in 0..first.count as isize {
                // SAFETY: the index is below the count, so the offsets stay within the arrays, and so does the rest by
                // the contract.
                unsafe { each(from.offset(index * first.from), to.offset(index * first.to), rest, body) }
            }
        }
    }
}

/// A plane, tile by tile.
///
/// # Safety
/// As for [`copy_to_dense`].
unsafe fn tiles(from: *const u8, to: *mut u8, a: Dimension, b: Dimension, element: usize) {
    for a0 in (0..a.count).step_by(TILE) {
        for b0 in (0..b.count).step_by(TILE) {
            for i in a0..(a0 + TILE).min(a.count) {
                for j in b0..(b0 + TILE).min(b.count) {
                    let (i, j) = (i as isize, j as isize);
                    // SAFETY: both indices are below their counts, so an element of the array lies at either place.
                    unsafe {
                        one(from.offset(i * a.from + j * b.from), to.offset(i * a.to + j * b.to), element);
                    }
                }
            }
        }
    }
}

/// One element. A fixed size makes a load and a store of it.
///
/// # Safety
/// Both must be valid for `element` bytes.
#[inline(always)]
unsafe fn one(from: *const u8, to: *mut u8, element: usize) {
    // SAFETY: by the contract the source is readable and the destination writable for `element` bytes, and they are
    // apart; a copy of bytes asks for no alignment.
    unsafe {
        match element {
            1 => *to = *from,
            2 => ptr::copy_nonoverlapping(from, to, 2),
            4 => ptr::copy_nonoverlapping(from, to, 4),
            8 => ptr::copy_nonoverlapping(from, to, 8),
            16 => ptr::copy_nonoverlapping(from, to, 16),
            other => ptr::copy_nonoverlapping(from, to, other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The obvious way: every element by its own index.
    fn naive(from: &[u8], origin: usize, dims: &[i64], strides: &[i64], element: usize) -> Vec<u8> {
        let total: i64 = dims.iter().product();
        let mut dense = Vec::new();
        for number in 0..total {
            let (mut rest, mut at) = (number, origin as i64);
            for (dim, stride) in dims.iter().zip(strides).rev() {
                at += rest % dim * stride;
                rest /= dim;
            }
            dense.extend_from_slice(&from[at as usize..at as usize + element]);
        }
        dense
    }

    #[test]
    fn dense_is_what_lies_dense() {
        assert!(is_dense(&[3, 4], None, 4));
        assert!(is_dense(&[3, 4], Some(&[16, 4]), 4));
        assert!(is_dense(&[3, 1, 4], Some(&[16, 12345, 4]), 4), "one element has no stride");
        assert!(is_dense(&[], Some(&[]), 4));
        for (dims, strides) in [([3, 4], [4, 12]), ([3, 4], [32, 4]), ([3, 4], [0, 4]), ([3, 4], [-16, 4])] {
            assert!(!is_dense(&dims, Some(&strides), 4), "{dims:?} {strides:?}");
        }
        assert!(!is_dense(&[4], Some(&[8]), 4));
    }

    proptest! {
        #[test]
        fn dense_copies_are_exact_at_all_sizes_and_alignments(
            bytes in 0_usize..70_000, from in 0_usize..65, to in 0_usize..65, threads in 2_usize..6, band in 1_usize..9000,
        ) {
            let source: Vec<u8> = (0..bytes + from).map(|i| (i * 7 + i / 256) as u8).collect();
            let mut copied = vec![0xA5; to + bytes + 64];
            let dimension = Dimension { count: bytes, from: 1, to: 1 };
            // SAFETY: both have `bytes` bytes from there on.
            unsafe {
                let (from, to) = (source.as_ptr().add(from), copied.as_mut_ptr().add(to));
                in_bands(from, to, &[dimension], 1, Cut { threads, band });
            }
            prop_assert_eq!(&copied[to..to + bytes], &source[from..]);
            prop_assert!(copied[..to].iter().chain(&copied[to + bytes..]).all(|&byte| byte == 0xA5), "nothing beside");
        }

        #[test]
        fn copies_what_the_strides_say(
            shape in prop::collection::vec((0_i64..70, prop::sample::select(vec![-2_i64, -1, 0, 1, 2])), 0..4),
            order in any::<u64>(),
            element in prop::sample::select(vec![1_usize, 2, 4, 8, 16]),
            (threads, band) in (1_usize..5, 1_usize..5000),
        ) {
            let dims: Vec<i64> = shape.iter().map(|(dim, _)| *dim).collect();
            prop_assume!(dims.iter().product::<i64>() < 20_000);
            // Strides of a dense array whose dimensions lie in some order, stretched, turned round or folded.
            let mut places: Vec<usize> = (0..dims.len()).collect();
            places.sort_by_key(|&at| order.rotate_left(at as u32 * 8) & 0xff);
            let (mut strides, mut step) = (vec![0; dims.len()], element as i64);
            for &at in &places {
                strides[at] = step * shape[at].1;
                step *= dims[at].max(1) * shape[at].1.abs().max(1);
            }
            let low: i64 = dims.iter().zip(&strides).map(|(d, s)| ((d - 1).max(0) * s).min(0)).sum();
            let high: i64 = dims.iter().zip(&strides).map(|(d, s)| ((d - 1).max(0) * s).max(0)).sum();
            let source: Vec<u8> = (0..(high - low) as usize + element).map(|i| (i * 7 + i / 256) as u8).collect();
            let origin = -low as usize;
            let expected = naive(&source, origin, &dims, &strides, element);
            let mut copied = vec![0; expected.len()];
            // SAFETY: the source reaches from the lowest to the highest element, the destination is as long as needed.
            unsafe {
                copy_to_dense(source.as_ptr().add(origin), copied.as_mut_ptr(), &dims, Some(&strides), element);
            }
            prop_assert_eq!(&copied, &expected);
            let dimensions = merge(&dims, &strides, element);
            if !expected.is_empty() && !dimensions.is_empty() {
                copied.fill(0);
                // SAFETY: as above.
                unsafe {
                    let from = source.as_ptr().add(origin);
                    in_bands(from, copied.as_mut_ptr(), &dimensions, element, Cut { threads, band });
                }
                prop_assert_eq!(&copied, &expected);
            }
        }
    }
}
