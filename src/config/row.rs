//! What a setting is: its row in the table, its value, and where a value comes from.

use std::fmt;

/// Where the value of a setting came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// No value was given.
    Default,
    /// The environment variable of this name.
    Environment(&'static str),
    /// The client option of this name.
    Option(&'static str),
    /// The flag of this name in `XLA_FLAGS`.
    XlaFlag(&'static str),
}

impl Source {
    /// The name of the variable, option or flag; `default` where there is none.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment(name) | Self::Option(name) | Self::XlaFlag(name) => name,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Environment(name) => write!(f, "{name}"),
            Self::Option(name) => write!(f, "client option {name}"),
            Self::XlaFlag(name) => write!(f, "XLA_FLAGS --{name}"),
        }
    }
}

/// A value, and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting<T> {
    /// What was decided.
    pub value: T,
    /// Who decided it.
    pub source: Source,
}

impl<T: fmt::Display> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.source)
    }
}

impl<T: fmt::Display> Setting<T> {
    /// The value as text, and where it came from.
    pub(super) fn shown(&self) -> (String, Source) {
        (self.value.to_string(), self.source)
    }
}

/// One setting.
#[derive(Debug)]
pub struct Row {
    /// Its own name, which is also its client option.
    pub name: &'static str,
    /// Every name under which a value may come, strongest first: client options, our variable, XLA's.
    pub names: &'static [Source],
    /// The value when none is given, for this setting or another that decides it.
    pub default: &'static str,
    /// What is allowed, under our own names.
    pub allowed: &'static str,
    /// One line that explains it.
    pub doc: &'static str,
}
