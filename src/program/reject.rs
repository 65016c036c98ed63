//! Why an edit was not made.

use std::fmt;

/// Why some bytes were left as they are: a fixed reason and, where one helps, the number that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reject {
    reason: &'static str,
    found: Option<u64>,
}

impl Reject {
    pub(crate) const fn new(reason: &'static str) -> Self {
        Self { reason, found: None }
    }

    pub(crate) const fn found(reason: &'static str, found: u64) -> Self {
        Self { reason, found: Some(found) }
    }

    /// The fixed part, for counting how often each reason occurs.
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found {
            Some(found) => write!(f, "{}: found {found}", self.reason),
            None => f.write_str(self.reason),
        }
    }
}

impl std::error::Error for Reject {}
