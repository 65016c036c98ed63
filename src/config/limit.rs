//! How much memory one device may use.
//!
//! ```text
//!   75% of a machine of 64 GiB, 4 CPU devices:
//!
//!   |---------------- capacity 64 GiB ----------------|
//!   |-- 12 GiB --|-- 12 GiB --|-- 12 GiB --|-- 12 GiB --|   each rounded down to whole MiB
//! ```
//!
//! Devices that share a memory (CPU devices share the machine's) divide a percentage among them, so that the default
//! never promises more than there is. A limit in bytes is meant per device, and is refused when the sum does not fit.

use std::fmt;
use std::num::NonZeroU32;

use bytesize::ByteSize;

use crate::{
    config::{
        precedence::{Given, Level, Notes},
        row::{Setting, Source},
    },
    error::{Error, Result},
};

/// A count of bytes.
pub(super) type Bytes = u64;

/// Limits are whole multiples of this many bytes (1 MiB), and at least one of it: a multiple of every page size in use,
/// small enough to make an arena for a test.
pub const GRANULE_BYTES: Bytes = 1 << 20;

/// What a limit may be.
pub(super) const ALLOWED: &str =
    "bytes per device, at least 1MiB (8GiB, 500MB, 1048576), or a share above 0%, at most 100%";

/// A share of a memory, above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fraction(f64);

impl Fraction {
    /// One half.
    pub const HALF: Self = Self(0.5);

    /// `value` if it is above 0 and at most 1.
    pub fn new(value: f64) -> Option<Self> {
        // Written so that NaN fails.
        (value > 0.0 && value <= 1.0).then_some(Self(value))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// How much memory one device may use, as it was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// This many bytes for each device.
    Bytes(Bytes),
    /// This share of the memory, divided among the devices that share it.
    Fraction(Fraction),
}

impl Limit {
    /// XLA's default for `memory_fraction` (`xla_gpu_allocator_config.h`).
    pub const DEFAULT: Self = Self::Fraction(Fraction(0.75));

    /// What [`Self::DEFAULT`] leaves of the machine.
    pub const SPILL_DEFAULT: Self = Self::Fraction(Fraction(0.25));

    pub(super) fn parse(given: &Given) -> Result<Self> {
        let text = given.text();
        match given.source {
            Source::Option("memory_fraction")
            | Source::Environment("XLA_CLIENT_MEM_FRACTION" | "XLA_PYTHON_CLIENT_MEM_FRACTION") => {
                text.parse().ok().and_then(Fraction::new).map(Self::Fraction).ok_or_else(|| {
                    let instead = "; memory beyond the device is PJRT_ARENA_SPILL";
                    let instead = if is_beyond_the_device(given) { instead } else { "" };
                    given.refuse(&format!("a number above 0, at most 1{instead}"))
                })
            }
            _ => Self::from_text(&text).ok_or_else(|| given.refuse(given.allowed)),
        }
    }

    /// `40%`, or bytes with or without a unit: `1048576`, `500MB` (powers of 1000), `1.5GiB` (powers of 1024).
    pub(super) fn from_text(text: &str) -> Option<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim_end().parse().ok()?;
            return Fraction::new(percent / 100.0).map(Self::Fraction);
        }
        let bytes = text.parse::<ByteSize>().ok()?.as_u64();
        (bytes >= GRANULE_BYTES).then_some(Self::Bytes(bytes))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", show(*bytes)),
            // Six decimals hide the error of the binary fraction and no percentage that anybody writes.
            Self::Fraction(fraction) => write!(f, "{}%", (fraction.0 * 1e8).round() / 1e6),
        }
    }
}

/// `bytes` in the largest fitting power of 1024.
pub(super) fn show(bytes: Bytes) -> String {
    crate::units::Bytes::new(bytes).to_string()
}

/// XLA refuses its own variable and the deprecated name of it together, even when they agree; so do we.
pub(super) fn refuse_both_fractions(given: &[Given]) -> Result<()> {
    let by = |name| given.iter().find(|given| given.source == Source::Environment(name));
    match (by("XLA_CLIENT_MEM_FRACTION"), by("XLA_PYTHON_CLIENT_MEM_FRACTION")) {
        (Some(new), Some(old)) => Err(Error::invalid_argument(format!(
            "{} and {} are set together; the second is the deprecated name of the first, so unset it",
            new.shown(),
            old.shown()
        ))),
        _ => Ok(()),
    }
}

/// Whether a variable of XLA's gives a share above 1: to XLA that is unified memory, beyond the device's own.
fn is_beyond_the_device(given: &Given) -> bool {
    given.level() == Level::Xla && given.text().parse().is_ok_and(|share: f64| share.is_finite() && share > 1.0)
}

/// What is left of `given`, strongest first, where a share that we lack is overridden by something stronger.
pub(super) fn without_overridden_shares(given: &[Given], notes: &mut Notes) -> Vec<Given> {
    let (overridden, left): (Vec<_>, Vec<_>) =
        given.iter().cloned().partition(|one| is_beyond_the_device(one) && given[0].level() < one.level());
    notes.overridden.extend(overridden.iter().map(Given::shown));
    left
}

impl Setting<Limit> {
    /// The bytes that each of `devices` devices may use of a memory of `capacity_bytes` that they share, rounded down
    /// to a multiple of [`GRANULE_BYTES`].
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` when the devices together would have more than `capacity_bytes`, or each of them less than
    /// [`GRANULE_BYTES`].
    pub fn resolve(&self, capacity_bytes: Bytes, devices: NonZeroU32) -> Result<Bytes> {
        let devices = u64::from(devices.get());
        let most_bytes = floor(capacity_bytes / devices);
        let bytes = match self.value {
            Limit::Bytes(bytes) => floor(bytes),
            // Exact for any memory below 2^53 bytes; `min` keeps a larger one from being rounded above itself.
            Limit::Fraction(fraction) => floor((capacity_bytes as f64 * fraction.0) as Bytes / devices).min(most_bytes),
        };
        if bytes > most_bytes {
            return Err(Error::invalid_argument(format!(
                "the limit {self} for each of {devices} device(s) is {} in all, but the memory has {} ({capacity_bytes} \
                 bytes); allowed: at most {} per device",
                show(bytes.saturating_mul(devices)),
                show(capacity_bytes),
                show(most_bytes),
            )));
        }
        if bytes < GRANULE_BYTES {
            return Err(Error::invalid_argument(format!(
                "the limit {self} leaves each of {devices} device(s) less than {} of a memory of {} ({capacity_bytes} \
                 bytes); allowed: at least {} per device",
                show(GRANULE_BYTES),
                show(capacity_bytes),
                show(GRANULE_BYTES),
            )));
        }
        Ok(bytes)
    }
}

/// `bytes` rounded down to whole granules.
fn floor(bytes: Bytes) -> Bytes {
    bytes / GRANULE_BYTES * GRANULE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: Bytes = 1 << 30;

    fn setting(value: Limit) -> Setting<Limit> {
        Setting { value, source: Source::Environment("PJRT_ARENA_LIMIT") }
    }

    fn count(devices: u32) -> NonZeroU32 {
        NonZeroU32::new(devices).unwrap()
    }

    #[test]
    fn texts() {
        let fraction = |value| Some(Limit::Fraction(Fraction(value)));
        for (text, expected) in [
            ("1048576", Some(Limit::Bytes(1 << 20))),
            ("8GiB", Some(Limit::Bytes(8 * GIB))),
            ("1.5 GiB", Some(Limit::Bytes(3 * GIB / 2))),
            ("500MB", Some(Limit::Bytes(500_000_000))),
            ("2g", Some(Limit::Bytes(2_000_000_000))),
            ("40%", fraction(0.4)),
            ("100 %", fraction(1.0)),
            ("0%", None),
            ("100.1%", None),
            ("-5%", None),
            ("nan%", None),
            ("%", None),
            ("0", None),
            ("0.75", None),
            ("1MB", None),
            ("-8GiB", None),
            ("8 bananas", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(Limit::from_text(text), expected, "{text:?}");
        }
    }

    #[test]
    fn shown_as_written() {
        for percent in 1..=100u32 {
            let limit = Limit::from_text(&format!("{percent}%")).unwrap();
            assert_eq!(limit.to_string(), format!("{percent}%"));
        }
        assert_eq!(Limit::Bytes(8 * GIB).to_string(), "8.00GiB");
    }

    #[test]
    fn a_percentage_is_divided_among_the_devices() {
        let machine = 64 * GIB;
        assert_eq!(setting(Limit::DEFAULT).resolve(machine, count(1)).unwrap(), 48 * GIB);
        assert_eq!(setting(Limit::DEFAULT).resolve(machine, count(4)).unwrap(), 12 * GIB);
        // 75% of 64 GiB in three: 16 GiB each; in seven: 6.857 GiB, rounded down to 7021 MiB.
        assert_eq!(setting(Limit::DEFAULT).resolve(machine, count(7)).unwrap(), 7021 << 20);
    }

    #[test]
    fn bytes_are_meant_per_device() {
        let eight = setting(Limit::Bytes(8 * GIB));
        assert_eq!(eight.resolve(32 * GIB, count(4)).unwrap(), 8 * GIB);
        let error = eight.resolve(32 * GIB - 1, count(4)).unwrap_err();
        assert_eq!(
            error.message,
            "the limit 8.00GiB (PJRT_ARENA_LIMIT) for each of 4 device(s) is 32.00GiB in all, but the memory has \
             32.00GiB (34359738367 bytes); allowed: at most 8.00GiB per device"
        );
        assert!(setting(Limit::Bytes(u64::MAX)).resolve(32 * GIB, count(4)).is_err());
    }

    #[test]
    fn too_little_is_refused() {
        let error = setting(Limit::DEFAULT).resolve(4 << 20, count(4)).unwrap_err();
        assert!(error.message.contains("at least 1.00MiB per device"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in "\\PC{0,20}") {
            Limit::from_text(&text);
        }

        #[test]
        fn what_is_granted_fits(
            fraction in 0.0f64..=1.0,
            bytes in any::<u64>(),
            is_fraction in any::<bool>(),
            capacity in any::<u64>(),
            devices in 1u32..=4096,
        ) {
            prop_assume!(fraction > 0.0);
            let value = if is_fraction { Limit::Fraction(Fraction(fraction)) } else { Limit::Bytes(bytes) };
            if let Ok(granted) = setting(value).resolve(capacity, count(devices)) {
                prop_assert!(granted >= GRANULE_BYTES && granted % GRANULE_BYTES == 0);
                prop_assert!(granted.checked_mul(u64::from(devices)).is_some_and(|sum| sum <= capacity));
                if let Limit::Bytes(asked) = value {
                    prop_assert!(granted <= asked && asked - granted < GRANULE_BYTES);
                }
            }
        }
    }
}
