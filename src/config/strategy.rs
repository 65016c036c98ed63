//! The strategy, out of our name for it and XLA's two (`allocator`, `preallocate`).
//!
//! XLA's names say less than ours, so each value stands for the strategies that it leaves open:
//!
//! ```text
//!                             preallocate   growing   platform   tpu
//!   strategy=NAME                  one of them
//!   allocator=default               x          x          x       x    says nothing
//!   allocator=bfc                   x          x                  x
//!   allocator=platform, address                           x
//!   preallocate=true                x                     x       x    XLA ignores it for platform
//!   preallocate=false                          x          x            likewise
//! ```
//!
//! `tpu` takes all memory up front and divides it, so names that mean that leave it open; it is last in the order of
//! choice, and `preallocate` is open wherever it is, so that only its own name ever leads there. Under
//! `PJRT_ARENA_STRATEGY=tpu` an `XLA_PYTHON_CLIENT_PREALLOCATE=false` is overridden, and `=true` agrees.
//!
//! Levels are read from the strongest to the weakest. A weaker value may narrow what the stronger ones left open; where
//! it would leave nothing, it is overridden. The leftmost strategy still open is the answer.
//!
//! `address` became an alias of `platform` in XLA between PJRT 0.112 and 0.114 (`pjrt_c_api_gpu_internal.cc`), after
//! `platform` had stopped to mean one driver allocation per buffer (jax issue 39145). Our `platform` means that, so
//! both names lead there. `cuda_async` and `vmm` name allocators that are not ours to imitate, and are refused where
//! they would decide.

use crate::{
    config::{
        names::did_you_mean,
        precedence::{Given, Notes, contradiction},
        row::{Setting, Source},
    },
    error::{Error, Result},
    memory::Strategy,
};

/// All strategies; of those left open, the first is taken.
const ALL: [Strategy; 4] = [Strategy::Preallocate, Strategy::Growing, Strategy::Platform, Strategy::Tpu];

/// What `preallocate=true` leaves open.
const UP_FRONT: [Strategy; 3] = [Strategy::Preallocate, Strategy::Platform, Strategy::Tpu];

/// The name of `strategy` in settings and reports.
pub fn strategy_name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Preallocate => "preallocate",
        Strategy::Growing => "growing",
        Strategy::Platform => "platform",
        Strategy::Tpu => "tpu",
    }
}

/// The strategy called `name`, in any case of letters.
pub fn strategy_from_name(name: &str) -> Option<Strategy> {
    ALL.into_iter().find(|strategy| strategy_name(*strategy).eq_ignore_ascii_case(name))
}

/// What one value allows.
enum Allowed {
    /// Any of these.
    Open(Vec<Strategy>),
    /// An allocator of XLA's that we do not have.
    NotOurs(Error),
}

/// Reads one value; words that XLA reads in an unexpected way become a warning.
fn allowed_by(given: &Given, warnings: &mut Vec<String>) -> Result<Allowed> {
    use Strategy::{Growing, Platform, Preallocate, Tpu};
    let text = given.text();
    let open = match given.source {
        Source::Option("allocator") | Source::Environment("XLA_PYTHON_CLIENT_ALLOCATOR") => {
            match text.to_ascii_lowercase().as_str() {
                "default" => ALL.to_vec(),
                "bfc" => vec![Preallocate, Growing, Tpu],
                "platform" | "address" => vec![Platform],
                other @ ("cuda_async" | "vmm") => return Ok(Allowed::NotOurs(not_ours(given, other))),
                _ => return Err(given.refuse("default, bfc, platform, address")),
            }
        }
        Source::Option("preallocate") => match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "on" => UP_FRONT.to_vec(),
            "false" | "0" | "off" => vec![Growing, Platform],
            _ => return Err(given.refuse("true, false")),
        },
        Source::Environment("XLA_PYTHON_CLIENT_PREALLOCATE") => match text.as_str() {
            "false" | "False" | "0" => vec![Growing, Platform],
            other => {
                if !["true", "True", "1"].contains(&other) {
                    warnings
                        .push(format!("{} counts as true: to XLA only false, False and 0 mean false", given.shown()));
                }
                UP_FRONT.to_vec()
            }
        },
        _ => vec![strategy_from_name(&text).ok_or_else(|| unknown(given, &text))?],
    };
    Ok(Allowed::Open(open))
}

fn unknown(given: &Given, text: &str) -> Error {
    let hint = did_you_mean(text, ALL.map(strategy_name));
    given.refuse(&format!("{}{hint}", given.allowed))
}

fn not_ours(given: &Given, allocator: &str) -> Error {
    let instead = match allocator {
        "cuda_async" => "growing takes memory on demand and gives empty regions back",
        _ => "platform makes one device allocation per buffer",
    };
    given.refuse(&format!(
        "default, bfc, platform, address; pjrt-arena manages the memory itself and has no {allocator} allocator: \
         {instead} (PJRT_ARENA_STRATEGY)"
    ))
}

/// Decides the strategy from everything that was given for it, strongest first.
///
/// # Errors
/// `INVALID_ARGUMENT` for a value that cannot be read, for two options that leave no strategy open, and for an
/// allocator of XLA's that we do not have, unless something stronger has decided already.
pub(super) fn decide(given: &[Given], notes: &mut Notes) -> Result<Setting<Strategy>> {
    let mut open = ALL.to_vec();
    let mut narrowing: Vec<(&Given, Vec<Strategy>)> = Vec::new();
    for value in given {
        let allowed = match allowed_by(value, &mut notes.warnings)? {
            Allowed::Open(allowed) => allowed,
            Allowed::NotOurs(_) if open.len() == 1 => {
                notes.overridden.push(value.shown());
                continue;
            }
            Allowed::NotOurs(error) => return Err(error),
        };
        let both: Vec<Strategy> = open.iter().copied().filter(|strategy| allowed.contains(strategy)).collect();
        if both.is_empty() {
            // Within a level both come from the same hand, and there is no telling which one is meant.
            let same_level = narrowing
                .iter()
                .find(|(by, theirs)| by.level() == value.level() && !theirs.iter().any(|s| allowed.contains(s)));
            match same_level {
                Some((by, _)) => return Err(contradiction(by, value)),
                None => notes.overridden.push(value.shown()),
            }
        } else {
            open = both;
            narrowing.push((value, allowed));
        }
    }
    // `open` is never empty: it starts full, and is replaced only by what is not.
    let value = open.first().copied().unwrap_or(Strategy::Preallocate);
    warn_of_no_effect(value, &narrowing, notes);
    // The narrowest value decided; between equals, one that rules the default out says more, then the strongest.
    let source = narrowing
        .iter()
        .filter(|(_, allowed)| allowed.len() < ALL.len())
        .min_by_key(|(_, allowed)| (allowed.len(), allowed.contains(&Strategy::Preallocate)))
        .map_or(Source::Default, |(by, _)| by.source);
    Ok(Setting { value, source })
}

/// Preallocation is asked for, and the strategy has none.
fn warn_of_no_effect(strategy: Strategy, narrowing: &[(&Given, Vec<Strategy>)], notes: &mut Notes) {
    if strategy != Strategy::Platform {
        return;
    }
    let asked = narrowing.iter().filter(|(_, allowed)| allowed[..] == UP_FRONT);
    for (by, _) in asked {
        notes.warnings.push(format!("{} has no effect: the strategy platform preallocates nothing", by.shown()));
    }
}
