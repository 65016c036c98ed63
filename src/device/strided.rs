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

use std::{marker::PhantomData, mem::MaybeUninit, ptr, slice};

use smallvec::SmallVec;

use crate::device::{
    array::{Dimension, HostArray, merge},
    pieces,
};

/// Bytes of a dense array that are worth a thread: on idle processors two threads win from twice as many on. On busy
/// ones a copy into memory used before can lose, by the time that a helper waits for its turn.
const DENSE_WORTH: usize = 4 << 20;

/// The same of a strided one, which takes longer.
const STRIDED_WORTH: usize = 1 << 20;

/// Bytes that a thread copies before it looks for more: long against the look, short against the wait for the last.
const BAND: usize = 1 << 20;

/// Elements along each side of a tile: 64 lines of the source and of the destination fit into a 32 KiB cache together.
const TILE: usize = 64;

/// Whether an array of `dims` elements of `element` bytes lies dense in the default layout, whatever the strides along
/// dimensions of one element are.
pub fn is_dense(dims: &[i64], strides: Option<&[i64]>, element: usize) -> bool {
    strides.is_none_or(|strides| merge(dims, strides, element).is_empty())
}

/// Copies `bytes` bytes.
///
/// # Safety
/// `from` must be readable and `to` writable for `bytes` bytes of one allocation each, the two must not overlap, and
/// nothing else may write to the one, or read or write the other, meanwhile.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == 0 {
        return;
    }
    // SAFETY: both are memory of an allocation with so many bytes, which is used by nothing that the two kinds of
    // reference exclude, by the contract; neither is NULL, because there are bytes. Bytes need no alignment, and these
    // may be uninitialised.
    let (from, to) =
        unsafe { (slice::from_raw_parts(from.cast(), bytes), slice::from_raw_parts_mut(to.cast(), bytes)) };
    copy_bytes(from, to, Cut::of(bytes, DENSE_WORTH));
}

/// Copies an array to `to`, dense with the last dimension fastest.
///
/// # Safety
/// `to` must be writable for the whole dense array, in one allocation that does not overlap the source, and nothing
/// else may read or write it meanwhile.
pub unsafe fn copy_to_dense(from: HostArray<'_>, to: *mut u8) {
    let total = from.bytes();
    if total == 0 {
        return;
    }
    // SAFETY: by the contract `to` is so many bytes of one allocation that nothing else uses; it is not NULL, because
    // there are bytes. They need no alignment and may be uninitialised.
    let to: &mut [MaybeUninit<u8>] = unsafe { slice::from_raw_parts_mut(to.cast(), total) };
    match from.dense() {
        Some(from) => copy_bytes(from, to, Cut::of(total, DENSE_WORTH)),
        None => Part::whole(from, to).copy(Cut::of(total, STRIDED_WORTH)),
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

/// Copies bytes to as many.
fn copy_bytes(from: &[MaybeUninit<u8>], to: &mut [MaybeUninit<u8>], cut: Cut) {
    if cut.threads <= 1 {
        return to.copy_from_slice(from);
    }
    assert_eq!(from.len(), to.len());
    let bands = to.chunks_mut(cut.band).zip(from.chunks(cut.band));
    pieces::each(bands, cut.threads, |(to, from)| to.copy_from_slice(from));
}

/// Elements of an array, and the places that they go to. For all indices below the counts an element of the array lies
/// at `from`, and its place at `to`, which no other part has.
struct Part<'a> {
    from: *const u8,
    to: *mut u8,
    /// Slowest first; none is empty.
    dimensions: SmallVec<[Dimension; 6]>,
    element: usize,
    arrays: PhantomData<(HostArray<'a>, &'a mut [MaybeUninit<u8>])>,
}

// SAFETY: a part reads an array that does not change while it lives (`HostArray::new`), and writes places that are
// borrowed for as long and that no other part has. Neither cares which thread does it.
unsafe impl Send for Part<'_> {}

impl<'a> Part<'a> {
    /// All of an array that has elements and is not dense.
    fn whole(array: HostArray<'a>, to: &'a mut [MaybeUninit<u8>]) -> Self {
        assert!(to.len() == array.bytes() && !to.is_empty(), "room for the whole array, which has elements");
        // They describe the array's own elements, and the dense array of as many.
        let dimensions = array.merged();
        let (from, to) = (array.start(), to.as_mut_ptr().cast());
        Self { from, to, dimensions, element: array.element(), arrays: PhantomData }
    }

    /// The first `count` indices of the slowest dimension, and the rest.
    fn split(mut self, count: usize) -> (Self, Option<Self>) {
        let slowest = self.dimensions[0];
        if count >= slowest.count {
            return (self, None);
        }
        let mut dimensions = self.dimensions.clone();
        dimensions[0].count = slowest.count - count;
        self.dimensions[0].count = count;
        let from = self.from.wrapping_offset(count as isize * slowest.from);
        let to = self.to.wrapping_offset(count as isize * slowest.to);
        let rest = Self { from, to, dimensions, ..self };
        (self, Some(rest))
    }

    /// Copies it, in bands along the slowest dimension of the destination, each of which one thread has alone.
    fn copy(self, cut: Cut) {
        if cut.threads <= 1 {
            return self.walk();
        }
        let slowest = self.dimensions[0];
        // Where the source runs fastest along this dimension, a cut elsewhere than between tiles would divide its
        // lines.
        let fastest =
            self.dimensions.iter().all(|dimension| slowest.from.unsigned_abs() <= dimension.from.unsigned_abs());
        let unit = if fastest { TILE } else { 1 };
        let height = cut.band.div_ceil(slowest.to.unsigned_abs()).next_multiple_of(unit);
        pieces::each(Bands { rest: Some(self), height }, cut.threads, Self::walk);
    }

    /// Copies element by element, row by row or tile by tile.
    fn walk(self) {
        let Self { from, to, element, .. } = self;
        let (outer, inner) = match self.dimensions.as_slice() {
            [] => return,
            [outer @ .., row] if row.from == element as isize => {
                let bytes = row.count * element;
                return each(outer, (0, 0), &mut |source, target| {
                    // SAFETY: `each` comes to the starts of rows that are dense on both sides, so `bytes` bytes from
                    // there on are this part's elements and places.
                    unsafe { ptr::copy_nonoverlapping(from.offset(source), to.offset(target), bytes) }
                });
            }
            [outer @ .., row] => (outer, *row),
        };
        // Tile the fastest dimension of the destination against the fastest of the source.
        let fastest = (0..outer.len()).min_by_key(|&at| outer[at].from.unsigned_abs());
        let mut rest: SmallVec<[Dimension; 6]> = SmallVec::from_slice(outer);
        let other = fastest.map_or(Dimension { count: 1, from: 0, to: 0 }, |fastest| rest.remove(fastest));
        each(&rest, (0, 0), &mut |source, target| {
            // SAFETY: `rest`, `other` and `inner` are all dimensions, so from where `each` comes to on, the other two
            // lead to this part's elements and places.
            unsafe { plane(from.offset(source), to.offset(target), other, inner, element) }
        });
    }
}

/// A part, band by band along its slowest dimension.
struct Bands<'a> {
    rest: Option<Part<'a>>,
    height: usize,
}

impl<'a> Iterator for Bands<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let (band, rest) = self.rest.take()?.split(self.height);
        self.rest = rest;
        Some(band)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.as_ref().map_or(0, |rest| rest.dimensions[0].count.div_ceil(self.height));
        (left, Some(left))
    }
}

impl ExactSizeIterator for Bands<'_> {}

/// Calls `body` with how far each combination of indices of `dimensions` is from the first, in the source and in the
/// destination; `at` is how far that one is.
fn each(dimensions: &[Dimension], at: (isize, isize), body: &mut dyn FnMut(isize, isize)) {
    match dimensions {
        [] => body(at.0, at.1),
        [first, rest @ ..] => {
            for index in 0..first.count as isize {
                each(rest, (at.0 + index * first.from, at.1 + index * first.to), body);
            }
        }
    }
}

/// Copies a plane, tile by tile, element by element. The match makes a load and a store of each.
///
/// # Safety
/// For all indices of the two dimensions `from` leads to an element that is readable, and `to` to its place, which is
/// writable; the two do not overlap.
unsafe fn plane(from: *const u8, to: *mut u8, a: Dimension, b: Dimension, element: usize) {
    // A single row has no lines that another one would read again.
    let width = if a.count == 1 { b.count } else { TILE };
    for a0 in (0..a.count).step_by(TILE) {
        for b0 in (0..b.count).step_by(width) {
            for i in a0..(a0 + TILE).min(a.count) {
                for j in b0..(b0 + width).min(b.count) {
                    let (i, j) = (i as isize, j as isize);
                    // SAFETY: both indices are below their counts, so by the contract an element is readable there, and
                    // its place writable and apart. A copy of bytes asks for no alignment.
                    unsafe {
                        let (from, to) = (from.offset(i * a.from + j * b.from), to.offset(i * a.to + j * b.to));
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
            }
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
            let whole: Vec<_> = source[from..].iter().copied().map(MaybeUninit::new).collect();
            let mut room = vec![MaybeUninit::new(0); bytes];
            copy_bytes(&whole, &mut room, Cut { threads, band });
            // SAFETY: all of it was written.
            room.iter().enumerate().for_each(|(at, byte)| copied[to + at] = unsafe { byte.assume_init() });
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
            let array = unsafe {
                let array = HostArray::new(source.as_ptr().add(origin), &dims, Some(&strides), element);
                copy_to_dense(array, copied.as_mut_ptr());
                array
            };
            prop_assert_eq!(&copied, &expected);
            if array.dense().is_none() && !expected.is_empty() {
                let mut room = vec![MaybeUninit::new(0); expected.len()];
                Part::whole(array, &mut room).copy(Cut { threads, band });
                // SAFETY: all of it was written.
                let copied: Vec<u8> = room.iter().map(|byte| unsafe { byte.assume_init() }).collect();
                prop_assert_eq!(&copied, &expected);
            }
        }
    }
}
