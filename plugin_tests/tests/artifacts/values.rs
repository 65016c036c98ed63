//! Arguments for programs whose meaning is not known here: seeded values that are finite, small, and in range as
//! indices.
//!
//! ```text
//!   pred           0 or 1
//!   integers       0 ... 7, or as far as half of the type's bits reach
//!   floats         sign | one of the four exponents up to that of 1.0 | any mantissa     0.125 <= |x| < 2, one of 8 negative
//!   complex        two floats
//! ```
//!
//! Floats are put together from their fields, so that all the small formats come from one rule, without rounding. Few
//! are negative, because a square root or a logarithm of one gives a NaN, and NaNs hide what went into them.

use fastrand::Rng;
use pjrt_arena::program::ElementType as Artifact;
use plugin_tests::{ElementType, sys};

/// How one element looks in host memory, where types of less than a byte take a byte.
#[derive(Clone, Copy)]
enum Format {
    /// An integer from 0 up to but not including `below`.
    Integer { bytes: usize, below: u64 },
    /// A float with these fields, and the exponent of 1.0.
    Float { sign: u32, exponent: u32, mantissa: u32, bias: u64 },
    /// Real and imaginary part.
    Complex { exponent: u32, mantissa: u32, bias: u64 },
}

/// The element type's number in the ABI and its format.
fn describe(element: Artifact) -> (sys::PJRT_Buffer_Type, Format) {
    const fn integer(bytes: usize, below: u64) -> Format {
        Format::Integer { bytes, below }
    }
    const fn float(exponent: u32, mantissa: u32, bias: u64) -> Format {
        Format::Float { sign: 1, exponent, mantissa, bias }
    }
    match element {
        Artifact::Pred => (sys::PJRT_Buffer_Type_PRED, integer(1, 2)),
        Artifact::S2 => (sys::PJRT_Buffer_Type_S2, integer(1, 2)),
        Artifact::U2 => (sys::PJRT_Buffer_Type_U2, integer(1, 2)),
        Artifact::S4 => (sys::PJRT_Buffer_Type_S4, integer(1, 4)),
        Artifact::U4 => (sys::PJRT_Buffer_Type_U4, integer(1, 4)),
        Artifact::S8 => (sys::PJRT_Buffer_Type_S8, integer(1, 8)),
        Artifact::U8 => (sys::PJRT_Buffer_Type_U8, integer(1, 8)),
        Artifact::S16 => (sys::PJRT_Buffer_Type_S16, integer(2, 8)),
        Artifact::U16 => (sys::PJRT_Buffer_Type_U16, integer(2, 8)),
        Artifact::S32 => (sys::PJRT_Buffer_Type_S32, integer(4, 8)),
        Artifact::U32 => (sys::PJRT_Buffer_Type_U32, integer(4, 8)),
        Artifact::S64 => (sys::PJRT_Buffer_Type_S64, integer(8, 8)),
        Artifact::U64 => (sys::PJRT_Buffer_Type_U64, integer(8, 8)),
        Artifact::F16 => (sys::PJRT_Buffer_Type_F16, float(5, 10, 15)),
        Artifact::Bf16 => (sys::PJRT_Buffer_Type_BF16, float(8, 7, 127)),
        Artifact::F32 => (sys::PJRT_Buffer_Type_F32, float(8, 23, 127)),
        Artifact::F64 => (sys::PJRT_Buffer_Type_F64, float(11, 52, 1023)),
        Artifact::F8E4m3fn => (sys::PJRT_Buffer_Type_F8E4M3FN, float(4, 3, 7)),
        Artifact::F8E5m2 => (sys::PJRT_Buffer_Type_F8E5M2, float(5, 2, 15)),
        Artifact::F8E4m3fnuz => (sys::PJRT_Buffer_Type_F8E4M3FNUZ, float(4, 3, 8)),
        Artifact::F8E5m2fnuz => (sys::PJRT_Buffer_Type_F8E5M2FNUZ, float(5, 2, 16)),
        Artifact::F8E4m3b11fnuz => (sys::PJRT_Buffer_Type_F8E4M3B11FNUZ, float(4, 3, 11)),
        Artifact::F8E4m3 => (sys::PJRT_Buffer_Type_F8E4M3, float(4, 3, 7)),
        Artifact::F8E3m4 => (sys::PJRT_Buffer_Type_F8E3M4, float(3, 4, 3)),
        Artifact::F4E2m1fn => (sys::PJRT_Buffer_Type_F4E2M1FN, float(2, 1, 1)),
        Artifact::F6E2m3fn => (sys::PJRT_Buffer_Type_F6E2M3FN, float(2, 3, 1)),
        Artifact::F6E3m2fn => (sys::PJRT_Buffer_Type_F6E3M2FN, float(3, 2, 3)),
        Artifact::F8E8m0fnu => {
            (sys::PJRT_Buffer_Type_F8E8M0FNU, Format::Float { sign: 0, exponent: 8, mantissa: 0, bias: 127 })
        }
        Artifact::C64 => (sys::PJRT_Buffer_Type_C64, Format::Complex { exponent: 8, mantissa: 23, bias: 127 }),
        Artifact::C128 => (sys::PJRT_Buffer_Type_C128, Format::Complex { exponent: 11, mantissa: 52, bias: 1023 }),
    }
}

/// The number of an element type in the ABI.
pub fn element_type(element: Artifact) -> ElementType {
    ElementType(describe(element).0.0)
}

/// So many elements as they lie in host memory; the same for the same seed.
pub fn array(element: Artifact, elements: i64, seed: u64) -> Vec<u8> {
    let mut random = Rng::with_seed(seed);
    let mut bytes = Vec::new();
    for _ in 0..elements {
        describe(element).1.push(&mut random, &mut bytes);
    }
    bytes
}

impl Format {
    fn push(self, random: &mut Rng, out: &mut Vec<u8>) {
        match self {
            Self::Integer { bytes, below } => out.extend(&random.u64(0..below).to_le_bytes()[..bytes]),
            Self::Float { sign, exponent, mantissa, bias } => {
                let negative = u64::from(sign == 1 && random.u64(0..8) == 0);
                let bits = negative << (exponent + mantissa)
                    | random.u64(bias.saturating_sub(3)..=bias) << mantissa
                    | random.u64(0..1 << mantissa);
                let bytes = (sign + exponent + mantissa).div_ceil(8) as usize;
                out.extend(&bits.to_le_bytes()[..bytes]);
            }
            Self::Complex { exponent, mantissa, bias } => {
                for _ in 0..2 {
                    Self::Float { sign: 1, exponent, mantissa, bias }.push(random, out);
                }
            }
        }
    }
}
