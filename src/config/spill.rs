//! Where arrays go when memory is full.

use std::{fmt, path::PathBuf};

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
