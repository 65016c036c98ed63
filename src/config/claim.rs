//! Gathers what was said about one setting and lets the strongest level decide.
//!
//! ```text
//!   row.names:  Opt(limit)  Opt(memory_fraction) | Var(PJRT_ARENA_LIMIT) | Var(XLA_CLIENT_MEM_FRACTION) ...
//!               `------- Level::Option ---------'   `-- Level::Ours --'    `-------- Level::Xla --------
//! ```

use std::ffi::{OsStr, OsString};

use crate::{
    config::{Environment, OptionValue, Row, Setting, Source, xla_flags},
    error::{Error, Result},
};

/// One value as it was given, under one name.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// The name.
    pub source: Source,
    /// The value. Only a path may be anything but UTF-8.
    pub raw: OsString,
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
    /// Said to no effect, perhaps by mistake.
    pub warnings: Vec<String>,
    /// Said validly, but something stronger decided; as `NAME=value`.
    pub overridden: Vec<String>,
}

impl Notes {
    /// The strongest of `said` decided, and `why` that changes nothing.
    pub fn no_effect(&mut self, said: &[Said], why: &str) {
        self.warnings.extend(said.first().map(|by| format!("{} has no effect: {why}", by.shown())));
    }
}

impl Said {
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

/// Everything that was said about `row`, strongest first.
///
/// # Errors
/// `INVALID_ARGUMENT` when `XLA_FLAGS` names a file that cannot be read.
pub(super) fn gather(row: &Row, environment: &Environment, options: &[(String, OptionValue)]) -> Result<Vec<Said>> {
    let mut said = Vec::new();
    for &source in row.names {
        match source {
            Source::Option(name) => {
                let values = options.iter().filter(|(given, _)| given == name);
                said.extend(values.map(|(_, value)| Said { source, raw: value.to_string().into() }));
            }
            Source::Environment(name) => {
                said.extend(environment.get(name).map(|value| Said { source, raw: value.to_owned() }));
            }
            Source::XlaFlag(name) => {
                let flags = environment.get("XLA_FLAGS").unwrap_or(OsStr::new(""));
                said.extend(xla_flags::value(flags, name)?.map(|value| Said { source, raw: value.into() }));
            }
            Source::Default => {}
        }
    }
    Ok(said)
}

/// The value of a setting whose names all say the same kind of thing.
///
/// # Errors
/// `INVALID_ARGUMENT` for the first value that `parse` refuses, whether it would have decided or not, and for two values
/// of one level that differ.
pub(super) fn decide<T: PartialEq>(
    said: &[Said],
    parse: impl Fn(&Said) -> Result<T>,
    default: T,
    notes: &mut Notes,
) -> Result<Setting<T>> {
    let mut decided: Option<(T, &Said)> = None;
    for claim in said {
        let value = parse(claim)?;
        match &decided {
            None => decided = Some((value, claim)),
            Some((winner, by)) if *winner != value => {
                if by.level() == claim.level() {
                    return Err(contradiction(by, claim));
                }
                notes.overridden.push(claim.shown());
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
pub(super) fn contradiction(one: &Said, other: &Said) -> Error {
    Error::invalid_argument(format!("{} contradicts {}; give only one of them", one.shown(), other.shown()))
}
