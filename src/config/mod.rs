//! The settings: what a client is told to do, by whom, and how that is said back.
//!
//! ```text
//!  client options          environment
//!  (PJRT_NamedValue)       PJRT_ARENA_*        XLA_*, XLA_FLAGS
//!        |                     |                   |
//!        +--------- first wins, in this order -----+---- default
//!                              |
//!   settings    the table: each setting with its names, default, allowed values, explanation, and how it is read
//!   precedence  gathers what was given under those names and lets the strongest level decide
//!   reading     how one is read beside others
//!   strategy, share, limit, pinned_limit, spill, values, xla_flags     what a text means for one setting
//!                              |
//!                          Settings --- limit.resolve(capacity, devices) -> bytes of one device
//!                              |    \-- engine_options(kind, share)      -> what the engine is given
//!                           report: one log line; the table of `pjrt-arena doctor`
//! ```
//!
//! Rules:
//! - Settings are read when a client is created, never when the library is loaded, so that a variable set after
//!   `import jax` still counts.
//! - A variable that is set to the empty string counts as unset.
//! - A value that cannot be read is an error even where a stronger level decides; so are two values of the same level
//!   that differ. The error names the variable or option, its value and what is allowed.
//! - XLA's variables keep XLA's meaning (`jaxlib/xla_client.py`, `generate_pjrt_gpu_plugin_options`).
//! - Nothing is ignored in silence: an unknown `PJRT_ARENA_*` variable or client option, and a variable without effect,
//!   are [`Settings::warnings`]; a variable that a stronger one overrides is in [`Settings::overridden`].
#![deny(unsafe_code)]

mod engine_only;
mod engine_options;
mod environment;
mod limit;
mod names;
mod pinned_limit;
mod precedence;
mod reading;
mod report;
mod row;
mod settings;
mod share;
mod spill;
mod strategy;
#[cfg(test)]
mod tests;
mod values;
mod xla_flags;

pub use crate::config::engine_options::{EngineOptions, Inline};
pub use crate::config::environment::{Environment, OptionValue};
pub use crate::config::limit::{Fraction, GRANULE_BYTES, Limit};
pub use crate::config::pinned_limit::PinnedLimit;
pub use crate::config::report::{Finding, Found, Outcome, doctor, settings_as_json};
pub use crate::config::row::{Row, Setting, Source};
pub use crate::config::settings::*;
pub use crate::config::share::{Share, ShareMin};
pub use crate::config::spill::{SleepAfter, Spill};
pub use crate::config::strategy::{strategy_from_name, strategy_name};
pub use crate::config::values::*;
