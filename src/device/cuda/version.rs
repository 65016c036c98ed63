//! Versions, as drivers and GPUs have them.

use std::{ffi::c_int, fmt};

/// A major and a minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// What it counts first.
    pub major: c_int,
    /// What it counts second.
    pub minor: c_int,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
