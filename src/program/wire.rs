//! Protocol buffers at the level of the wire: fields in their order, each with the bytes it came in.
//!
//! A message that travels through here must keep every field that a newer XLA may have added. Generated code that drops
//! what it does not know (prost) therefore cannot be used, and one that keeps it would bring schemas of hundreds of
//! fields to change three; so the few edits are made on the wire format itself.

use crate::program::reject::Reject;

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field<'a> {
    pub(super) number: u32,
    pub(super) value: Value<'a>,
    /// Tag and value as they stand.
    pub(super) raw: &'a [u8],
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64,
    /// A string, bytes, a message or packed scalars.
    Bytes(&'a [u8]),
    Fixed32,
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// The fields of a message, in order. Groups, which XLA does not use, are refused.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// Iterates over the fields of `message`; the first malformed one ends the iteration with an error.
pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Fields<'a> {
    fn next_field(&mut self) -> Result<Field<'a>, Reject> {
        const END: Reject = Reject::new("a protocol buffer ends too early");
        let start = self.rest;
        let tag = varint(&mut self.rest)?;
        let number = match u32::try_from(tag >> 3) {
            Ok(number @ 1..) => number,
            _ => return Err(Reject::found("protocol buffer field number", tag >> 3)),
        };
        let value = match tag & 7 {
            VARINT => Value::Varint(varint(&mut self.rest)?),
            FIXED64 => {
                self.rest = self.rest.get(8..).ok_or(END)?;
                Value::Fixed64
            }
            BYTES => {
                let length = usize::try_from(varint(&mut self.rest)?).map_err(|_| END)?;
                let (payload, rest) = self.rest.split_at_checked(length).ok_or(END)?;
                self.rest = rest;
                Value::Bytes(payload)
            }
            FIXED32 => {
                self.rest = self.rest.get(4..).ok_or(END)?;
                Value::Fixed32
            }
            other => return Err(Reject::found("protocol buffer wire type", other)),
        };
        Ok(Field { number, value, raw: &start[..start.len() - self.rest.len()] })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Reject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.next_field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Field<'a> {
    /// The payload of a string, bytes, message or packed field.
    pub(super) fn bytes(&self) -> Result<&'a [u8], Reject> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Reject::found("a field that should have a length has none", u64::from(self.number))),
        }
    }

    /// The value of a singular integer or bool.
    pub(super) fn integer(&self) -> Result<u64, Reject> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(Reject::found("a field that should be an integer is not", u64::from(self.number))),
        }
    }

    /// Adds the values of a repeated integer or bool, packed or not, to `list`.
    pub(super) fn integers(&self, list: &mut Vec<u64>) -> Result<(), Reject> {
        match self.value {
            Value::Varint(value) => list.push(value),
            Value::Bytes(mut packed) => {
                while !packed.is_empty() {
                    list.push(varint(&mut packed)?);
                }
            }
            _ => return Err(Reject::found("a field that should hold integers does not", u64::from(self.number))),
        }
        Ok(())
    }
}

/// Reads a base-128 varint from the front of `rest`.
fn varint(rest: &mut &[u8]) -> Result<u64, Reject> {
    let mut value = 0;
    for (at, &byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *rest = &rest[at + 1..];
            return Ok(value);
        }
    }
    Err(Reject::new("a protocol buffer varint does not end"))
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field with a length.
pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, payload: &[u8]) {
    put_varint(out, u64::from(number) << 3 | BYTES);
    put_varint(out, payload.len() as u64);
    out.extend(payload);
}

/// Appends an integer or bool, 0 too: where presence means something.
pub(super) fn put_integer(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3 | VARINT);
    put_varint(out, value);
}

/// Appends a repeated integer or bool, packed; nothing where the list is empty.
pub(super) fn put_packed(out: &mut Vec<u8>, number: u32, values: &[u64]) {
    if values.is_empty() {
        return;
    }
    let mut payload = Vec::with_capacity(values.len());
    for &value in values {
        put_varint(&mut payload, value);
    }
    put_bytes(out, number, &payload);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A message with one integer field.
    pub(in crate::program) fn integer(number: u32, value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, u64::from(number) << 3 | VARINT);
        put_varint(&mut out, value);
        out
    }

    /// A message with one field that has a length.
    pub(in crate::program) fn bytes(number: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, number, payload);
        out
    }

    #[test]
    fn every_wire_type_is_read_and_copied() {
        let message = [
            integer(1, 300),
            vec![0x11, 1, 2, 3, 4, 5, 6, 7, 8],
            bytes(3, b"abc"),
            vec![0x25, 1, 2, 3, 4],
            integer(422, u64::MAX),
        ]
        .concat();
        let read: Vec<Field<'_>> = fields(&message).collect::<Result<_, _>>().unwrap();
        let values: Vec<_> = read.iter().map(|field| (field.number, field.value)).collect();
        assert_eq!(
            values,
            [
                (1, Value::Varint(300)),
                (2, Value::Fixed64),
                (3, Value::Bytes(b"abc")),
                (4, Value::Fixed32),
                (422, Value::Varint(u64::MAX)),
            ]
        );
        let copied: Vec<u8> = read.iter().flat_map(|field| field.raw).copied().collect();
        assert_eq!(copied, message);
    }

    #[test]
    fn malformed_fields_end_the_iteration() {
        for bad in [
            &[0x08][..],                                                            // no value
            &[0x08, 0xff],                                                          // a varint without an end
            &[0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1], // too long a varint
            &[0x0a, 2, 1],                                                          // too short a payload
            &[0x09, 1],                                                             // too short a fixed64
            &[0x0d, 1],                                                             // too short a fixed32
            &[0x0b],                                                                // a group
            &[0x00, 1],                                                             // field number 0
        ] {
            let read: Vec<_> = fields(bad).collect();
            assert!(matches!(read[..], [Err(_)]), "{bad:?}: {read:?}");
        }
    }

    #[test]
    fn repeated_integers_are_read_packed_and_not() {
        let message = [integer(7, 1), bytes(7, &[2, 0xac, 0x02]), integer(7, 3)].concat();
        let mut list = Vec::new();
        for field in fields(&message) {
            field.unwrap().integers(&mut list).unwrap();
        }
        assert_eq!(list, [1, 2, 300, 3]);
        let mut out = Vec::new();
        put_packed(&mut out, 7, &list);
        assert_eq!(out, bytes(7, &[1, 2, 0xac, 0x02, 3]));
    }
}
