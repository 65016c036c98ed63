//! Where arrays go when memory is full.

use std::{fmt, path::PathBuf, time::Duration};

use crate::{config::precedence::Given, error::Result};

/// Where arrays go that no program uses, to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spill {
    /// Nowhere: memory that is full is exhausted.
    Off,
    /// To memory of the host beyond the devices' limits.
    Host,
    /// To files of this folder.
    Folder(PathBuf),
    /// To memory of the host, and before each allocation all that may go, needed or not. For tests.
    Always,
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Host => f.write_str("host"),
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Always => f.write_str("always"),
        }
    }
}

impl Spill {
    /// What a text means. A folder has a `/` in its name, so that no other word can be taken for one; whether it can
    /// be used, the client says that opens it.
    pub(super) fn parse(given: &Given) -> Result<Self> {
        match given.text().to_ascii_lowercase().as_str() {
            "off" | "false" | "0" => Ok(Self::Off),
            "host" => Ok(Self::Host),
            "always" => Ok(Self::Always),
            _ if given.text().contains('/') => Ok(Self::Folder(PathBuf::from(given.text()))),
            _ => Err(given.refuse(given.allowed)),
        }
    }
}

/// After how long without work a device goes to sleep; never, if that is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepAfter(pub Option<Duration>);

/// The longest time, in seconds: a day.
const LONGEST: u64 = 86_400;

impl fmt::Display for SleepAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(after) => write!(f, "{}", after.as_secs()),
        }
    }
}

impl SleepAfter {
    pub(super) fn parse(given: &Given) -> Result<Self> {
        match given.text().to_ascii_lowercase().as_str() {
            "off" | "0" => Ok(Self(None)),
            text => {
                let seconds = text.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds));
                seconds
                    .map(|seconds| Self(Some(Duration::from_secs(seconds))))
                    .ok_or_else(|| given.refuse(given.allowed))
            }
        }
    }
}
