//! Types of elements, and reductions of them.
//!
//! One rank after another is folded in, in their order, and what is no `f32`, `f64` or integer is rounded each time, as
//! by NCCL's rings. So sums are the same on all ranks and in each run; NCCL's may differ in the last bits.

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Type {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

/// All types, by NCCL's number.
const TYPES: [Type; 12] = [
    Type::Int8,
    Type::Uint8,
    Type::Int32,
    Type::Uint32,
    Type::Int64,
    Type::Uint64,
    Type::Float16,
    Type::Float32,
    Type::Float64,
    Type::Bfloat16,
    Type::Float8e4m3,
    Type::Float8e5m2,
];

impl Type {
    /// That of NCCL's number.
    pub fn numbered(number: u32) -> Option<Self> {
        TYPES.get(usize::try_from(number).ok()?).copied()
    }

    /// The size of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }
}

/// How elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    Product,
    Max,
    Min,
    Average,
}

impl Reduction {
    /// That of NCCL's number.
    pub fn numbered(number: u32) -> Option<Self> {
        let all = [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Average];
        all.get(usize::try_from(number).ok()?).copied()
    }
}

/// What reductions need of a number.
trait Number: Copy {
    fn combine(self, other: Self, reduction: Reduction) -> Self;
    fn divide(self, count: usize) -> Self;
}

macro_rules! numbers {
    ($($type:ty, $add:ident, $multiply:ident, |$value:ident, $count:ident| $divide:expr;)*) => {$(
        impl Number for $type {
            fn combine(self, other: Self, reduction: Reduction) -> Self {
                match reduction {
                    Reduction::Sum | Reduction::Average => self.$add(other),
                    Reduction::Product => self.$multiply(other),
                    Reduction::Max => self.max(other),
                    Reduction::Min => self.min(other),
                }
            }

            fn divide(self, count: usize) -> Self {
                let ($value, $count) = (self, count);
                $divide
            }
        }
    )*};
}

// Integers wrap, as on a GPU. Communicators have 64 ranks at most, which each type can tell.
numbers! {
    i8, wrapping_add, wrapping_mul, |value, count| value / count as i8;
    u8, wrapping_add, wrapping_mul, |value, count| value / count as u8;
    i32, wrapping_add, wrapping_mul, |value, count| value / count as i32;
    u32, wrapping_add, wrapping_mul, |value, count| value / count as u32;
    i64, wrapping_add, wrapping_mul, |value, count| value / count as i64;
    u64, wrapping_add, wrapping_mul, |value, count| value / count as u64;
    f32, add, mul, |value, count| value / count as f32;
    f64, add, mul, |value, count| value / count as f64;
}

use std::ops::{Add, Mul};

/// A float of few bits: a sign, an exponent, and a fraction.
#[derive(Clone, Copy, Debug)]
struct Small {
    exponent: u32,
    fraction: u32,
    /// Whether the largest exponent stands for infinities; otherwise it is one as others, but for the last NaN.
    infinite: bool,
}

const HALF: Small = Small { exponent: 5, fraction: 10, infinite: true };
const BRAIN: Small = Small { exponent: 8, fraction: 7, infinite: true };
const E4M3: Small = Small { exponent: 4, fraction: 3, infinite: false };
const E5M2: Small = Small { exponent: 5, fraction: 2, infinite: true };

impl Small {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The bits of NaN, without a sign.
    fn nan(self) -> u32 {
        if self.infinite {
            self.infinity() | 1 << (self.fraction - 1)
        } else {
            (1 << (self.exponent + self.fraction)) - 1
        }
    }

    /// The bits of infinity.
    fn infinity(self) -> u32 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    fn decode(self, bits: u32) -> f32 {
        let sign = if bits >> (self.exponent + self.fraction) & 1 == 1 { -1.0 } else { 1.0 };
        let magnitude = bits & ((1 << (self.exponent + self.fraction)) - 1);
        let (exponent, fraction) = (magnitude >> self.fraction, magnitude & ((1 << self.fraction) - 1));
        if self.infinite && magnitude == self.infinity() {
            return sign * f32::INFINITY;
        }
        if self.infinite && magnitude > self.infinity() || !self.infinite && magnitude == self.nan() {
            return f32::NAN;
        }
        // In f64 each step is exact.
        let unit = 2f64.powi(exponent.max(1).cast_signed() - self.bias() - self.fraction.cast_signed());
        let whole = if exponent == 0 { fraction } else { fraction | 1 << self.fraction };
        sign * (f64::from(whole) * unit) as f32
    }

    /// The nearest, the even one of two; what is too large becomes infinity, or NaN where there is none.
    fn encode(self, value: f32) -> u32 {
        let sign = u32::from(value.is_sign_negative()) << (self.exponent + self.fraction);
        if value.is_nan() {
            return sign | self.nan();
        }
        let (too_large, largest) =
            if self.infinite { (self.infinity(), self.infinity() - 1) } else { (self.nan(), self.nan() - 1) };
        let magnitude = f64::from(value.abs());
        if magnitude == 0.0 {
            return sign;
        }
        if magnitude.is_infinite() {
            return sign | too_large;
        }
        let power = (magnitude.log2().floor() as i32).max(1 - self.bias());
        let unit = 2f64.powi(power - self.fraction.cast_signed());
        // The fraction with its hidden bit; one too many carries into the exponent by itself.
        let whole = (magnitude / unit).round_ties_even() as u32;
        let below = (power - 1 + self.bias()).cast_unsigned() << self.fraction;
        let bits = below + whole;
        sign | if bits > largest { too_large } else { bits }
    }
}

/// Combines elements of `from` into those of `into`; both are as long.
fn fold_as<N: Number, const BYTES: usize>(
    into: &mut [u8],
    from: &[u8],
    reduction: Reduction,
    (read, write): (impl Fn([u8; BYTES]) -> N, impl Fn(N) -> [u8; BYTES]),
) {
    let (into, _) = into.as_chunks_mut::<BYTES>();
    let (from, _) = from.as_chunks::<BYTES>();
    for (into, from) in into.iter_mut().zip(from) {
        *into = write(read(*into).combine(read(*from), reduction));
    }
}

fn divide_as<N: Number, const BYTES: usize>(
    into: &mut [u8],
    count: usize,
    (read, write): (impl Fn([u8; BYTES]) -> N, impl Fn(N) -> [u8; BYTES]),
) {
    let (into, _) = into.as_chunks_mut::<BYTES>();
    for into in into {
        *into = write(read(*into).divide(count));
    }
}

/// Calls a function with how to read and write a type.
macro_rules! by_type {
    ($type:expr, $function:ident($($argument:expr),*)) => {
        match $type {
            Type::Int8 => $function($($argument,)* (i8::from_le_bytes, i8::to_le_bytes)),
            Type::Uint8 => $function($($argument,)* (u8::from_le_bytes, u8::to_le_bytes)),
            Type::Int32 => $function($($argument,)* (i32::from_le_bytes, i32::to_le_bytes)),
            Type::Uint32 => $function($($argument,)* (u32::from_le_bytes, u32::to_le_bytes)),
            Type::Int64 => $function($($argument,)* (i64::from_le_bytes, i64::to_le_bytes)),
            Type::Uint64 => $function($($argument,)* (u64::from_le_bytes, u64::to_le_bytes)),
            Type::Float32 => $function($($argument,)* (f32::from_le_bytes, f32::to_le_bytes)),
            Type::Float64 => $function($($argument,)* (f64::from_le_bytes, f64::to_le_bytes)),
            Type::Float16 => $function($($argument,)* two_bytes(HALF)),
            Type::Bfloat16 => $function($($argument,)* two_bytes(BRAIN)),
            Type::Float8e4m3 => $function($($argument,)* one_byte(E4M3)),
            Type::Float8e5m2 => $function($($argument,)* one_byte(E5M2)),
        }
    };
}

fn two_bytes(small: Small) -> (impl Fn([u8; 2]) -> f32, impl Fn(f32) -> [u8; 2]) {
    let read = move |bytes| small.decode(u16::from_le_bytes(bytes).into());
    (read, move |value| (small.encode(value) as u16).to_le_bytes())
}

fn one_byte(small: Small) -> (impl Fn([u8; 1]) -> f32, impl Fn(f32) -> [u8; 1]) {
    (move |[byte]: [u8; 1]| small.decode(byte.into()), move |value| [small.encode(value) as u8])
}

/// Folds one more rank's elements into `into`.
pub fn fold(element: Type, reduction: Reduction, into: &mut [u8], from: &[u8]) {
    by_type!(element, fold_as(into, from, reduction));
}

/// What is left to do after the last of `ranks`: an average is a sum until then.
pub fn finish(element: Type, reduction: Reduction, into: &mut [u8], ranks: usize) {
    if reduction == Reduction::Average {
        by_type!(element, divide_as(into, ranks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_keep_their_bits() {
        for (small, bits) in [(HALF, 16), (BRAIN, 16), (E4M3, 8), (E5M2, 8)] {
            for value in 0..1u32 << bits {
                let decoded = small.decode(value);
                if !decoded.is_nan() {
                    assert_eq!(small.encode(decoded), value, "{small:?} {value:#x}");
                }
            }
        }
    }

    #[test]
    fn small_floats_round_to_the_even_neighbour_and_know_their_end() {
        assert_eq!(HALF.decode(0x3c00), 1.0);
        assert_eq!(HALF.decode(0x0001), 2f32.powi(-24));
        assert_eq!(HALF.encode(65504.0), 0x7bff);
        assert_eq!(HALF.encode(65520.0), 0x7c00);
        assert_eq!(HALF.encode(1.0 + 2f32.powi(-11)), 0x3c00);
        assert_eq!(HALF.encode(1.0 + 3.0 * 2f32.powi(-11)), 0x3c02);
        assert_eq!(BRAIN.encode(-1.0), 0xbf80);
        assert_eq!((E4M3.encode(448.0), E4M3.encode(500.0)), (0x7e, 0x7f));
        assert_eq!((E5M2.encode(57344.0), E5M2.encode(70000.0)), (0x7b, 0x7c));
        assert!(HALF.decode(HALF.encode(f32::NAN)).is_nan() && E4M3.decode(0xff).is_nan());
    }

    #[test]
    fn each_reduction_does_what_it_says() {
        let reduced = |element, reduction, values: [&[u8]; 2]| {
            let mut into = values[0].to_vec();
            fold(element, reduction, &mut into, values[1]);
            finish(element, reduction, &mut into, 2);
            into
        };
        let two = |a: i32, b: i32, reduction| {
            let out = reduced(Type::Int32, reduction, [&a.to_le_bytes(), &b.to_le_bytes()]);
            i32::from_le_bytes(out.try_into().expect("four bytes"))
        };
        assert_eq!(two(-3, 7, Reduction::Sum), 4);
        assert_eq!(two(-3, 7, Reduction::Product), -21);
        assert_eq!(two(-3, 7, Reduction::Max), 7);
        assert_eq!(two(-3, 7, Reduction::Min), -3);
        assert_eq!(two(-3, 8, Reduction::Average), 2);
        // 1.0 and 2.0.
        assert_eq!(reduced(Type::Bfloat16, Reduction::Average, [&[0x80, 0x3f], &[0, 0x40]]), [0xc0, 0x3f]);
        assert_eq!(reduced(Type::Uint8, Reduction::Sum, [&[250], &[10]]), [4]);
    }
}
