//! What an array is, whatever memory it lies in.

use once_cell::sync::OnceCell;
use smallvec::SmallVec;

use crate::{sys, units::Bytes};

/// The tiled layout of an array, as the engine told it.
pub struct Layout {
    /// Dimension numbers, the fastest-varying first.
    pub minor_to_major: Vec<i64>,
    /// The sizes of all tiles, one after the other.
    pub tile_dims: Vec<i64>,
    /// How many sizes each tile has.
    pub tile_dim_sizes: Vec<usize>,
}

/// What an array is, whatever memory it lies in.
pub struct Shape {
    /// PJRT's element type.
    pub element_type: sys::PJRT_Buffer_Type,
    /// Sizes of the dimensions, the slowest-varying first.
    pub dims: SmallVec<[i64; 6]>,
    /// Bytes on the device.
    pub size: usize,
    /// Asked from the engine when first needed.
    pub layout: OnceCell<Layout>,
}

impl Shape {
    /// A shape of `size` bytes.
    pub fn new(element_type: sys::PJRT_Buffer_Type, dims: &[i64], size: usize) -> Self {
        Self { element_type, dims: SmallVec::from_slice(dims), size, layout: OnceCell::new() }
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
