//! Units as types: a byte count cannot be mistaken for an address, nor either of them for a plain number.
//!
//! Sums of sizes that come from outside go through the `checked_` functions. The operators are for sums that an
//! invariant already bounds; like those of `u64` they panic on overflow where debug assertions are on.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Sub, SubAssign},
    str::FromStr,
};

use crate::error::Error;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

/// An address in a device's memory, as the device counts. It is a number, not a pointer: nothing here follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest count that can be written down.
    pub const MAX: Self = Self(u64::MAX);

    /// `count` bytes.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// `count` times 1024 bytes. Meant for constants: overflow panics.
    pub const fn kib(count: u64) -> Self {
        Self(count.checked_mul(1 << 10).expect("more KiB than 64 bits of bytes hold"))
    }

    /// `count` times 1024² bytes. Meant for constants: overflow panics.
    pub const fn mib(count: u64) -> Self {
        Self(count.checked_mul(1 << 20).expect("more MiB than 64 bits of bytes hold"))
    }

    /// `count` times 1024³ bytes. Meant for constants: overflow panics.
    pub const fn gib(count: u64) -> Self {
        Self(count.checked_mul(1 << 30).expect("more GiB than 64 bits of bytes hold"))
    }

    /// The count as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether the count is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` past 2⁶⁴ - 1.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` below zero.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// The difference, or zero where it would be negative.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The smallest multiple of `unit` that is no smaller; `None` past 2⁶⁴ - 1 or for a `unit` of zero.
    pub const fn checked_round_up(self, unit: Self) -> Option<Self> {
        match self.0.checked_next_multiple_of(unit.0) {
            Some(rounded) => Some(Self(rounded)),
            None => None,
        }
    }

    /// The largest multiple of `unit` that is no larger; a `unit` of zero leaves the count as it is.
    pub const fn round_down(self, unit: Self) -> Self {
        match self.0.checked_rem(unit.0) {
            Some(rest) => Self(self.0 - rest),
            None => self,
        }
    }

    /// Whether the count is a multiple of `unit`.
    pub const fn is_multiple_of(self, unit: Self) -> bool {
        self.0.is_multiple_of(unit.0)
    }
}

impl Address {
    /// The address `value`.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The address as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address `distance` further up, or `None` past the end of the 64-bit space.
    pub const fn checked_add(self, distance: Bytes) -> Option<Self> {
        match self.0.checked_add(distance.0) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Whether the address is a multiple of `unit`.
    pub const fn is_aligned_to(self, unit: Bytes) -> bool {
        self.0.is_multiple_of(unit.0)
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Add::add)
    }
}

impl Add<Bytes> for Address {
    type Output = Self;
    fn add(self, distance: Bytes) -> Self {
        Self(self.0 + distance.0)
    }
}

impl Sub for Address {
    type Output = Bytes;
    fn sub(self, other: Self) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Units by size, largest first. KiB get one decimal and the larger ones two, as XLA prints them, so that a search for
/// XLA's text finds ours.
const UNITS: [(&str, u32, usize); 4] = [("TiB", 40, 2), ("GiB", 30, 2), ("MiB", 20, 2), ("KiB", 10, 1)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, shift, _)| self.0 >> shift != 0);
        let text = match unit {
            Some(&(name, shift, decimals)) => format!("{:.decimals$}{name}", self.0 as f64 / (1u64 << shift) as f64),
            None => format!("{}B", self.0),
        };
        f.pad(&text)
    }
}

/// A size as the TPU runtime writes it: `31.06M`, `29.49G`, `0B`; two decimals.
pub fn short(bytes: Bytes) -> String {
    let unit = [("T", 40), ("G", 30), ("M", 20), ("K", 10)].into_iter().find(|(_, shift)| bytes.0 >> shift != 0);
    match unit {
        Some((name, shift)) => format!("{:.2}{name}", bytes.0 as f64 / (1u64 << shift) as f64),
        None => format!("{}B", bytes.0),
    }
}

impl FromStr for Bytes {
    type Err = Error;

    /// Reads `8GiB`, `1.5 GiB`, `512MiB`, `64KiB`, `100B` or a plain number of bytes; upper and lower case are equal.
    ///
    /// Only binary units are taken: `GB` means 10⁹ to some and 2³⁰ to others. A fraction that is not a whole number
    /// of bytes is rounded down.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that quotes the text, for anything else or more than 2⁶⁴ - 1 bytes.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |why: &str| {
            let allowed = "allowed are a number of bytes or a number with B, KiB, MiB, GiB or TiB, such as 8GiB";
            Error::invalid_argument(format!("`{text}` is not a size: {why}; {allowed}"))
        };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim_start();
        let shift = match unit {
            "" => 0,
            _ if unit.eq_ignore_ascii_case("B") => 0,
            _ => UNITS
                .iter()
                .find(|(name, ..)| unit.eq_ignore_ascii_case(name))
                .map(|&(_, shift, _)| shift)
                .ok_or_else(|| refuse(&format!("unknown unit `{unit}`")))?,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
            return Err(refuse("it has no number"));
        }
        let too_large = || refuse("more than 64 bits of bytes");
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        // Nine digits of a fraction decide every byte of a unit of up to 1 GiB, and u128 holds the product.
        let fraction = &fraction[..fraction.len().min(9)];
        let numerator: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| too_large())? };
        let part = (numerator << shift) / 10u128.pow(fraction.len() as u32);
        let total = (u128::from(whole) << shift) + part;
        u64::try_from(total).map(Self).map_err(|_| too_large())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_print_as_xla_prints_them() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0KiB"),
            (1536, "1.5KiB"),
            (6 << 30, "6.00GiB"),
            (32_568_770, "31.06MiB"),
            (1 << 40, "1.00TiB"),
        ] {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Bytes::kib(1)), "  1.0KiB");
    }

    #[test]
    fn a_tpu_prints_sizes_shorter() {
        for (bytes, text) in [(0, "0B"), (1536, "1.50K"), (32_568_770, "31.06M"), (31_664_648_028, "29.49G")] {
            assert_eq!(short(Bytes::new(bytes)), text);
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("100B", 100),
            ("64KiB", 64 << 10),
            ("512MiB", 512 << 20),
            ("8GiB", 8 << 30),
            (" 8 gib ", 8 << 30),
            ("2TiB", 2 << 40),
            ("1.5GiB", 3 << 29),
            ("0.001KiB", 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_its_text() {
        for text in ["", "GiB", "8GB", "-1", "1.2.3GiB", "1.", ".5GiB", "1e9", "18446744073709551616", "17179869184GiB"]
        {
            let error = text.parse::<Bytes>().expect_err(text);
            assert!(error.message.contains(&format!("`{text}`")), "{error}");
            assert!(error.message.contains("such as 8GiB"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".*") {
            let _ = text.parse::<Bytes>();
        }

        #[test]
        fn a_plain_count_reads_back(count: u64) {
            prop_assert_eq!(count.to_string().parse(), Ok(Bytes::new(count)));
            prop_assert_eq!(format!("{count}B").parse(), Ok(Bytes::new(count)));
        }

        #[test]
        fn rounding_stays_within_one_unit(count in 0..u64::MAX / 2, unit in 1..1u64 << 40) {
            let (count, unit) = (Bytes::new(count), Bytes::new(unit));
            let up = count.checked_round_up(unit).expect("room above");
            prop_assert!(up >= count && up - count < unit && up.is_multiple_of(unit));
            let down = count.round_down(unit);
            prop_assert!(down <= count && count - down < unit && down.is_multiple_of(unit));
        }
    }
}
