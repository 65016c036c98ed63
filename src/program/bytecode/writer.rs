//! Writes the primitives in their shortest form, as MLIR does.

use crate::program::reject::Reject;

/// Appends a prefix varint: n bytes hold 7n bits, and past 56 bits a zero byte goes before the plain value.
pub(in crate::program) fn put_varint(out: &mut Vec<u8>, value: u64) {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    let bytes = bits.div_ceil(7);
    if bytes > 8 {
        out.push(0);
        out.extend(value.to_le_bytes());
    } else {
        let word = ((value << 1) | 1) << (bytes - 1);
        out.extend(&word.to_le_bytes()[..bytes]);
    }
}

/// Appends a zigzag varint.
pub(in crate::program) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Appends a count and then that many varints.
pub(in crate::program) fn put_list(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>) {
    put_varint(out, values.len() as u64);
    for value in values {
        put_varint(out, value);
    }
}

/// Appends a section.
pub(in crate::program) fn put_section(out: &mut Vec<u8>, id: u8, payload: &[u8]) {
    out.push(id);
    put_varint(out, payload.len() as u64);
    out.extend(payload);
}

/// The bytes that consist of these varints.
pub(in crate::program) fn varints<const N: usize>(values: [u64; N]) -> Vec<u8> {
    let mut out = Vec::with_capacity(N * 2);
    for value in values {
        put_varint(&mut out, value);
    }
    out
}

/// `a + b` for counts and ids, which a hostile file can place next to the end of the range.
pub(in crate::program) fn sum(a: u64, b: u64) -> Result<u64, Reject> {
    a.checked_add(b).ok_or(Reject::found("a number is too large to grow", a))
}

/// `value * 2 + flag`, the varint with a flag in its lowest bit.
pub(in crate::program) fn flagged(value: u64, flag: bool) -> Result<u64, Reject> {
    match value.checked_mul(2) {
        Some(double) => Ok(double | u64::from(flag)),
        None => Err(Reject::found("a number is too large to carry a flag", value)),
    }
}
