//! Functions of numbers to functions of all lanes.

use crate::{
    code::Apply,
    value::{
        Bits, Lanes,
        float::{Bf16, F16},
    },
};

/// Of one operand.
pub fn one<A: Bits, R: Bits>(function: impl Fn(A) -> R + Send + Sync + 'static) -> Apply {
    Box::new(move |to: &mut Lanes, [a, ..]| {
        for (to, a) in to.iter_mut().zip(a) {
            *to = function(A::of(*a)).bits();
        }
    })
}

/// Of two operands.
pub fn two<A: Bits, B: Bits, R: Bits>(function: impl Fn(A, B) -> R + Send + Sync + 'static) -> Apply {
    Box::new(move |to: &mut Lanes, [a, b, ..]| {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to = function(A::of(*a), B::of(*b)).bits();
        }
    })
}

/// Of three operands.
pub fn three<A: Bits, B: Bits, C: Bits, R: Bits>(function: impl Fn(A, B, C) -> R + Send + Sync + 'static) -> Apply {
    Box::new(move |to: &mut Lanes, [a, b, c, _]| {
        for (((to, a), b), c) in to.iter_mut().zip(a).zip(b).zip(c) {
            *to = function(A::of(*a), B::of(*b), C::of(*c)).bits();
        }
    })
}

/// Of four operands, the first two of one type.
pub fn four<A: Bits, R: Bits>(function: impl Fn(A, A, u32, u32) -> R + Send + Sync + 'static) -> Apply {
    Box::new(move |to: &mut Lanes, [a, b, c, d]| {
        for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *to = function(A::of(*a), A::of(*b), u32::of(*c), u32::of(*d)).bits();
        }
    })
}

/// Two halves of a register.
#[derive(Clone, Copy, Debug)]
pub struct Packed<T>(pub [T; 2]);

impl<T: Bits> Bits for Packed<T> {
    fn of(bits: u64) -> Self {
        Self([T::of(bits & 0xffff), T::of(bits >> 16 & 0xffff)])
    }
    fn bits(self) -> u64 {
        self.0[0].bits() | self.0[1].bits() << 16
    }
}

/// What functions of floating point are made for: a number, or both of a pair.
pub trait Lift {
    /// The number.
    type Each: crate::value::float::Float;
    /// Of one operand.
    fn one(function: impl Fn(Self::Each) -> Self::Each + Send + Sync + 'static) -> Apply;
    /// Of two operands.
    fn two(function: impl Fn(Self::Each, Self::Each) -> Self::Each + Send + Sync + 'static) -> Apply;
    /// Of three operands.
    fn three(function: impl Fn(Self::Each, Self::Each, Self::Each) -> Self::Each + Send + Sync + 'static) -> Apply;
}

macro_rules! lift {
    ($($each:ty),*) => {$(
        impl Lift for $each {
            type Each = Self;
            fn one(function: impl Fn(Self) -> Self + Send + Sync + 'static) -> Apply {
                one(function)
            }
            fn two(function: impl Fn(Self, Self) -> Self + Send + Sync + 'static) -> Apply {
                two(function)
            }
            fn three(function: impl Fn(Self, Self, Self) -> Self + Send + Sync + 'static) -> Apply {
                three(function)
            }
        }
    )*};
}

lift!(f32, f64, F16, Bf16);

macro_rules! lift_pairs {
    ($($each:ty),*) => {$(
        impl Lift for Packed<$each> {
            type Each = $each;
            fn one(function: impl Fn($each) -> $each + Send + Sync + 'static) -> Apply {
                one(move |Packed([a, b]): Self| Packed([function(a), function(b)]))
            }
            fn two(function: impl Fn($each, $each) -> $each + Send + Sync + 'static) -> Apply {
                two(move |Packed([a, b]): Self, Packed([c, d]): Self| Packed([function(a, c), function(b, d)]))
            }
            fn three(function: impl Fn($each, $each, $each) -> $each + Send + Sync + 'static) -> Apply {
                three(move |Packed([a, b]): Self, Packed([c, d]): Self, Packed([e, f]): Self| {
                    Packed([function(a, c, e), function(b, d, f)])
                })
            }
        }
    )*};
}

lift_pairs!(F16, Bf16);

/// Expands for the integer type of a qualifier.
macro_rules! integers {
    ($kind:expr, $name:ident => $body:expr) => {
        match $kind {
            Type::Signed(1) => {
                type $name = i8;
                $body
            }
            Type::Signed(2) => {
                type $name = i16;
                $body
            }
            Type::Signed(4) => {
                type $name = i32;
                $body
            }
            Type::Signed(8) => {
                type $name = i64;
                $body
            }
            Type::Unsigned(1) | Type::Bits(1) => {
                type $name = u8;
                $body
            }
            Type::Unsigned(2) | Type::Bits(2) => {
                type $name = u16;
                $body
            }
            Type::Unsigned(4) | Type::Bits(4) => {
                type $name = u32;
                $body
            }
            Type::Unsigned(8) | Type::Bits(8) => {
                type $name = u64;
                $body
            }
            _ => return Err(UNKNOWN.to_owned()),
        }
    };
}

/// Expands for the type of floating point of a qualifier; pairs too.
macro_rules! floats {
    ($kind:expr, $name:ident => $body:expr) => {
        match $kind {
            Type::F16 => {
                type $name = F16;
                $body
            }
            Type::Bf16 => {
                type $name = Bf16;
                $body
            }
            Type::F16x2 => {
                type $name = Packed<F16>;
                $body
            }
            Type::Bf16x2 => {
                type $name = Packed<Bf16>;
                $body
            }
            Type::F32 => {
                type $name = f32;
                $body
            }
            Type::F64 => {
                type $name = f64;
                $body
            }
            _ => return Err(UNKNOWN.to_owned()),
        }
    };
}

pub(super) use {floats, integers};
