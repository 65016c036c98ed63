//! Arrays in memory of this process, wherever their elements lie.

use std::{mem::MaybeUninit, slice};

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// One dimension: how many elements, and how many bytes from one to the next in the source and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dimension {
    pub(super) count: usize,
    pub(super) from: isize,
    pub(super) to: isize,
}

/// An array in memory of this process, whose elements are readable and do not change for `'a`.
#[derive(Clone, Copy, Debug)]
pub struct HostArray<'a> {
    /// Its first element.
    data: *const u8,
    /// Elements along each dimension; none is negative.
    dims: &'a [i64],
    /// Bytes from one element to the next along each dimension, zero and negative ones included; dense without them.
    strides: Option<&'a [i64]>,
    /// Bytes of an element.
    element: usize,
}

impl<'a> HostArray<'a> {
    /// The array of `dims` elements of `element` bytes whose first one is at `data`. `strides` are in bytes; without
    /// them it is dense, with the last dimension fastest.
    ///
    /// # Safety
    /// Every element is readable at its place for `'a`, all of them in one allocation, and nothing writes to them
    /// meanwhile. There are as many strides as dimensions, if there are strides, and no dimension is negative.
    pub unsafe fn new(data: *const u8, dims: &'a [i64], strides: Option<&'a [i64]>, element: usize) -> Self {
        debug_assert!(strides.is_none_or(|strides| strides.len() == dims.len()));
        Self { data, dims, strides, element }
    }

    /// Bytes that its elements take.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for more than there are addresses.
    pub(super) fn size(&self) -> Result<usize> {
        let Self { dims, element, .. } = *self;
        let bytes = dims.iter().try_fold(element, |bytes, &dim| bytes.checked_mul(usize::try_from(dim).ok()?));
        bytes.ok_or_else(|| {
            Error::invalid_argument(format!(
                "an array of {dims:?} elements of {element} bytes: allowed are 2^64 - 1 bytes"
            ))
        })
    }

    /// The same where [`Self::size`] is known to succeed.
    pub(super) fn bytes(&self) -> usize {
        self.dims.iter().map(|&dim| dim as usize).product::<usize>() * self.element
    }

    /// Its first element.
    pub(super) fn start(&self) -> *const u8 {
        self.data
    }

    /// Bytes of an element.
    pub(super) fn element(&self) -> usize {
        self.element
    }

    /// Elements along the slowest dimension; `None` for a single element.
    pub(super) fn rows(&self) -> Option<i64> {
        self.dims.first().copied()
    }

    /// The dimensions as [`merge`] has them.
    pub(super) fn merged(&self) -> SmallVec<[Dimension; 6]> {
        self.strides.map_or_else(SmallVec::new, |strides| merge(self.dims, strides, self.element))
    }

    /// Its bytes, if it lies dense.
    pub(super) fn dense(&self) -> Option<&'a [MaybeUninit<u8>]> {
        if !self.merged().is_empty() {
            return None;
        }
        let bytes = self.bytes();
        if bytes == 0 {
            return Some(&[]);
        }
        // SAFETY: the elements lie one behind the other from the first on, in one allocation, readable and unchanged
        // for `'a` (`new`), and take so many bytes. Bytes need no alignment, and these may be uninitialised.
        Some(unsafe { slice::from_raw_parts(self.data.cast(), bytes) })
    }

    /// The same bytes as an array of bytes, whose dimension is kept in `dims`, where it lies dense; else as it is.
    pub(super) fn flat<'b>(&self, dims: &'b mut [i64; 1]) -> HostArray<'b>
    where
        'a: 'b,
    {
        if !self.merged().is_empty() {
            return *self;
        }
        dims[0] = self.bytes() as i64;
        HostArray { data: self.data, dims, strides: None, element: 1 }
    }

    /// The array behind index `at` of the slowest dimension.
    pub(super) fn row(&self, at: i64) -> Self {
        let strides = self.strides.map(|strides| &strides[1..]);
        Self { data: self.at(at), dims: &self.dims[1..], strides, element: self.element }
    }

    /// The `count` indices of the slowest dimension from `first` on; the dimensions are kept in `dims`.
    pub(super) fn part<'b>(&self, first: i64, count: i64, dims: &'b mut SmallVec<[i64; 6]>) -> HostArray<'b>
    where
        'a: 'b,
    {
        assert!(count >= 0 && count <= self.dims[0] - first, "{count} rows from {first} on of {}", self.dims[0]);
        dims.clear();
        dims.extend_from_slice(self.dims);
        dims[0] = count;
        HostArray { data: self.at(first), dims, strides: self.strides, element: self.element }
    }

    /// The first element behind index `at` of the slowest dimension.
    fn at(&self, at: i64) -> *const u8 {
        assert!((0..self.dims[0]).contains(&at), "index {at} of {}", self.dims[0]);
        let dense = || self.dims[1..].iter().product::<i64>() * self.element as i64;
        let stride = self.strides.map_or_else(dense, |strides| strides[0]);
        self.data.wrapping_offset((at * stride) as isize)
    }
}

/// The dimensions, slowest first, without those of one element, and with neighbours merged where the source steps over
/// them evenly. Empty when the source is dense.
pub(super) fn merge(dims: &[i64], strides: &[i64], element: usize) -> SmallVec<[Dimension; 6]> {
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
