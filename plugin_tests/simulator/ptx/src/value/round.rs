//! Arithmetic that is rounded once, in any direction, to any of the formats.
//!
//! ```text
//!   a, b  ->  nearest f64, and the sign of what it lacks  ->  rounded to odd  ->  rounded to the format
//! ```
//!
//! A double whose last bit is set where it is not exact ("rounded to odd") keeps all that a second rounding to at most
//! 51 bits has to know, in any direction. So one set of functions serves every format; double precision itself takes
//! the nearest double or its neighbour.

/// Where to round to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// `.rn`: to the nearest, ties to even.
    Nearest,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: down.
    Down,
    /// `.rp`: up.
    Up,
}

impl Rounding {
    /// The whole number that a number is rounded to.
    pub fn whole(self, value: f64) -> f64 {
        match self {
            Self::Nearest => value.round_ties_even(),
            Self::Zero => value.trunc(),
            Self::Down => value.floor(),
            Self::Up => value.ceil(),
        }
    }
}

/// A number: the nearest double, and the rest that it lacks, of which only the sign counts.
#[derive(Clone, Copy, Debug)]
pub struct Exact {
    /// The nearest double.
    pub value: f64,
    /// Negative where the number is less than `value`, positive where it is more.
    pub rest: f64,
}

impl Exact {
    /// A double, of which nothing is missing.
    pub fn of(value: f64) -> Self {
        Self { value, rest: 0.0 }
    }

    /// `a + b`. Where it is zero, `mode` says of which sign.
    pub fn sum(a: f64, b: f64, mode: Rounding) -> Self {
        let value = a + b;
        if value == 0.0 && mode == Rounding::Down && a.is_sign_negative() != b.is_sign_negative() {
            return Self::of(-0.0);
        }
        let part = value - a;
        Self { value, rest: (a - (value - part)) + (b - part) }
    }

    /// `a * b`.
    pub fn product(a: f64, b: f64) -> Self {
        let value = a * b;
        Self { value, rest: a.mul_add(b, -value) }
    }

    /// `a / b`.
    pub fn quotient(a: f64, b: f64) -> Self {
        let value = a / b;
        let left = (-value).mul_add(b, a);
        Self { value, rest: if b.is_sign_negative() { -left } else { left } }
    }

    /// The square root.
    pub fn root(a: f64) -> Self {
        let value = a.sqrt();
        Self { value, rest: (-value).mul_add(value, a) }
    }

    /// A whole number.
    pub fn whole(number: i128) -> Self {
        let value = number as f64;
        Self { value, rest: (number - value as i128) as f64 }
    }

    fn is_exact(self) -> bool {
        // What is not finite has a rest that is no number.
        self.rest == 0.0 || self.rest.is_nan() || !self.value.is_finite()
    }

    /// Rounded to odd.
    pub fn odd(self) -> f64 {
        if self.is_exact() || self.value.to_bits() & 1 == 1 {
            self.value
        } else if self.rest > 0.0 {
            self.value.next_up()
        } else {
            self.value.next_down()
        }
    }

    /// Rounded to double precision.
    pub fn double(self, mode: Rounding) -> f64 {
        let (up, down) = match mode {
            Rounding::Nearest => (false, false),
            Rounding::Zero => (self.value < 0.0, self.value > 0.0),
            Rounding::Down => (false, true),
            Rounding::Up => (true, false),
        };
        if self.is_exact() {
            self.value
        } else if self.rest > 0.0 && up {
            self.value.next_up()
        } else if self.rest < 0.0 && down {
            self.value.next_down()
        } else {
            self.value
        }
    }
}

/// A binary format.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of precision, with the leading one.
    pub precision: i32,
    /// The exponent of the least normal number.
    pub least: i32,
    /// The exponent of the largest one.
    pub most: i32,
}

/// The power of two.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

impl Format {
    /// Rounds a double, itself rounded to odd, to a number of this format.
    pub fn round(self, value: f64, mode: Rounding) -> f64 {
        if value == 0.0 || !value.is_finite() {
            return value;
        }
        let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let unit = exponent.max(self.least) - (self.precision - 1);
        let rounded = mode.whole(value * power(-unit)) * power(unit);
        let largest = (2.0 - power(1 - self.precision)) * power(self.most);
        if rounded.abs() <= largest {
            return rounded;
        }
        let infinite = match mode {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => value < 0.0,
            Rounding::Up => value > 0.0,
        };
        (if infinite { f64::INFINITY } else { largest }).copysign(value)
    }
}
