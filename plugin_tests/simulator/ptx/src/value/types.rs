//! The types that qualifiers name: `.b32`, `.s16`, `.bf16x2`.

/// A type; integers and bits with their size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// One bit, in registers of its own.
    Predicate,
    /// Bits that have no meaning yet.
    Bits(u8),
    /// Without a sign.
    Unsigned(u8),
    /// In two's complement.
    Signed(u8),
    /// Half precision.
    F16,
    /// Two of half precision.
    F16x2,
    /// The upper half of single precision.
    Bf16,
    /// Two of those.
    Bf16x2,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Type {
    /// The type that a qualifier names, without its dot.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "pred" => Self::Predicate,
            "b8" => Self::Bits(1),
            "b16" => Self::Bits(2),
            "b32" => Self::Bits(4),
            "b64" => Self::Bits(8),
            "u8" => Self::Unsigned(1),
            "u16" => Self::Unsigned(2),
            "u32" => Self::Unsigned(4),
            "u64" => Self::Unsigned(8),
            "s8" => Self::Signed(1),
            "s16" => Self::Signed(2),
            "s32" => Self::Signed(4),
            "s64" => Self::Signed(8),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Its size; a predicate's is that of the byte that it would take.
    pub fn bytes(self) -> u8 {
        match self {
            Self::Predicate => 1,
            Self::Bits(bytes) | Self::Unsigned(bytes) | Self::Signed(bytes) => bytes,
            Self::F16 | Self::Bf16 => 2,
            Self::F16x2 | Self::Bf16x2 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Whether it counts in whole numbers.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Bits(_) | Self::Unsigned(_) | Self::Signed(_))
    }
}

/// The bits that a value of some bytes has.
pub fn mask(bytes: u8) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * u32::from(bytes))) - 1 }
}

/// Extends the sign of a value of some bytes to 64 bits.
pub fn extend(bits: u64, bytes: u8) -> u64 {
    let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
    ((bits << unused) as i64 >> unused) as u64
}
