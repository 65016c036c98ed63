//! The formats of numbers that matrices are of.
//!
//! All of them are computed with in double precision: the sums then differ from those of a GPU by less than the order
//! does in which that adds.

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// IEEE's 16 bits.
    Half,
    /// The upper 16 bits of a [`Self::Single`].
    BFloat,
    /// 32 bits.
    Single,
    /// 64 bits.
    Double,
    /// Two [`Self::Single`]: real and imaginary.
    ComplexSingle,
    /// Two [`Self::Double`].
    ComplexDouble,
}

impl Format {
    /// That of a `cudaDataType`.
    pub fn of(kind: u32) -> Option<Self> {
        match kind {
            0 => Some(Self::Single),
            1 => Some(Self::Double),
            2 => Some(Self::Half),
            4 => Some(Self::ComplexSingle),
            5 => Some(Self::ComplexDouble),
            14 => Some(Self::BFloat),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Half | Self::BFloat => 2,
            Self::Single => 4,
            Self::Double | Self::ComplexSingle => 8,
            Self::ComplexDouble => 16,
        }
    }

    /// Whether a product of such may be of [`Self::Single`].
    pub fn is_half(self) -> bool {
        matches!(self, Self::Half | Self::BFloat)
    }

    /// Whether elements have an imaginary part.
    pub fn is_complex(self) -> bool {
        matches!(self, Self::ComplexSingle | Self::ComplexDouble)
    }

    /// An element, real and imaginary. What is missing in `bytes` is zero.
    fn read(self, bytes: &[u8]) -> [f64; 2] {
        let mut raw = [0; 16];
        raw.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let [a, b, c, d, e, f, g, h, ..] = raw;
        let single = |bytes| f64::from(f32::from_le_bytes(bytes));
        match self {
            Self::Half => [f64::from(from_half(u16::from_le_bytes([a, b]))), 0.0],
            Self::BFloat => [single([0, 0, a, b]), 0.0],
            Self::Single => [single([a, b, c, d]), 0.0],
            Self::Double => [f64::from_le_bytes([a, b, c, d, e, f, g, h]), 0.0],
            Self::ComplexSingle => [single([a, b, c, d]), single([e, f, g, h])],
            Self::ComplexDouble => {
                let [.., i, j, k, l, m, n, o, p] = raw;
                [f64::from_le_bytes([a, b, c, d, e, f, g, h]), f64::from_le_bytes([i, j, k, l, m, n, o, p])]
            }
        }
    }

    fn write(self, [real, imaginary]: [f64; 2], out: &mut Vec<u8>) {
        match self {
            Self::Half => out.extend(to_half(real as f32).to_le_bytes()),
            Self::BFloat => out.extend(to_bfloat(real as f32).to_le_bytes()),
            Self::Single => out.extend((real as f32).to_le_bytes()),
            Self::Double => out.extend(real.to_le_bytes()),
            Self::ComplexSingle => {
                out.extend((real as f32).to_le_bytes());
                out.extend((imaginary as f32).to_le_bytes());
            }
            Self::ComplexDouble => {
                out.extend(real.to_le_bytes());
                out.extend(imaginary.to_le_bytes());
            }
        }
    }
}

/// What is computed with: a real or a complex number.
pub trait Number: Copy {
    /// Nothing.
    const ZERO: Self;

    /// Of a real and an imaginary part.
    fn new(parts: [f64; 2]) -> Self;

    /// Its parts.
    fn parts(self) -> [f64; 2];

    /// `self + a * b`.
    fn plus_product(self, a: Self, b: Self) -> Self;

    /// Of an element's bytes.
    fn read(format: Format, bytes: &[u8]) -> Self {
        Self::new(format.read(bytes))
    }

    /// Adds its bytes.
    fn write(self, format: Format, out: &mut Vec<u8>) {
        format.write(self.parts(), out);
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;

    fn new([real, _]: [f64; 2]) -> Self {
        real
    }

    fn parts(self) -> [f64; 2] {
        [self, 0.0]
    }

    fn plus_product(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl Number for [f64; 2] {
    const ZERO: Self = [0.0; 2];

    fn new(parts: [f64; 2]) -> Self {
        parts
    }

    fn parts(self) -> [f64; 2] {
        self
    }

    fn plus_product(self, [a, b]: Self, [c, d]: Self) -> Self {
        let [real, imaginary] = self;
        [real + (a * c - b * d), imaginary + (a * d + b * c)]
    }
}

/// A number of 16 bits: a sign, 5 bits of the exponent, which is 15 too large, and 10 of the fraction.
fn from_half(half: u16) -> f32 {
    let (negative, exponent, fraction) = (half >> 15 == 1, half >> 10 & 31, half & 0x3ff);
    let size = match exponent {
        0 => f32::from(fraction) * 2f32.powi(-24),
        31 if fraction == 0 => f32::INFINITY,
        31 => f32::NAN,
        _ => f32::from(0x400 | fraction) * 2f32.powi(i32::from(exponent) - 25),
    };
    if negative { -size } else { size }
}

/// The nearest one, of two that are as near the even one.
fn to_half(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 16) as u16) & 0x8000;
    let size = value.abs();
    // Halfway between the largest number and the one that would come next.
    const INFINITE: f32 = 65520.0;
    let half = if size.is_nan() {
        0x7e00
    } else if size >= INFINITE {
        0x7c00
    } else if size < 2f32.powi(-14) {
        (size * 2f32.powi(24)).round_ties_even() as u16
    } else {
        let bits = size.to_bits();
        let rounded = (bits + 0xfff + (bits >> 13 & 1)) >> 13;
        // The exponent is 127 too large before, and 15 after.
        (rounded - (112 << 10)) as u16
    };
    sign | half
}

/// As [`to_half`].
fn to_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_the_same_after_a_way_through_a_single() {
        for half in 0..=u16::MAX {
            let single = from_half(half);
            if single.is_nan() {
                assert!(from_half(to_half(single)).is_nan());
            } else {
                assert_eq!(to_half(single), half, "{single}");
            }
        }
    }

    #[test]
    fn what_lies_between_is_rounded_to_the_nearest_or_to_the_even_one() {
        let ulp = 2f32.powi(-10);
        let halves = [(1.0 + ulp / 2.0, 1.0), (1.0 + ulp * 1.5, 1.0 + 2.0 * ulp), (1.0 + ulp * 0.51, 1.0 + ulp)];
        for (value, rounded) in halves {
            assert_eq!(from_half(to_half(value)), rounded, "{value}");
        }
        assert_eq!((to_half(65519.9), to_half(65520.0), to_half(-1e9)), (0x7bff, 0x7c00, 0xfc00));
        assert_eq!(
            (to_half(2f32.powi(-25)), to_half(2f32.powi(-24) * 1.5), to_half(2f32.powi(-14) * 0.9999)),
            (0, 2, 0x400)
        );
        assert_eq!(
            (to_bfloat(1.0), to_bfloat(1.0 + 2f32.powi(-8)), to_bfloat(1.0 + 2f32.powi(-7) * 1.5)),
            (0x3f80, 0x3f80, 0x3f82)
        );
        assert!(f32::from_bits(u32::from(to_bfloat(f32::NAN)) << 16).is_nan());
    }
}
