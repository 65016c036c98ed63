//! Where arrays go when memory is full.

use std::fmt;

use crate::{config::precedence::Given, error::Result};

/// Where arrays go that no program uses, to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// Nowhere: memory that is full is exhausted.
    Off,
    /// To memory of the host beyond the devices' limits.
    Host,
    /// There, and before each allocation all that may go, needed or not. For tests.
    Always,
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Host => "host",
            Self::Always => "always",
        })
    }
}

impl Spill {
    pub(super) fn parse(given: &Given) -> Result<Self> {
        match given.text().to_ascii_lowercase().as_str() {
            "off" | "false" | "0" => Ok(Self::Off),
            "host" => Ok(Self::Host),
            "always" => Ok(Self::Always),
            _ => Err(given.refuse(given.allowed)),
        }
    }
}
