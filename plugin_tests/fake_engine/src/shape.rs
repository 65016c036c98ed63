//! What an array is, and how it lies in memory of the device and of the host.
//!
//! Types narrower than a byte are packed on the device, the first element in the lowest bits, and take a byte each on
//! the host.

use std::slice;

use crate::{
    entry::list,
    error::{Error, Result},
    sys::{self, CStruct},
};

/// Bytes of a 4 GiB-wide array fit; what does not is no array.
const MOST_BYTES: u64 = i64::MAX as u64;

/// A type, dimensions, and their order on the device; dense, and on the host the last dimension is the fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// PJRT's element type.
    pub element_type: sys::PJRT_Buffer_Type,
    /// Sizes of the dimensions, the slowest first.
    pub dims: Vec<i64>,
    /// Dimension numbers, the fastest first.
    pub minor_to_major: Vec<i64>,
    elements: u64,
    bits: u64,
}

/// Bits of an element on the device.
fn bits(element_type: sys::PJRT_Buffer_Type) -> Option<u64> {
    Some(match element_type {
        sys::PJRT_Buffer_Type_TOKEN => 0,
        sys::PJRT_Buffer_Type_S2 | sys::PJRT_Buffer_Type_U2 => 2,
        sys::PJRT_Buffer_Type_S4 | sys::PJRT_Buffer_Type_U4 | sys::PJRT_Buffer_Type_F4E2M1FN => 4,
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
        | sys::PJRT_Buffer_Type_F8E8M0FNU => 8,
        sys::PJRT_Buffer_Type_S16
        | sys::PJRT_Buffer_Type_U16
        | sys::PJRT_Buffer_Type_F16
        | sys::PJRT_Buffer_Type_BF16 => 16,
        sys::PJRT_Buffer_Type_S32 | sys::PJRT_Buffer_Type_U32 | sys::PJRT_Buffer_Type_F32 => 32,
        sys::PJRT_Buffer_Type_S64
        | sys::PJRT_Buffer_Type_U64
        | sys::PJRT_Buffer_Type_F64
        | sys::PJRT_Buffer_Type_C64 => 64,
        sys::PJRT_Buffer_Type_C128 => 128,
        _ => return None,
    })
}

impl Shape {
    /// A shape with the default layout.
    ///
    /// # Errors
    /// An element type that is not known here, a negative dimension, or more bytes than there can be.
    pub fn new(element_type: sys::PJRT_Buffer_Type, dims: &[i64]) -> Result<Self> {
        let bits = bits(element_type).ok_or_else(|| {
            Error::invalid(format!("element type {} is not known to the fake CUDA engine", element_type.0))
        })?;
        let elements = dims
            .iter()
            .try_fold(1_u64, |all, &dim| all.checked_mul(u64::try_from(dim).ok()?))
            .filter(|&elements| elements.checked_mul(16).is_some_and(|bytes| bytes <= MOST_BYTES))
            .ok_or_else(|| Error::invalid(format!("{dims:?} are no dimensions of an array")))?;
        let minor_to_major = (0..dims.len() as i64).rev().collect();
        Ok(Self { element_type, dims: dims.to_vec(), minor_to_major, elements, bits })
    }

    /// The same with the dimensions in another order on the device, the fastest first.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for what is no order of the dimensions, UNIMPLEMENTED for types narrower than a byte.
    pub fn in_order(mut self, order: &[i64]) -> Result<Self> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.dims.len() as i64) {
            return Err(Error::invalid(format!(
                "minor_to_major {order:?} is no order of {} dimensions",
                self.dims.len()
            )));
        }
        self.minor_to_major = order.to_vec();
        if self.is_packed() && !self.is_row_major() {
            return Err(Error::unimplemented(format!(
                "the fake CUDA engine has elements narrower than a byte in the default layout only, not in {order:?}"
            )));
        }
        Ok(self)
    }

    /// Whether the dimensions have the same order on the device as on the host.
    pub fn is_row_major(&self) -> bool {
        self.minor_to_major.iter().rev().copied().eq(0..self.dims.len() as i64)
    }

    /// The bytes on the device of a dense array of the host, if they are others.
    pub fn to_device(&self, host: &[u8]) -> Option<Vec<u8>> {
        if self.is_packed() {
            return Some(self.pack(host));
        }
        (!self.is_row_major()).then(|| self.reordered(host, None, Some(&self.minor_to_major)))
    }

    /// The dense array of the host, with its dimensions in `order` if one is given, of bytes on the device; `None` if
    /// they are the same.
    pub fn to_host(&self, device: &[u8], order: Option<&[i64]>) -> Option<Vec<u8>> {
        if self.is_packed() {
            let host = self.unpack(device);
            return Some(order.map(|order| self.reordered(&host, None, Some(order))).unwrap_or(host));
        }
        let same = order.map_or(self.is_row_major(), |order| order == self.minor_to_major);
        (!same).then(|| self.reordered(device, Some(&self.minor_to_major), order))
    }

    /// The shape that C fields describe.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::in_order`].
    ///
    /// # Safety
    /// The pointers must be NULL or valid.
    pub unsafe fn read(
        element_type: sys::PJRT_Buffer_Type,
        dims: *const i64,
        num_dims: usize,
        layout: *const sys::PJRT_Buffer_MemoryLayout,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        let (dims, layout) = unsafe { (list(dims, num_dims), layout.as_ref()) };
        let shape = Self::new(element_type, dims)?;
        match layout {
            // SAFETY: as above.
            Some(layout) => shape.in_order(unsafe { order(layout)? }),
            None => Ok(shape),
        }
    }

    /// The layout as the C API says it; it borrows from `self`.
    pub fn layout(&self) -> sys::PJRT_Buffer_MemoryLayout {
        let mut layout = sys::PJRT_Buffer_MemoryLayout {
            struct_size: sys::PJRT_Buffer_MemoryLayout::STRUCT_SIZE,
            type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled,
            ..Default::default()
        };
        layout.__bindgen_anon_1.tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: sys::PJRT_Buffer_MemoryLayout_Tiled::STRUCT_SIZE,
            minor_to_major: self.minor_to_major.as_ptr(),
            minor_to_major_size: self.minor_to_major.len(),
            ..Default::default()
        };
        layout
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        (self.elements * self.bits).div_ceil(8)
    }

    /// Bytes of one element on the host.
    pub fn host_element(&self) -> usize {
        self.bits.div_ceil(8) as usize
    }

    /// Bytes on the host.
    pub fn host_bytes(&self) -> usize {
        self.elements as usize * self.host_element()
    }

    /// Whether elements share bytes on the device.
    pub fn is_packed(&self) -> bool {
        self.bits > 0 && self.bits < 8
    }

    /// Puts elements that take a byte each closely together.
    fn pack(&self, host: &[u8]) -> Vec<u8> {
        let each = (8 / self.bits) as usize;
        let join = |group: &[u8]| {
            let place = |(at, value): (usize, &u8)| (value & self.mask()) << (at as u64 * self.bits);
            group.iter().enumerate().map(place).fold(0, |all, bits| all | bits)
        };
        host.chunks(each).map(join).collect()
    }

    /// The other way round; the high bits are zero.
    fn unpack(&self, device: &[u8]) -> Vec<u8> {
        let each = 8 / self.bits;
        let element = |at: u64| device[(at / each) as usize] >> (at % each * self.bits) & self.mask();
        (0..self.elements).map(element).collect()
    }

    fn mask(&self) -> u8 {
        (1 << self.bits) - 1
    }

    /// Collects an array of the host whose elements lie `strides` bytes apart.
    ///
    /// # Safety
    /// Every element must be readable.
    pub unsafe fn gather(&self, data: *const u8, strides: &[i64]) -> Vec<u8> {
        let element = self.host_element();
        let mut dense = Vec::with_capacity(self.host_bytes());
        self.each(strides, |offset| {
            // SAFETY: the caller's promise.
            dense.extend_from_slice(unsafe { slice::from_raw_parts(data.offset(offset as isize), element) });
        });
        dense
    }

    /// A dense array with its dimensions in order `from`, in order `to`; without one, the last is the fastest.
    fn reordered(&self, array: &[u8], from: Option<&[i64]>, to: Option<&[i64]>) -> Vec<u8> {
        let element = self.host_element();
        let (from, to) = (self.strides(from), self.strides(to));
        let mut places = Vec::with_capacity(self.elements as usize);
        self.each(&from, |offset| places.push(offset as usize));
        let (mut out, mut places) = (vec![0; array.len()], places.into_iter());
        self.each(&to, |offset| {
            if let Some(at) = places.next() {
                out[offset as usize..][..element].copy_from_slice(&array[at..][..element]);
            }
        });
        out
    }

    /// Bytes from one element to the next along each dimension of a dense array in this order, the fastest first.
    fn strides(&self, order: Option<&[i64]>) -> Vec<i64> {
        let mut strides = vec![0_i64; self.dims.len()];
        let mut step = self.host_element() as i64;
        let row_major: Vec<i64> = (0..self.dims.len() as i64).rev().collect();
        for &dimension in order.unwrap_or(&row_major) {
            strides[dimension as usize] = step;
            step *= self.dims[dimension as usize];
        }
        strides
    }

    /// Visits the byte offset of each element, the last dimension fastest.
    fn each(&self, strides: &[i64], mut visit: impl FnMut(i64)) {
        let mut index = vec![0_i64; self.dims.len()];
        for _ in 0..self.elements {
            visit(index.iter().zip(strides).map(|(at, stride)| at * stride).sum());
            for (at, dim) in index.iter_mut().zip(&self.dims).rev() {
                *at += 1;
                if *at < *dim {
                    break;
                }
                *at = 0;
            }
        }
    }
}

/// The order of dimensions of a layout, the fastest first.
///
/// # Errors
/// INVALID_ARGUMENT for strides and tiles.
///
/// # Safety
/// The layout's pointers must be valid.
pub unsafe fn order(layout: &sys::PJRT_Buffer_MemoryLayout) -> Result<&[i64]> {
    if layout.type_ != sys::PJRT_Buffer_MemoryLayout_Type_Tiled {
        return Err(Error::invalid("only tiled layouts are supported, not byte strides"));
    }
    // SAFETY: the type says which member of the union is set; the list is as long as it says.
    let (tiled, order) = unsafe {
        let tiled = layout.__bindgen_anon_1.tiled;
        (tiled, list(tiled.minor_to_major, tiled.minor_to_major_size))
    };
    match tiled.num_tiles {
        0 => Ok(order),
        tiles => Err(Error::invalid(format!("layouts with tiles are not supported, and this one has {tiles}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_types_are_packed_and_come_back() {
        for (element_type, bits) in [(sys::PJRT_Buffer_Type_S4, 4), (sys::PJRT_Buffer_Type_U2, 2)] {
            let shape = Shape::new(element_type, &[5]).unwrap();
            assert_eq!((shape.bytes(), shape.host_bytes()), ((5_u64 * bits).div_ceil(8), 5));
            let host = [1, 0xFF, 2, 3, 0];
            let packed = shape.pack(&host);
            assert_eq!(packed.len() as u64, shape.bytes());
            let mask = (1_u8 << bits) - 1;
            assert_eq!(shape.unpack(&packed), host.map(|value| value & mask));
        }
        assert_eq!(Shape::new(sys::PJRT_Buffer_Type_S4, &[3]).unwrap().pack(&[1, 2, 3]), [0x21, 3]);
    }

    #[test]
    fn arrays_are_gathered_and_reordered() {
        let shape = Shape::new(sys::PJRT_Buffer_Type_U8, &[2, 3]).unwrap();
        let host = [1, 2, 3, 4, 5, 6];
        // SAFETY: backwards from the last element, in both dimensions, lies the whole array.
        assert_eq!(unsafe { shape.gather(&raw const host[5], &[-3, -1]) }, [6, 5, 4, 3, 2, 1]);
        assert_eq!(shape.to_host(&host, Some(&[0, 1])).unwrap(), [1, 4, 2, 5, 3, 6]);
        assert_eq!(shape.to_host(&host, Some(&[1, 0])), None);
        assert_eq!((shape.to_host(&host, None), shape.to_device(&host)), (None, None));
        let other = shape.in_order(&[0, 1]).unwrap();
        let device = other.to_device(&host).unwrap();
        assert_eq!(device, [1, 4, 2, 5, 3, 6]);
        assert_eq!(other.to_host(&device, None).unwrap(), host);
        assert_eq!(other.to_host(&device, Some(&[0, 1])), None);
        assert!(other.clone().in_order(&[0]).is_err() && other.in_order(&[0, 2]).is_err());
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        for (element_type, dims) in [(11, &[-1][..]), (11, &[i64::MAX, 2]), (999, &[1])] {
            assert!(Shape::new(sys::PJRT_Buffer_Type(element_type), dims).is_err(), "{element_type} {dims:?}");
        }
        assert_eq!(Shape::new(sys::PJRT_Buffer_Type_F32, &[0, 7]).unwrap().bytes(), 0);
        assert_eq!(Shape::new(sys::PJRT_Buffer_Type_F32, &[]).unwrap().bytes(), 4);
    }
}
