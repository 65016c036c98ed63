//! The attributes and types that destination passing looks into: VHLO's, and a few of the builtin dialect.
//!
//! Codes are those of StableHLO's `dialect/VhloBytecode.cpp` and MLIR's `IR/BuiltinDialectBytecode.td`; they have not
//! changed since VHLO 0.9. Anything else stays opaque: it is carried along by its index.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::program::{
    bytecode::{
        ids::{AttrId, StringId, TypeId},
        reader::Cursor,
        tables::{Entry, Tables},
    },
    reject::Reject,
};

pub(super) const VHLO: &[u8] = b"vhlo";
pub(super) const BUILTIN: &[u8] = b"builtin";

/// Codes of VHLO attributes.
pub(super) mod attribute_code {
    pub(in crate::program) const ARRAY: u64 = 1;
    pub(in crate::program) const BOOLEAN: u64 = 2;
    pub(in crate::program) const DICTIONARY: u64 = 6;
    pub(in crate::program) const INTEGER: u64 = 9;
    pub(in crate::program) const STRING: u64 = 14;
    pub(in crate::program) const TENSOR: u64 = 15;
    pub(in crate::program) const TYPE: u64 = 17;
}

/// Codes of VHLO types.
pub(super) mod type_code {
    pub(in crate::program) const COMPLEX: u64 = 1;
    pub(in crate::program) const FUNCTION: u64 = 8;
    pub(in crate::program) const SI32: u64 = 13;
    pub(in crate::program) const SI64: u64 = 14;
    pub(in crate::program) const RANKED_TENSOR: u64 = 20;
    pub(in crate::program) const TOKEN: u64 = 22;
}

/// Codes of builtin attributes and types.
pub(super) mod builtin_code {
    pub(in crate::program) const DICTIONARY: u64 = 1;
    pub(in crate::program) const STRING: u64 = 2;
    pub(in crate::program) const INTEGER: u64 = 8;
    pub(in crate::program) const INTEGER_TYPE: u64 = 0;
    pub(in crate::program) const COMPLEX_TYPE: u64 = 9;
    pub(in crate::program) const RANKED_TENSOR_TYPE: u64 = 13;
}

/// Tensors of higher rank count as [`ValueType::Other`].
const HIGHEST_RANK: usize = 256;

/// Declares the element types with their VHLO code, width in bits and name.
macro_rules! element_types {
    ($($name:ident $code:literal $bits:literal $text:literal)*) => {
        /// The element types a result of a program can have, as XLA calls them. `si` in VHLO is the signless `iN`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum ElementType { $($name,)* C64, C128 }

        impl ElementType {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)* Self::C64, Self::C128];

            fn from_code(code: u64) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }

            /// Bits an element takes when packed.
            pub const fn bits(self) -> u32 {
                match self { $(Self::$name => $bits,)* Self::C64 => 64, Self::C128 => 128 }
            }

            /// XLA's name, such as `bf16`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* Self::C64 => "c64", Self::C128 => "c128" }
            }
        }
    };
}

element_types! {
    Pred 0 8 "pred"
    Bf16 2 16 "bf16"
    F16 3 16 "f16"
    F32 4 32 "f32"
    F64 5 64 "f64"
    F8E4m3fn 6 8 "f8e4m3fn"
    F8E5m2 7 8 "f8e5m2"
    S4 10 4 "s4"
    S8 11 8 "s8"
    S16 12 16 "s16"
    S32 13 32 "s32"
    S64 14 64 "s64"
    U4 15 4 "u4"
    U8 16 8 "u8"
    U16 17 16 "u16"
    U32 18 32 "u32"
    U64 19 64 "u64"
    F8E4m3fnuz 27 8 "f8e4m3fnuz"
    F8E5m2fnuz 28 8 "f8e5m2fnuz"
    F8E4m3b11fnuz 29 8 "f8e4m3b11fnuz"
    S2 31 2 "s2"
    U2 32 2 "u2"
    F8E4m3 35 8 "f8e4m3"
    F8E3m4 36 8 "f8e3m4"
    F4E2m1fn 37 4 "f4e2m1fn"
    F6E2m3fn 38 6 "f6e2m3fn"
    F6E3m2fn 39 6 "f6e3m2fn"
    F8E8m0fnu 40 8 "f8e8m0fnu"
}

impl ElementType {
    /// Whether XLA packs several elements into a byte. (Six-bit floats take a byte each.)
    pub const fn is_sub_byte(self) -> bool {
        self.bits() <= 4
    }

    /// The words of the builtin type's encoding, where it has one; complex types and eight-bit floats have none here.
    pub(super) const fn builtin_words(self) -> Option<(u64, Option<u64>)> {
        const SIGNLESS: u64 = 0;
        const UNSIGNED: u64 = 2;
        match self {
            Self::Pred => Some((builtin_code::INTEGER_TYPE, Some(1 << 2))),
            Self::S2 | Self::S4 | Self::S8 | Self::S16 | Self::S32 | Self::S64 => {
                Some((builtin_code::INTEGER_TYPE, Some((self.bits() as u64) << 2 | SIGNLESS)))
            }
            Self::U2 | Self::U4 | Self::U8 | Self::U16 | Self::U32 | Self::U64 => {
                Some((builtin_code::INTEGER_TYPE, Some((self.bits() as u64) << 2 | UNSIGNED)))
            }
            Self::Bf16 => Some((3, None)),
            Self::F16 => Some((4, None)),
            Self::F32 => Some((5, None)),
            Self::F64 => Some((6, None)),
            _ => None,
        }
    }
}

/// The type of a parameter or result, before partitioning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// A ranked tensor without encoding.
    Tensor {
        /// Elements along each dimension; negative where it is known at run time only.
        dimensions: Arc<[i64]>,
        /// `None` for `index`, `tf32`, quantized and unknown types.
        element: Option<ElementType>,
    },
    /// Orders side effects; holds no data.
    Token,
    /// Tuples, unranked tensors and whatever else.
    Other,
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("token"),
            Self::Other => f.write_str("?"),
            Self::Tensor { dimensions, element } => {
                write!(f, "{}[", element.map_or("?", ElementType::name))?;
                for (at, &dimension) in dimensions.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    if dimension < 0 { write!(f, "{comma}?")? } else { write!(f, "{comma}{dimension}")? }
                }
                f.write_str("]")
            }
        }
    }
}

/// A decoded attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Attribute<'a> {
    String(&'a [u8]),
    Array(Vec<AttrId>),
    Dictionary(Vec<(AttrId, AttrId)>),
    Boolean(bool),
    Integer(i64),
    Type(TypeId),
    Opaque,
}

/// Decodes a VHLO attribute. Linear in its size.
pub(super) fn attribute<'a>(tables: &Tables<'a>, id: AttrId) -> Result<Attribute<'a>, Reject> {
    let entry = tables.attribute(id)?;
    if !tables.is_custom(entry, VHLO) {
        return Ok(Attribute::Opaque);
    }
    let mut cursor = Cursor::new(entry.bytes);
    Ok(match cursor.varint()? {
        attribute_code::STRING => Attribute::String(tables.string(StringId(cursor.varint()?))?),
        attribute_code::ARRAY => {
            charge(tables, &cursor)?;
            Attribute::Array(cursor.list(AttrId)?)
        }
        attribute_code::DICTIONARY => Attribute::Dictionary(pairs(tables, &mut cursor)?),
        attribute_code::BOOLEAN => Attribute::Boolean(cursor.varint()? != 0),
        attribute_code::TYPE => Attribute::Type(TypeId(cursor.varint()?)),
        attribute_code::INTEGER => {
            let entry = tables.r#type(TypeId(cursor.varint()?))?;
            let width = vhlo_code(tables, entry)?.and_then(ElementType::from_code).map_or(64, ElementType::bits);
            Attribute::Integer(integer(&mut cursor, width)?)
        }
        _ => Attribute::Opaque,
    })
}

/// Decodes a builtin attribute, of those that operations' dictionaries hold. Linear in its size.
pub(super) fn builtin_attribute<'a>(tables: &Tables<'a>, id: AttrId) -> Result<Attribute<'a>, Reject> {
    let entry = tables.attribute(id)?;
    if !tables.is_custom(entry, BUILTIN) {
        return Ok(Attribute::Opaque);
    }
    let mut cursor = Cursor::new(entry.bytes);
    Ok(match cursor.varint()? {
        builtin_code::DICTIONARY => Attribute::Dictionary(pairs(tables, &mut cursor)?),
        builtin_code::STRING => Attribute::String(tables.string(StringId(cursor.varint()?))?),
        builtin_code::INTEGER => {
            let value_type = tables.r#type(TypeId(cursor.varint()?))?;
            if !tables.is_custom(value_type, BUILTIN) {
                return Ok(Attribute::Opaque);
            }
            let mut words = Cursor::new(value_type.bytes);
            if words.varint()? != builtin_code::INTEGER_TYPE {
                return Ok(Attribute::Opaque);
            }
            match u32::try_from(words.varint()? >> 2) {
                Ok(width @ ..=64) => Attribute::Integer(integer(&mut cursor, width)?),
                _ => Attribute::Opaque,
            }
        }
        _ => Attribute::Opaque,
    })
}

/// Charges the decoding of what is left of an entry: others may refer to it, too.
fn charge(tables: &Tables<'_>, rest: &Cursor<'_>) -> Result<(), Reject> {
    const REASON: &str = "lists of attributes are decoded too often for a program of this size, bytes for one more";
    tables.budget.spend(rest.left(), size_of::<AttrId>(), REASON)
}

fn pairs(tables: &Tables<'_>, cursor: &mut Cursor<'_>) -> Result<Vec<(AttrId, AttrId)>, Reject> {
    charge(tables, cursor)?;
    let count = cursor.count()?;
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        pairs.push((AttrId(cursor.varint()?), AttrId(cursor.varint()?)));
    }
    Ok(pairs)
}

/// An integer of known width: one raw byte up to 8 bits, else a signed varint of the zero-extended value.
fn integer(cursor: &mut Cursor<'_>, width: u32) -> Result<i64, Reject> {
    let raw = if width <= 8 { i64::from(cursor.byte()?) } else { cursor.signed()? };
    // The sign bit of the width moves to the top and back.
    let unused = 64 - width.clamp(1, 64);
    Ok((raw << unused) >> unused)
}

fn vhlo_code(tables: &Tables<'_>, entry: Entry<'_>) -> Result<Option<u64>, Reject> {
    if !tables.is_custom(entry, VHLO) {
        return Ok(None);
    }
    Cursor::new(entry.bytes).varint().map(Some)
}

/// Decodes the type of a value. O(rank), and the rank is bounded. [`Types`] does so once for each type.
fn value_type(tables: &Tables<'_>, id: TypeId) -> Result<ValueType, Reject> {
    let entry = tables.r#type(id)?;
    if !tables.is_custom(entry, VHLO) {
        return Ok(ValueType::Other);
    }
    let mut cursor = Cursor::new(entry.bytes);
    match cursor.varint()? {
        type_code::TOKEN => Ok(ValueType::Token),
        type_code::RANKED_TENSOR => {
            let rank = cursor.count()?;
            if rank > HIGHEST_RANK {
                return Ok(ValueType::Other);
            }
            let mut dimensions = Vec::with_capacity(rank);
            for _ in 0..rank {
                dimensions.push(cursor.signed()?);
            }
            let element = element_type(tables, TypeId(cursor.varint()?))?;
            Ok(ValueType::Tensor { dimensions: dimensions.into(), element })
        }
        _ => Ok(ValueType::Other),
    }
}

/// The types of values, each decoded once, however many values have it.
#[derive(Debug, Default)]
pub(super) struct Types(HashMap<TypeId, ValueType>);

impl Types {
    /// As [`value_type`].
    pub(super) fn get(&mut self, tables: &Tables<'_>, id: TypeId) -> Result<ValueType, Reject> {
        if let Some(known) = self.0.get(&id) {
            return Ok(known.clone());
        }
        let decoded = value_type(tables, id)?;
        self.0.insert(id, decoded.clone());
        Ok(decoded)
    }
}

fn element_type(tables: &Tables<'_>, id: TypeId) -> Result<Option<ElementType>, Reject> {
    let entry = tables.r#type(id)?;
    match vhlo_code(tables, entry)? {
        Some(type_code::COMPLEX) => {
            let mut cursor = Cursor::new(entry.bytes);
            cursor.varint()?;
            let part = tables.r#type(TypeId(cursor.varint()?))?;
            Ok(match vhlo_code(tables, part)?.and_then(ElementType::from_code) {
                Some(ElementType::F32) => Some(ElementType::C64),
                Some(ElementType::F64) => Some(ElementType::C128),
                _ => None,
            })
        }
        code => Ok(code.and_then(ElementType::from_code)),
    }
}

/// The parameter and result types of a function type. Linear in their number.
pub(super) fn function_type(tables: &Tables<'_>, id: TypeId) -> Result<(Vec<TypeId>, Vec<TypeId>), Reject> {
    let entry = tables.r#type(id)?;
    let mut cursor = Cursor::new(entry.bytes);
    if !tables.is_custom(entry, VHLO) || cursor.varint()? != type_code::FUNCTION {
        return Err(Reject::new("main's type is not a function type"));
    }
    Ok((cursor.list(TypeId)?, cursor.list(TypeId)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_the_sign_of_their_width() {
        use crate::program::bytecode::writer::put_signed;
        let mut minus_one_i32 = Vec::new();
        put_signed(&mut minus_one_i32, 0xffff_ffff);
        assert_eq!(integer(&mut Cursor::new(&minus_one_i32), 32), Ok(-1));
        assert_eq!(integer(&mut Cursor::new(&[0xfe]), 8), Ok(-2));
        assert_eq!(integer(&mut Cursor::new(&[0x7f]), 8), Ok(127));
    }

    #[test]
    fn types_print_as_xla_prints_them() {
        let matrix = ValueType::Tensor { dimensions: [2, -1].into(), element: Some(ElementType::Bf16) };
        assert_eq!(matrix.to_string(), "bf16[2,?]");
        assert_eq!(ValueType::Tensor { dimensions: [].into(), element: None }.to_string(), "?[]");
    }

    #[test]
    fn only_types_of_four_bits_or_less_are_packed() {
        let packed: Vec<_> = ElementType::ALL.iter().filter(|t| t.is_sub_byte()).map(|t| t.name()).collect();
        assert_eq!(packed, ["s4", "u4", "s2", "u2", "f4e2m1fn"]);
    }
}
