//! Gathers what was given for one setting and lets the strongest level decide.
//!
//! ```text
//!   row.names:  Opt(limit)  Opt(memory_fraction) | Var(PJRT_ARENA_LIMIT) | Var(XLA_CLIENT_MEM_FRACTION) ...
//!               `------- Level::Option ---------'   `-- Level::Ours --'    `-------- Level::Xla --------
//! ```

use std::ffi::{OsStr, OsString};

use crate::{
    config::{
        environment::{Environment, OptionValue},
        row::{Row, Setting, Source},
        xla_flags,
    },
    error::{Error, Result},
};

/// One value as it was given, under one name.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The name.
    pub source: Source,
    /// The value. Only a path may be anything but UTF-8.
    pub raw: OsString,
    /// What is allowed, under our own names for the setting.
    pub allowed: &'static str,
}

/// How strong a name is; the first decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Options of this client.
    Option,
    /// `PJRT_ARENA_*`.
    Ours,
    /// XLA's variables and flags.
    Xla,
}

/// What the user should hear about values that decided nothing.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Given to no effect, perhaps by mistake.
    pub warnings: Vec<String>,
    /// Given validly, but something stronger decided; as `NAME=value`.
    pub overridden: Vec<String>,
}

impl Notes {
    /// The strongest of `given` decided, and `why` that changes nothing.
    pub fn no_effect(&mut self, given: &[Given], why: &str) {
        self.warnings.extend(given.first().map(|by| format!("{} has no effect: {why}", by.shown())));
    }
}

impl Given {
    /// The value without surrounding white space; what is not UTF-8 shows as U+FFFD and fits no parser.
    pub fn text(&self) -> String {
        self.raw.to_string_lossy().trim().to_owned()
    }

    /// How strong the name is.
    pub fn level(&self) -> Level {
        match self.source {
            Source::Option(_) => Level::Option,
            Source::Environment(name) if name.starts_with("PJRT_ARENA_") => Level::Ours,
            Source::Environment(_) | Source::XlaFlag(_) | Source::Default => Level::Xla,
        }
    }

    /// `NAME=value`, with control characters escaped and an overlong value cut.
    pub fn shown(&self) -> String {
        const LONGEST: usize = 160;
        let text = self.text();
        let mut value: String = text.chars().take(LONGEST).collect::<String>().escape_debug().collect();
        if text.chars().nth(LONGEST).is_some() {
            value.push_str("...");
        }
        format!("{}={value}", self.source)
    }

    /// The error for a value that is not allowed here.
    pub fn refuse(&self, allowed: &str) -> Error {
        Error::invalid_argument(format!("{} is not valid; allowed: {allowed}", self.shown()))
    }
}

/// Everything that was given for `row`, strongest first.
///
/// # Errors
/// `INVALID_ARGUMENT` when `XLA_FLAGS` names a file that cannot be read.
pub(super) fn gather(row: &Row, environment: &Environment, options: &[(String, OptionValue)]) -> Result<Vec<Given>> {
    let given = |source, raw: OsString| Given { source, raw, allowed: row.allowed };
    let mut all = Vec::new();
    for &source in row.names {
        match source {
            Source::Option(name) => {
                let values = options.iter().filter(|(given, _)| given == name);
                all.extend(values.map(|(_, value)| given(source, value.to_string().into())));
            }
            Source::Environment(name) => {
                all.extend(environment.get(name).map(|value| given(source, value.to_owned())));
            }
            Source::XlaFlag(name) => {
                let flags = environment.get("XLA_FLAGS").unwrap_or(OsStr::new(""));
                all.extend(xla_flags::value(flags, name)?.map(|value| given(source, value.into())));
            }
            Source::Default => {}
        }
    }
    Ok(all)
}

/// The value of a setting whose names all say the same kind of thing.
///
/// # Errors
/// `INVALID_ARGUMENT` for the first value that `parse` refuses, whether it would have decided or not, and for two
/// values of one level that differ.
pub(super) fn decide<T: PartialEq>(
    given: &[Given],
    parse: impl Fn(&Given) -> Result<T>,
    default: T,
    notes: &mut Notes,
) -> Result<Setting<T>> {
    let mut decided: Option<(T, &Given)> = None;
    for weaker in given {
        let value = parse(weaker)?;
        match &decided {
            None => decided = Some((value, weaker)),
            Some((winner, by)) if *winner != value => {
                if by.level() == weaker.level() {
                    return Err(contradiction(by, weaker));
                }
                notes.overridden.push(weaker.shown());
            }
            Some(_) => {}
        }
    }
    Ok(match decided {
        Some((value, by)) => Setting { value, source: by.source },
        None => Setting { value: default, source: Source::Default },
    })
}

/// The error for two values of one level that cannot both hold.
pub(super) fn contradiction(one: &Given, other: &Given) -> Error {
    Error::invalid_argument(format!("{} contradicts {}; give only one of them", one.shown(), other.shown()))
}
