//! Arguments become NumPy arrays, NumPy arrays become results.
//!
//! Arguments are copied: the engine reuses their memory when the handler returns, while `jax.device_put` in a
//! callback may keep an alias of the array that the callback got.
//!
//! Two- and four-bit elements are packed in the engine's buffers, lowest bits first, and take a byte each in NumPy's
//! (`ml_dtypes`).

use std::{ffi::c_int, ptr, slice};

use crate::{
    handlers::python::{
        gil::{Gil, Owned, Raised},
        table::Object,
    },
    sys::{self, slice as list},
};

/// Flags of a NumPy array (`ndarraytypes.h`; they have not changed since NumPy 1.0).
mod flag {
    use std::ffi::c_int;
    pub const C_CONTIGUOUS: c_int = 0x0001;
    pub const FORCECAST: c_int = 0x0010;
    pub const ALIGNED: c_int = 0x0100;
    pub const NOTSWAPPED: c_int = 0x0200;
    pub const WRITEABLE: c_int = 0x0400;
}

/// What follows the object's head in an array (`PyArrayObject_fields`, which NumPy's own macros read as well).
#[repr(C)]
struct Fields {
    data: *mut u8,
    rank: c_int,
    dims: *const i64,
    strides: *const i64,
    base: Object,
    dtype: Object,
    flags: c_int,
}

/// Why a value cannot be converted.
pub(super) enum Misfit {
    /// Python raised.
    Raised(Raised),
    /// The element type has no NumPy dtype.
    Unsupported(sys::XLA_FFI_DataType),
    /// A result of another shape: the expected one, and the result's.
    Shape(Vec<i64>, Vec<i64>),
}

impl From<Raised> for Misfit {
    fn from(raised: Raised) -> Self {
        Self::Raised(raised)
    }
}

/// How an element is stored in a buffer of the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Bytes(usize),
    Packed { bits: u32, signed: bool },
}

fn element(data_type: sys::XLA_FFI_DataType) -> Option<Element> {
    Some(match data_type {
        sys::XLA_FFI_DataType_PRED
        | sys::XLA_FFI_DataType_S8
        | sys::XLA_FFI_DataType_U8
        | sys::XLA_FFI_DataType_F8E5M2
        | sys::XLA_FFI_DataType_F8E4M3FN
        | sys::XLA_FFI_DataType_F8E4M3B11FNUZ
        | sys::XLA_FFI_DataType_F8E5M2FNUZ
        | sys::XLA_FFI_DataType_F8E4M3FNUZ
        | sys::XLA_FFI_DataType_F8E4M3
        | sys::XLA_FFI_DataType_F8E3M4
        | sys::XLA_FFI_DataType_F8E8M0FNU => Element::Bytes(1),
        sys::XLA_FFI_DataType_S16
        | sys::XLA_FFI_DataType_U16
        | sys::XLA_FFI_DataType_F16
        | sys::XLA_FFI_DataType_BF16 => Element::Bytes(2),
        sys::XLA_FFI_DataType_S32 | sys::XLA_FFI_DataType_U32 | sys::XLA_FFI_DataType_F32 => Element::Bytes(4),
        sys::XLA_FFI_DataType_S64
        | sys::XLA_FFI_DataType_U64
        | sys::XLA_FFI_DataType_F64
        | sys::XLA_FFI_DataType_C64 => Element::Bytes(8),
        sys::XLA_FFI_DataType_C128 => Element::Bytes(16),
        sys::XLA_FFI_DataType_S2 => Element::Packed { bits: 2, signed: true },
        sys::XLA_FFI_DataType_U2 => Element::Packed { bits: 2, signed: false },
        sys::XLA_FFI_DataType_S4 => Element::Packed { bits: 4, signed: true },
        sys::XLA_FFI_DataType_U4 | sys::XLA_FFI_DataType_F4E2M1FN => Element::Packed { bits: 4, signed: false },
        _ => return None,
    })
}

/// One byte for each packed element.
fn unpack(packed: &[u8], bits: u32, signed: bool, out: &mut [u8]) {
    let in_byte = (u8::BITS / bits) as usize;
    let unused = u8::BITS - bits;
    for (elements, &byte) in out.chunks_mut(in_byte).zip(packed) {
        for (at, element) in elements.iter_mut().enumerate() {
            // The element moves to the top of its byte and back, which brings its sign along.
            let high = byte >> (at as u32 * bits) << unused;
            *element = if signed { (high.cast_signed() >> unused).cast_unsigned() } else { high >> unused };
        }
    }
}

/// The inverse of [`unpack`].
fn pack(elements: &[u8], bits: u32, packed: &mut [u8]) {
    let in_byte = (u8::BITS / bits) as usize;
    let mask = u8::MAX >> (u8::BITS - bits);
    for (elements, byte) in elements.chunks(in_byte).zip(packed) {
        *byte =
            elements.iter().enumerate().fold(0, |byte, (at, element)| byte | (element & mask) << (at as u32 * bits));
    }
}

/// What is known about a buffer of the frame.
struct Described<'a> {
    dims: &'a [i64],
    count: usize,
    element: Element,
    dtype: Object,
}

impl<'a> Described<'a> {
    /// # Safety
    /// The buffer must be as the engine's frames have them.
    unsafe fn new(gil: &Gil, buffer: &'a sys::XLA_FFI_Buffer) -> Result<Self, Misfit> {
        let unsupported = Misfit::Unsupported(buffer.dtype);
        let dtype = gil.python().dtypes.get(buffer.dtype.0 as usize).copied().unwrap_or(ptr::null_mut());
        let Some(element) = element(buffer.dtype).filter(|_| !dtype.is_null()) else { return Err(unsupported) };
        // SAFETY: the buffer is of the engine's frame, so it has as many dimensions as it says, as this function
        // asks.
        let dims = unsafe { list(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)) };
        let count = dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(0)).product();
        Ok(Self { dims, count, element, dtype })
    }

    /// Bytes that the elements take in the engine's buffer.
    fn bytes(&self) -> usize {
        match self.element {
            Element::Bytes(size) => self.count * size,
            Element::Packed { bits, .. } => self.count.div_ceil((u8::BITS / bits) as usize),
        }
    }

    /// An array of this shape: of its own memory, or over `data`.
    fn array<'g>(&self, gil: &'g Gil, data: *mut std::ffi::c_void) -> Result<Owned<'g>, Raised> {
        let python = gil.python();
        let flags = if data.is_null() { 0 } else { flag::C_CONTIGUOUS | flag::ALIGNED | flag::WRITEABLE };
        // SAFETY: the GIL is held; the dtype lives for ever, and the function takes over one reference to it; NumPy
        // copies the dimensions, whose number is `rank`; `data` is NULL, or memory of this shape that outlives the
        // array.
        unsafe {
            let dtype = gil.share(self.dtype).into_object();
            gil.own((python.array_new)(
                python.array_type,
                dtype,
                self.dims.len() as c_int,
                self.dims.as_ptr(),
                ptr::null(),
                data,
                flags,
                ptr::null_mut(),
            ))
        }
    }
}

/// # Safety
/// `array` must be a NumPy array.
unsafe fn fields(gil: &Gil, array: Object) -> *mut Fields {
    // SAFETY: an array is longer than an object's head, as this function asks for one.
    unsafe { array.byte_add(gil.python().object_size).cast() }
}

/// An argument as an array of its own memory, read-only; a token is `None`.
///
/// # Errors
/// [`Misfit`].
///
/// # Safety
/// The buffer must be one of a frame whose handler has not returned.
pub(super) unsafe fn argument<'g>(gil: &'g Gil, buffer: &sys::XLA_FFI_Buffer) -> Result<Owned<'g>, Misfit> {
    if buffer.dtype == sys::XLA_FFI_DataType_TOKEN {
        // SAFETY: `None` lives for ever, and the GIL is held.
        return Ok(unsafe { gil.share(gil.python().none) });
    }
    // SAFETY: the buffer is of a frame whose handler has not returned, as this function asks.
    let described = unsafe { Described::new(gil, buffer)? };
    let array = described.array(gil, ptr::null_mut())?;
    // SAFETY: the array was just made, and nothing else refers to it. Its memory is as large as the shape says, the
    // engine's buffer as well, and they do not overlap.
    unsafe {
        let fields = fields(gil, array.object());
        if described.count > 0 {
            let (from, to) = (buffer.data.cast::<u8>(), (*fields).data);
            match described.element {
                Element::Bytes(_) => ptr::copy_nonoverlapping(from, to, described.bytes()),
                Element::Packed { bits, signed } => unpack(
                    slice::from_raw_parts(from, described.bytes()),
                    bits,
                    signed,
                    slice::from_raw_parts_mut(to, described.count),
                ),
            }
        }
        (*fields).flags &= !flag::WRITEABLE;
    }
    Ok(array)
}

/// Copies a value that a callback returned into a result; for a token there is nothing to copy.
///
/// # Errors
/// [`Misfit`].
///
/// # Safety
/// The buffer must be one of a frame whose handler has not returned, `value` alive.
pub(super) unsafe fn result(gil: &Gil, buffer: &sys::XLA_FFI_Buffer, value: Object) -> Result<(), Misfit> {
    if buffer.dtype == sys::XLA_FFI_DataType_TOKEN {
        return Ok(());
    }
    // SAFETY: the buffer is of a frame whose handler has not returned, as this function asks.
    let described = unsafe { Described::new(gil, buffer)? };
    let python = gil.python();
    let packed = matches!(described.element, Element::Packed { .. });
    // Packed elements are read in order; NumPy may read any others along their strides while it copies.
    let in_order = if packed { flag::C_CONTIGUOUS } else { 0 };
    let wanted = flag::ALIGNED | flag::NOTSWAPPED | flag::FORCECAST | in_order;
    // SAFETY: the GIL is held; the value is alive, and the function takes over one reference to the dtype.
    let array = unsafe {
        let dtype = gil.share(described.dtype).into_object();
        gil.own((python.array_from)(value, dtype, 0, 0, wanted, ptr::null_mut()))?
    };
    // SAFETY: the object is a NumPy array, which has as many dimensions as its rank says.
    let (fields, dims) = unsafe {
        let fields = fields(gil, array.object());
        (fields, list((*fields).dims, usize::try_from((*fields).rank).unwrap_or(0)))
    };
    if dims != described.dims {
        return Err(Misfit::Shape(described.dims.to_vec(), dims.to_vec()));
    }
    if described.count == 0 {
        return Ok(());
    }
    // SAFETY: the array's memory and the engine's buffer are as large as the shape says, and do not overlap.
    unsafe {
        let (from, to) = ((*fields).data, buffer.data.cast::<u8>());
        match described.element {
            Element::Packed { bits, .. } => pack(
                slice::from_raw_parts(from, described.count),
                bits,
                slice::from_raw_parts_mut(to, described.bytes()),
            ),
            Element::Bytes(_) if (*fields).flags & flag::C_CONTIGUOUS != 0 => {
                ptr::copy_nonoverlapping(from, to, described.bytes());
            }
            Element::Bytes(_) => {
                let target = described.array(gil, buffer.data)?;
                if (python.array_copy)(target.object(), array.object()) != 0 {
                    return Err(gil.raised().into());
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_elements_come_back_with_their_signs() {
        for (bits, signed, values) in [
            (4, true, vec![-8_i8, 7, -1, 0, 3]),
            (4, false, vec![0, 15, 8, 1, 7]),
            (2, true, vec![-2, -1, 0, 1, 1, -2, 0]),
            (2, false, vec![3, 2, 1, 0, 3]),
        ] {
            let elements: Vec<u8> = values.iter().map(|value| value.cast_unsigned()).collect();
            let mut packed = vec![0xff; elements.len().div_ceil((u8::BITS / bits) as usize)];
            pack(&elements, bits, &mut packed);
            let mut back = vec![0xff; elements.len()];
            unpack(&packed, bits, signed, &mut back);
            assert_eq!(back, elements, "{bits} bits, signed: {signed}");
        }
    }

    #[test]
    fn the_first_element_has_the_lowest_bits() {
        let mut packed = [0; 2];
        pack(&[0x1, 0x2, 0x3], 4, &mut packed);
        assert_eq!(packed, [0x21, 0x03]);
        let mut packed = [0; 2];
        pack(&[0, 1, 2, 3, 1], 2, &mut packed);
        assert_eq!(packed, [0b11_10_01_00, 0b01]);
    }
}
