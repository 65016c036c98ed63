//! Processes that share the devices' limits.

use std::{fmt, num::NonZeroU32};

use bytesize::ByteSize;

use crate::{
    config::{
        limit::show,
        precedence::Given,
        row::{Setting, Source},
        strategy::strategy_name,
    },
    error::{Error, Result},
    group::check_name,
    memory::{Strategy, group::WEIGHTS},
    units::Bytes,
};

/// The name of a group of processes; `None` for a process by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share(pub Option<String>);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("off"))
    }
}

impl Share {
    pub(super) fn parse(given: &Given) -> Result<Self> {
        match given.text().as_str() {
            "off" => Ok(Self(None)),
            name => match check_name(name) {
                Ok(()) => Ok(Self(Some(name.to_owned()))),
                Err(_) => Err(given.refuse(given.allowed)),
            },
        }
    }
}

/// What no other process of the group takes from this one, of each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareMin(pub Bytes);

impl ShareMin {
    /// Nothing.
    pub(super) const NONE: Self = Self(Bytes::ZERO);

    pub(super) fn parse(given: &Given) -> Result<Self> {
        let bytes = given.text().parse::<ByteSize>().map_err(|_| given.refuse(given.allowed))?;
        Ok(Self(Bytes::new(bytes.as_u64())))
    }
}

impl fmt::Display for ShareMin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get() {
            0 => f.write_str("0"),
            bytes => f.write_str(&show(bytes)),
        }
    }
}

/// The weight of a process that has said nothing.
pub(super) const DEFAULT_WEIGHT: NonZeroU32 = NonZeroU32::new(100).unwrap();

pub(super) fn parse_weight(given: &Given) -> Result<NonZeroU32> {
    let weight = given.text().parse::<NonZeroU32>().ok().filter(|weight| WEIGHTS.contains(&weight.get()));
    weight.ok_or_else(|| given.refuse(given.allowed))
}

/// The strategy of a process that shares its devices: one that takes memory as it needs it.
///
/// # Errors
/// `INVALID_ARGUMENT` for one that was asked for and takes all memory at its start.
pub(super) fn strategy(decided: Setting<Strategy>) -> Result<Setting<Strategy>> {
    let Setting { value, source } = decided;
    match (value, source) {
        (Strategy::Growing | Strategy::Platform, _) => Ok(decided),
        // Nobody has asked for this one.
        (
            Strategy::Preallocate,
            Source::Default | Source::Option("allocator") | Source::Environment("XLA_PYTHON_CLIENT_ALLOCATOR"),
        ) => Ok(Setting { value: Strategy::Growing, source }),
        (Strategy::Preallocate | Strategy::Tpu, _) => Err(Error::invalid_argument(format!(
            "{source} asks for {}, which takes all memory at its start, and PJRT_ARENA_SHARE shares it with other \
             processes; allowed: growing (with PJRT_ARENA_COMPACT=on arrays are moved as under tpu), platform",
            strategy_name(value)
        ))),
    }
}
