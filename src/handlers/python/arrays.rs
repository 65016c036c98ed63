//! Arguments become NumPy arrays, NumPy arrays become results.
//!
//! Arguments are copied: the engine reuses their memory when the handler returns, while `jax.device_put` in a
//! callback may keep an alias of the array that the callback got.
//!
//! Two- and four-bit elements are packed in the engine's buffers, lowest bits first, and take a byte each in NumPy's
//! (`ml_dtypes`).

use std::mem::MaybeUninit;

use crate::{
    handlers::python::{
        frame::{Argument, ResultBuffer},
        gil::{Gil, Owned, Raised},
        numpy::{Array, Dtype, Element},
        table::Borrowed,
    },
    sys,
};

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

/// One byte for each packed element.
fn unpack(packed: &[u8], bits: u32, signed: bool, out: &mut [MaybeUninit<u8>]) {
    let in_byte = (u8::BITS / bits) as usize;
    let unused = u8::BITS - bits;
    for (elements, &byte) in out.chunks_mut(in_byte).zip(packed) {
        for (at, element) in elements.iter_mut().enumerate() {
            // The element moves to the top of its byte and back, which brings its sign along.
            let high = byte >> (at as u32 * bits) << unused;
            element.write(if signed { (high.cast_signed() >> unused).cast_unsigned() } else { high >> unused });
        }
    }
}

/// The inverse of [`unpack`].
fn pack(elements: &[u8], bits: u32, packed: &mut [MaybeUninit<u8>]) {
    let in_byte = (u8::BITS / bits) as usize;
    let mask = u8::MAX >> (u8::BITS - bits);
    for (elements, byte) in elements.chunks(in_byte).zip(packed) {
        let joined = |byte, (at, element): (usize, &u8)| byte | (element & mask) << (at as u32 * bits);
        byte.write(elements.iter().enumerate().fold(0, joined));
    }
}

/// An argument as an array of its own memory, read-only; a token is `None`.
///
/// # Errors
/// [`Misfit`].
pub(super) fn argument<'g>(gil: &'g Gil, argument: Argument<'_>) -> Result<Owned<'g>, Misfit> {
    let data_type = argument.data_type();
    if data_type == sys::XLA_FFI_DataType_TOKEN {
        return Ok(gil.share(gil.python().none));
    }
    let dtype = Dtype::of(gil, data_type).ok_or(Misfit::Unsupported(data_type))?;
    let from = argument.contents();
    Ok(Array::filled(gil, dtype, argument.dims(), |to| match dtype.element() {
        Element::Bytes(_) => _ = to.write_copy_of_slice(from),
        Element::Packed { bits, signed } => unpack(from, bits, signed, to),
    })?)
}

/// Copies a value that a callback returned into a result; for a token there is nothing to copy.
///
/// # Errors
/// [`Misfit`].
pub(super) fn result(gil: &Gil, result: &mut ResultBuffer<'_>, value: Borrowed<'_>) -> Result<(), Misfit> {
    let data_type = result.data_type();
    if data_type == sys::XLA_FFI_DataType_TOKEN {
        return Ok(());
    }
    let dtype = Dtype::of(gil, data_type).ok_or(Misfit::Unsupported(data_type))?;
    // Packed elements are read in order; NumPy may read any others along their strides while it copies.
    let packed = matches!(dtype.element(), Element::Packed { .. });
    let array = Array::from(gil, dtype, value, packed)?;
    if array.dims() != result.dims() {
        return Err(Misfit::Shape(result.dims().to_vec(), array.dims().to_vec()));
    }
    match (dtype.element(), array.contents()) {
        (Element::Packed { bits, .. }, Some(elements)) => pack(elements, bits, result.contents()),
        _ => array.copy_to(result.contents())?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `write` makes of so many bytes.
    fn written(bytes: usize, write: impl FnOnce(&mut [MaybeUninit<u8>])) -> Vec<u8> {
        let mut out = vec![MaybeUninit::new(0xff); bytes];
        write(&mut out);
        // SAFETY: all of them have been written at least once.
        out.into_iter().map(|byte| unsafe { byte.assume_init() }).collect()
    }

    #[test]
    fn packed_elements_come_back_with_their_signs() {
        for (bits, signed, values) in [
            (4, true, vec![-8_i8, 7, -1, 0, 3]),
            (4, false, vec![0, 15, 8, 1, 7]),
            (2, true, vec![-2, -1, 0, 1, 1, -2, 0]),
            (2, false, vec![3, 2, 1, 0, 3]),
        ] {
            let elements: Vec<u8> = values.iter().map(|value| value.cast_unsigned()).collect();
            let packed =
                written(Element::Packed { bits, signed }.bytes(elements.len()), |out| pack(&elements, bits, out));
            let back = written(elements.len(), |out| unpack(&packed, bits, signed, out));
            assert_eq!(back, elements, "{bits} bits, signed: {signed}");
        }
    }

    #[test]
    fn the_first_element_has_the_lowest_bits() {
        assert_eq!(written(2, |packed| pack(&[0x1, 0x2, 0x3], 4, packed)), [0x21, 0x03]);
        assert_eq!(written(2, |packed| pack(&[0, 1, 2, 3, 1], 2, packed)), [0b11_10_01_00, 0b01]);
    }
}
