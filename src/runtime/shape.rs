//! What an array is, whatever memory it lies in.

use once_cell::sync::OnceCell;
use smallvec::SmallVec;

use crate::{engine::views::Array, sys, units::Bytes};

/// The tiled layout of an array, as the engine told it.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// Dimension numbers, the fastest-varying first.
    pub minor_to_major: Vec<i64>,
    /// The sizes of all tiles, one after the other.
    pub tile_dims: Vec<i64>,
    /// How many sizes each tile has.
    pub tile_dim_sizes: Vec<usize>,
}

impl Layout {
    /// Whether the elements follow one another in the order of the last dimension, then of the one before it, and so
    /// on.
    pub fn is_default(&self) -> bool {
        self.tile_dim_sizes.is_empty() && (0_i64..).zip(self.minor_to_major.iter().rev()).all(|(dim, &at)| dim == at)
    }
}

/// What an array is, whatever memory it lies in.
pub struct Shape {
    /// PJRT's element type.
    pub element_type: sys::PJRT_Buffer_Type,
    /// Sizes of the dimensions, the slowest-varying first.
    pub dims: SmallVec<[i64; 6]>,
    /// Bytes on the device.
    pub size: usize,
    /// Asked from the engine when it is first needed.
    pub layout: OnceCell<Layout>,
}

impl Shape {
    /// A shape of `size` bytes.
    pub fn new(element_type: sys::PJRT_Buffer_Type, dims: &[i64], size: usize) -> Self {
        Self { element_type, dims: SmallVec::from_slice(dims), size, layout: OnceCell::new() }
    }

    /// Whether it takes as many bytes as its elements, each of one byte or more.
    pub fn is_without_gaps(&self) -> bool {
        dense_size(self.element_type, &self.dims) == Some(Bytes::new(self.size as u64))
    }

    /// The layout, if it is known not to be the default one. That of an array in an arena is known, if it is another.
    pub fn own_layout(&self) -> Option<&Layout> {
        self.layout.get().filter(|layout| !layout.is_default())
    }

    /// The array that a view of it shows.
    pub fn array(&self) -> Array<'_> {
        let minor_to_major = self.own_layout().map(|layout| &*layout.minor_to_major);
        Array { minor_to_major, ..Array::new(self.element_type, &self.dims) }
    }
}

/// The size that XLA gives a dense array of `dims`; `None` for types that it packs, and on overflow.
pub fn dense_size(element_type: sys::PJRT_Buffer_Type, dims: &[i64]) -> Option<Bytes> {
    let mut size = u64::from(element_bytes(element_type)?);
    for &dim in dims {
        size = size.checked_mul(u64::try_from(dim).ok()?)?;
    }
    i64::try_from(size).ok().map(|_| Bytes::new(size))
}

/// Bytes of one element; `None` for types narrower than a byte, tokens and types unknown here.
pub fn element_bytes(element_type: sys::PJRT_Buffer_Type) -> Option<u8> {
    Some(match element_type {
        sys::PJRT_Buffer_Type_PRED
        | sys::PJRT_Buffer_Type_S8
        | sys::PJRT_Buffer_Type_U8
        | sys::PJRT_Buffer_Type_F8E5M2
        | sys::PJRT_Buffer_Type_F8E4M3FN
        | sys::PJRT_Buffer_Type_F8E4M3B11FNUZ
        | sys::PJRT_Buffer_Type_F8E5M2FNUZ
        | sys::PJRT_Buffer_Type_F8E4M3FNUZ
        | sys::PJRT_Buffer_Type_F8E4M3
        | sys::PJRT_Buffer_Type_F8E3M4
        | sys::PJRT_Buffer_Type_F8E8M0FNU => 1,
        sys::PJRT_Buffer_Type_S16
        | sys::PJRT_Buffer_Type_U16
        | sys::PJRT_Buffer_Type_F16
        | sys::PJRT_Buffer_Type_BF16 => 2,
        sys::PJRT_Buffer_Type_S32 | sys::PJRT_Buffer_Type_U32 | sys::PJRT_Buffer_Type_F32 => 4,
        sys::PJRT_Buffer_Type_S64
        | sys::PJRT_Buffer_Type_U64
        | sys::PJRT_Buffer_Type_F64
        | sys::PJRT_Buffer_Type_C64 => 8,
        sys::PJRT_Buffer_Type_C128 => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_layout_is_known() {
        let layout = |minor_to_major: &[i64], tile_dims: &[i64]| Layout {
            minor_to_major: minor_to_major.to_vec(),
            tile_dims: tile_dims.to_vec(),
            tile_dim_sizes: if tile_dims.is_empty() { Vec::new() } else { vec![tile_dims.len()] },
        };
        assert!(
            layout(&[], &[]).is_default() && layout(&[0], &[]).is_default() && layout(&[2, 1, 0], &[]).is_default()
        );
        assert!(!layout(&[0, 1], &[]).is_default() && !layout(&[2, 0, 1], &[]).is_default());
        assert!(!layout(&[1, 0], &[8, 128]).is_default(), "in tiles");
    }
}
