//! Copies of strided host arrays into dense blocks.
//!
//! Dimensions that lie dense in the source are first merged, so that a contiguous array is one `memcpy` and a slice of
//! one is a `memcpy` a row. What is left is walked in the order of the destination; where the source runs fastest along
//! another dimension than the destination does (a transposed array), the two are walked in tiles, so that each cache
//! line of the source is read once.

use std::ptr;

use smallvec::SmallVec;

/// Elements along each side of a tile: 64 lines of the source and of the destination fit into a 32 KiB cache together.
const TILE: usize = 64;

/// One dimension: how many elements, and how many bytes from one to the next in the source and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dimension {
    count: usize,
    from: isize,
    to: isize,
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
    let Some(strides) = strides else {
        // SAFETY: both are dense and `total` bytes long.
        return unsafe { ptr::copy_nonoverlapping(from, to, total) };
    };
    let dimensions = merge(dims, strides, element);
    match dimensions.as_slice() {
        // SAFETY: nothing is left to stride over.
        [] => unsafe { ptr::copy_nonoverlapping(from, to, total) },
        // SAFETY: the dimensions describe the same elements as the caller's.
        all => unsafe { walk(from, to, all, element) },
    }
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
            // SAFETY: each row is dense on both sides.
            return unsafe { rows(from, to, &dimensions[..dimensions.len() - 1], row.count * element) };
        }
        [single] => {
            // SAFETY: the one dimension is all of the array.
            return unsafe { line(from, to, *single, element) };
        }
        [outer @ .., row] => (outer, *row),
    };
    // Tile the fastest dimension of the destination against the fastest of the source.
    let fastest = (0..outer.len()).min_by_key(|&at| outer[at].from.unsigned_abs()).unwrap_or(0);
    let other = outer[fastest];
    let mut rest: SmallVec<[Dimension; 6]> = SmallVec::from_slice(outer);
    rest.remove(fastest);
    // SAFETY: `rest` with `other` and `inner` are all dimensions.
    unsafe { each(from, to, &rest, &mut |from, to| tiles(from, to, other, inner, element)) }
}

/// Calls `body` at each element of `dimensions`.
///
/// # Safety
/// The pointers that result must be within the arrays.
unsafe fn each(from: *const u8, to: *mut u8, dimensions: &[Dimension], body: &mut dyn FnMut(*const u8, *mut u8)) {
    match dimensions {
        [] => body(from, to),
        [first, rest @ ..] => {
            for index in 0..first.count as isize {
                // SAFETY: the index is below the count.
                unsafe { each(from.offset(index * first.from), to.offset(index * first.to), rest, body) }
            }
        }
    }
}

/// Rows that are dense on both sides.
///
/// # Safety
/// As for [`copy_to_dense`].
unsafe fn rows(from: *const u8, to: *mut u8, dimensions: &[Dimension], bytes: usize) {
    // SAFETY: each call gets one row.
    unsafe { each(from, to, dimensions, &mut |from, to| ptr::copy_nonoverlapping(from, to, bytes)) }
}

/// One strided line.
///
/// # Safety
/// As for [`copy_to_dense`].
unsafe fn line(from: *const u8, to: *mut u8, dimension: Dimension, element: usize) {
    for index in 0..dimension.count as isize {
        // SAFETY: the index is below the count.
        unsafe { one(from.offset(index * dimension.from), to.offset(index * dimension.to), element) }
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
                    // SAFETY: both indices are below their counts.
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
    // SAFETY: the caller's promise; no alignment is asked for.
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

    proptest! {
        #[test]
        fn copies_what_the_strides_say(
            shape in prop::collection::vec((0_i64..70, prop::sample::select(vec![-2_i64, -1, 0, 1, 2])), 0..4),
            order in any::<u64>(),
            element in prop::sample::select(vec![1_usize, 2, 4, 8, 16]),
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
            prop_assert_eq!(copied, expected);
        }
    }
}
