//! Half, bfloat16, single and double precision under one name.

use super::{
    Bits,
    round::{Exact, Format, Rounding},
};

/// A number of one of the formats.
pub trait Float: Bits + PartialOrd {
    /// The format.
    const FORMAT: Format;
    /// What an operation gives that has no result.
    const NAN: Self;

    /// As a double, which is exact.
    fn wide(self) -> f64;

    /// From a double that is a number of this format, or none at all.
    fn narrow(value: f64) -> Self;

    /// Rounds.
    fn rounded(value: Exact, mode: Rounding) -> Self {
        Self::narrow(Self::FORMAT.round(value.odd(), mode))
    }

    /// `a + b`.
    fn sum(a: Self, b: Self, mode: Rounding) -> Self {
        Self::rounded(Exact::sum(a.wide(), b.wide(), mode), mode)
    }

    /// `a * b`.
    fn product(a: Self, b: Self, mode: Rounding) -> Self {
        Self::rounded(Exact::product(a.wide(), b.wide()), mode)
    }

    /// `a / b`.
    fn quotient(a: Self, b: Self, mode: Rounding) -> Self {
        Self::rounded(Exact::quotient(a.wide(), b.wide()), mode)
    }

    /// The square root.
    fn root(a: Self, mode: Rounding) -> Self {
        Self::rounded(Exact::root(a.wide()), mode)
    }

    /// `a * b + c`; for double precision to the nearest only.
    fn fused(a: Self, b: Self, c: Self, mode: Rounding) -> Self {
        // The product of two numbers of at most 24 bits is exact.
        Self::rounded(Exact::sum(a.wide() * b.wide(), c.wide(), mode), mode)
    }

    /// With the other sign.
    fn minus(self) -> Self {
        Self::narrow(-self.wide())
    }

    /// Whether it is no number.
    fn is_nan(self) -> bool {
        self.wide().is_nan()
    }

    /// Whether it is less than every normal number, and not zero.
    fn is_subnormal(self) -> bool {
        let wide = self.wide().abs();
        wide > 0.0 && wide < f64::from_bits(((Self::FORMAT.least + 1023) as u64) << 52)
    }

    /// Zero of the same sign.
    fn zero(self) -> Self {
        Self::narrow(0f64.copysign(self.wide()))
    }
}

impl Float for f64 {
    const FORMAT: Format = Format { precision: 53, least: -1022, most: 1023 };
    const NAN: Self = Self::NAN;

    fn wide(self) -> f64 {
        self
    }
    fn narrow(value: f64) -> Self {
        value
    }
    fn rounded(value: Exact, mode: Rounding) -> Self {
        value.double(mode)
    }
    fn fused(a: Self, b: Self, c: Self, _mode: Rounding) -> Self {
        a.mul_add(b, c)
    }
    fn minus(self) -> Self {
        -self
    }
    fn is_subnormal(self) -> bool {
        Self::is_subnormal(self)
    }
}

impl Float for f32 {
    const FORMAT: Format = Format { precision: 24, least: -126, most: 127 };
    const NAN: Self = Self::from_bits(0x7fff_ffff);

    fn wide(self) -> f64 {
        self.into()
    }
    fn narrow(value: f64) -> Self {
        value as Self
    }
    fn minus(self) -> Self {
        -self
    }
    fn is_nan(self) -> bool {
        Self::is_nan(self)
    }
    fn is_subnormal(self) -> bool {
        Self::is_subnormal(self)
    }
    // What the host does by itself is many times faster than rounding by hand.
    fn sum(a: Self, b: Self, mode: Rounding) -> Self {
        if mode == Rounding::Nearest { a + b } else { Self::rounded(Exact::sum(a.into(), b.into(), mode), mode) }
    }
    fn product(a: Self, b: Self, mode: Rounding) -> Self {
        if mode == Rounding::Nearest { a * b } else { Self::rounded(Exact::product(a.into(), b.into()), mode) }
    }
    fn quotient(a: Self, b: Self, mode: Rounding) -> Self {
        if mode == Rounding::Nearest { a / b } else { Self::rounded(Exact::quotient(a.into(), b.into()), mode) }
    }
    fn fused(a: Self, b: Self, c: Self, mode: Rounding) -> Self {
        if mode == Rounding::Nearest {
            return a.mul_add(b, c);
        }
        Self::rounded(Exact::sum(f64::from(a) * f64::from(b), c.into(), mode), mode)
    }
}

macro_rules! half {
    ($(#[$doc:meta])* $name:ident, $format:expr, $wide:expr, $narrow:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name(pub u16);

        impl Bits for $name {
            fn of(bits: u64) -> Self {
                Self(bits as u16)
            }
            fn bits(self) -> u64 {
                self.0.into()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.wide().partial_cmp(&other.wide())
            }
        }

        impl Float for $name {
            const FORMAT: Format = $format;
            const NAN: Self = Self(0x7fff);

            fn wide(self) -> f64 {
                $wide(self.0)
            }
            fn narrow(value: f64) -> Self {
                if value.is_nan() { Self::NAN } else { Self($narrow(value)) }
            }
        }
    };
}

half!(
    /// Half precision.
    F16,
    Format { precision: 11, least: -14, most: 15 },
    wide_half,
    narrow_half
);
half!(
    /// The upper half of single precision.
    Bf16,
    Format { precision: 8, least: -126, most: 127 },
    |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16)),
    |value: f64| ((value as f32).to_bits() >> 16) as u16
);

fn wide_half(bits: u16) -> f64 {
    let (exponent, fraction) = (u64::from(bits >> 10 & 31), u64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction as f64 / f64::from(1 << 24),
        31 => f64::from_bits(0x7ff << 52 | fraction << 42),
        _ => f64::from_bits((exponent + 1023 - 15) << 52 | fraction << 42),
    };
    if bits >> 15 == 1 { -size } else { size }
}

fn narrow_half(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << 15;
    let size = value.abs();
    sign | if size.is_infinite() {
        0x7c00
    } else if size < f64::from_bits((1023 - 14) << 52) {
        (size * f64::from(1 << 24)) as u16
    } else {
        ((size.to_bits() >> 42) - ((1023 - 15) << 10)) as u16
    }
}

/// What an operation does to what it takes and gives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish {
    /// `.ftz`: subnormal numbers are zeros.
    pub flush: bool,
    /// `.sat`: the result is held between 0 and 1, and is 0 where it is no number.
    pub saturate: bool,
    /// `.relu`: what is negative is 0.
    pub relu: bool,
}

impl Finish {
    /// An operand as the operation takes it.
    pub fn take<F: Float>(self, value: F) -> F {
        if self.flush && value.is_subnormal() { value.zero() } else { value }
    }

    /// A result as the operation gives it.
    pub fn give<F: Float>(self, value: F) -> F {
        if self.saturate {
            let wide = value.wide();
            return self.take(F::narrow(if wide > 0.0 { wide.min(1.0) } else { 0.0 }));
        }
        if value.is_nan() {
            return F::NAN;
        }
        if self.relu && value.wide() < 0.0 {
            return F::narrow(0.0);
        }
        self.take(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_what_they_were_after_the_way_to_doubles_and_back() {
        for bits in 0..=u16::MAX {
            if !F16(bits).is_nan() {
                assert_eq!(F16::narrow(F16(bits).wide()), F16(bits), "{bits:#x}");
                assert_eq!(F16::narrow(F16(bits).wide()).0, bits);
            }
            if !Bf16(bits).is_nan() {
                assert_eq!(Bf16::narrow(Bf16(bits).wide()).0, bits);
            }
        }
    }

    /// Numbers of all sizes, with those next to powers of two among them.
    fn numbers() -> impl Iterator<Item = [f32; 3]> {
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = (state >> 32) as u32;
            f32::from_bits(if state >> 30 & 3 == 0 { bits & !0x007f_fffc } else { bits })
        };
        std::iter::repeat_with(move || [next(), next(), next()]).take(200_000)
    }

    #[test]
    fn what_is_rounded_by_hand_is_what_the_host_gives() {
        let near = Rounding::Nearest;
        let check = |name: &str, of: [f32; 3], exact: Exact, host: f32| {
            let found = f32::rounded(exact, near);
            assert!(
                found.to_bits() == host.to_bits() || found.is_nan() && host.is_nan(),
                "{name} {of:?}: {found}, {host}"
            );
        };
        for of @ [a, b, c] in numbers() {
            let [x, y, z] = of.map(f64::from);
            check("a + b", of, Exact::sum(x, y, near), a + b);
            check("a * b", of, Exact::product(x, y), a * b);
            check("a / b", of, Exact::quotient(x, y), a / b);
            check("root", of, Exact::root(x), a.sqrt());
            check("a * b + c", of, Exact::sum(x * y, z, near), a.mul_add(b, c));
        }
    }

    #[test]
    fn directions_hold_what_is_exact_between_them() {
        for [a, b, c] in numbers().filter(|of| of.iter().all(|number| number.is_finite())) {
            let [down, zero, up, near] = [Rounding::Down, Rounding::Zero, Rounding::Up, Rounding::Nearest]
                .map(|mode| <f32 as Float>::fused(a, b, c, mode));
            assert!(down <= near && near <= up && (near == down || near == up), "{a} {b} {c}: {down} {near} {up}");
            assert!(up == down || up == down.next_up(), "{a} {b} {c}: {down} {up}");
            assert_eq!(zero, if zero.is_sign_negative() { up } else { down }, "{a} {b} {c}");
        }
    }
}
