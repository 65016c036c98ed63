//! What a client is given: environment variables, as it reads them, and client options.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
};

/// A snapshot of the environment variables, so that one client reads one state of them and a test needs no process of
/// its own.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The variables of this process as they are now.
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of `name`; `None` when it is unset or empty.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The names of all variables that are set, in order, as far as they are UTF-8.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.to_str())
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// The value of a client option, as `PJRT_NamedValue` carries it.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A text. Everything that comes through `jax_pjrt_client_create_options` is one.
    String(String),
    /// A whole number.
    Int64(i64),
    /// A list of whole numbers.
    Int64List(Vec<i64>),
    /// A number.
    Float(f32),
    /// Yes or no.
    Bool(bool),
}

/// The text that means the same; settings are read from it.
impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(value) => write!(f, "{value}"),
            Self::Int64(value) => write!(f, "{value}"),
            Self::Int64List(values) => write!(f, "{values:?}"),
            // The shortest text that gives back this f32: 0.4, not the 0.4000000059604645 of its conversion to f64.
            Self::Float(value) => write!(f, "{value}"),
            Self::Bool(value) => write!(f, "{value}"),
        }
    }
}
