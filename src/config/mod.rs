//! The settings: what a client is told to do, by whom, and how that is said back.
//!
//! ```text
//!  client options          environment
//!  (PJRT_NamedValue)       PJRT_ARENA_*        XLA_*, XLA_FLAGS
//!        |                     |                   |
//!        +--------- first wins, in this order -----+---- default
//!                              |
//!   table    one row per setting: every name it goes by, default, allowed values, one line of explanation
//!   claim    gathers what was said under those names and lets the strongest level decide
//!   strategy, limit, pinned_limit, values, xla_flags     what a text means for one setting
//!                              |
//!                          Settings --- limit.resolve(capacity, devices) -> bytes of one device
//!                              |    \-- engine_options(kind, share)      -> what the engine is given
//!                           report: one log line; the table of `python -m jax_plugins.arena`
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

mod claim;
mod engine_options;
mod limit;
mod pinned_limit;
mod report;
mod strategy;
mod table;
mod values;
mod xla_flags;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU32;

use crate::error::{Error, Result};
use crate::memory::Strategy;

pub use engine_options::{EngineOptions, OptionValue};
pub use limit::{Fraction, GRANULE_BYTES, Limit};
pub use pinned_limit::PinnedLimit;
pub use report::{Finding, Found, Outcome, doctor};
pub use strategy::{strategy_from_name, strategy_name};
pub use table::{
    COMPACT, CUDA_DRIVER, DEVICES, ENGINE, GPU_SCRATCH, HEADROOM, HIP_DRIVER, HISTORY, HUGE_PAGES, LIMIT, LOG,
    OOM_REPORT, PINNED_LIMIT, REWRITE, Row, SCRATCH, STRATEGY, TABLE, TPU_TILES, ZERO_COPY,
};
pub use values::{
    Compact, CudaDriver, EngineKind, EngineRequest, GpuScratch, Headroom, HipDriver, HugePages, LogFilter, OomReport,
    Rewrite, Scratch, TpuTiles, ZeroCopy,
};

/// A count of bytes.
type Bytes = u64;

/// Where the value of a setting came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nobody said anything.
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

/// A picture of the environment variables, so that one client reads one state of them and a test needs no process of
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

/// Everything that a client is told to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the arena obtains space.
    pub strategy: Setting<Strategy>,
    /// How much memory one device may use; [`Setting::resolve`] turns it into bytes.
    pub limit: Setting<Limit>,
    /// When live buffers are moved, as it was said; [`Settings::compaction`] is what that comes to.
    pub compact: Setting<Compact>,
    /// Whether arrays are counted as a TPU would lay them out, as it was said; see [`Settings::counts_tiles`].
    pub tpu_tiles: Setting<TpuTiles>,
    /// Whether large regions ask for huge pages.
    pub huge_pages: Setting<HugePages>,
    /// Which engine to load.
    pub engine: Setting<EngineRequest>,
    /// The file of NVIDIA's driver library.
    pub cuda_driver: Setting<CudaDriver>,
    /// The file of AMD's driver library.
    pub hip_driver: Setting<HipDriver>,
    /// What arrays and programs' scratch leave free of a GPU's memory.
    pub headroom: Setting<Headroom>,
    /// What programs' scratch has of a GPU's limit where the engine has no memory pools.
    pub gpu_scratch: Setting<GpuScratch>,
    /// How much memory of the host may be pinned for the arrays of one GPU; [`Setting::resolve`] turns it into bytes.
    pub pinned_limit: Setting<PinnedLimit>,
    /// How many devices a CPU engine shows. Engines of real devices count for themselves.
    pub devices: Setting<NonZeroU32>,
    /// Whether results are placed in our memory by rewriting programs (destination passing).
    pub rewrite: Setting<Rewrite>,
    /// Where programs' scratch lies.
    pub scratch: Setting<Scratch>,
    /// Whether arrays of the host are used where they lie.
    pub zero_copy: Setting<ZeroCopy>,
    /// How many events each device remembers.
    pub history: Setting<usize>,
    /// Where a report goes when memory is exhausted.
    pub oom_report: Setting<OomReport>,
    /// What is logged.
    pub log: Setting<LogFilter>,
    /// What was said to no effect, for the user to read.
    pub warnings: Vec<String>,
    /// What was said validly and lost to a stronger level, as `NAME=value`.
    pub overridden: Vec<String>,
    /// The client options that are not ours, as they came.
    foreign: Vec<(String, OptionValue)>,
    /// `PJRT_GPU_ENABLE_ASYNC_DISPATCH`, which a GPU engine reads for itself.
    gpu_async_dispatch: Option<String>,
    /// The flag of that name in `XLA_FLAGS`.
    gpu_update_mode: Option<String>,
}

impl Settings {
    /// Reads all settings.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a value that cannot be read, is out of range or contradicts another of the same level; one
    /// clause for each setting that is wrong.
    pub fn read(environment: &Environment, options: &[(String, OptionValue)]) -> Result<Self> {
        Reading::new(environment, options).settings()
    }

    /// When live buffers are moved. Never under `platform`, whose buffers lie in no common region.
    pub fn compaction(&self) -> Compact {
        if self.strategy.value == Strategy::Platform { Compact::Off } else { self.compact.value }
    }

    /// Whether an array takes what it would take on a TPU. Only under `tpu`.
    pub fn counts_tiles(&self) -> bool {
        self.tpu_tiles.value == TpuTiles::On && self.strategy.value == Strategy::Tpu
    }
}

/// What is needed before there is a client: which engine to load, and what to log while looking for it. Whatever else is
/// wrong with the settings is said when a client is created.
///
/// # Errors
/// `INVALID_ARGUMENT` for an engine that cannot be read.
pub fn before_client(environment: &Environment) -> Result<(Setting<EngineRequest>, LogFilter)> {
    let reading = Reading::new(environment, &[]);
    Ok((reading.engine?, reading.log.map(|log| log.value).unwrap_or_default()))
}

/// The settings before it is known whether all of them are valid, for the report that shows the invalid ones too.
struct Reading {
    strategy: Result<Setting<Strategy>>,
    limit: Result<Setting<Limit>>,
    compact: Result<Setting<Compact>>,
    tpu_tiles: Result<Setting<TpuTiles>>,
    huge_pages: Result<Setting<HugePages>>,
    engine: Result<Setting<EngineRequest>>,
    cuda_driver: Result<Setting<CudaDriver>>,
    hip_driver: Result<Setting<HipDriver>>,
    headroom: Result<Setting<Headroom>>,
    gpu_scratch: Result<Setting<GpuScratch>>,
    pinned_limit: Result<Setting<PinnedLimit>>,
    devices: Result<Setting<NonZeroU32>>,
    rewrite: Result<Setting<Rewrite>>,
    scratch: Result<Setting<Scratch>>,
    zero_copy: Result<Setting<ZeroCopy>>,
    history: Result<Setting<usize>>,
    oom_report: Result<Setting<OomReport>>,
    log: Result<Setting<LogFilter>>,
    warnings: Vec<String>,
    overridden: Vec<String>,
    foreign: Vec<(String, OptionValue)>,
    gpu_async_dispatch: Option<String>,
    gpu_update_mode: Option<String>,
}

impl Reading {
    fn new(environment: &Environment, options: &[(String, OptionValue)]) -> Self {
        let mut notes = claim::Notes::default();
        let said = |row: &Row| claim::gather(row, environment, options);
        let strategy = said(&STRATEGY).and_then(|said| strategy::decide(&said, &mut notes));
        let limit = said(&LIMIT)
            .and_then(|said| limit::refuse_both_fractions(&said).map(|()| said))
            .and_then(|said| claim::decide(&said, Limit::parse, Limit::DEFAULT, &mut notes));
        // A strategy that cannot be read is an error by itself; what it would have meant for others is moot then.
        let chosen = strategy.as_ref().map_or(Strategy::Preallocate, |strategy| strategy.value);
        let compact = said(&COMPACT).and_then(|said| {
            let compact = claim::decide(&said, Compact::parse, Compact::default_for(chosen), &mut notes)?;
            if chosen == Strategy::Platform && compact.value != Compact::Off {
                notes.no_effect(&said, "the strategy platform has no region in which buffers could be moved");
            }
            Ok(compact)
        });
        let tpu_tiles = said(&TPU_TILES).and_then(|said| {
            let tiles = claim::decide(&said, TpuTiles::parse, TpuTiles::Off, &mut notes)?;
            if strategy.is_ok() && chosen != Strategy::Tpu && tiles.value == TpuTiles::On {
                notes.no_effect(&said, &format!("only the strategy tpu counts tiles, and this is {chosen}"));
            }
            Ok(tiles)
        });
        let huge_pages =
            said(&HUGE_PAGES).and_then(|said| claim::decide(&said, HugePages::parse, HugePages::Off, &mut notes));
        let engine = said(&ENGINE)
            .and_then(|said| claim::decide(&said, EngineRequest::parse, EngineRequest::DEFAULT, &mut notes));
        let cuda_driver = said(&CUDA_DRIVER)
            .and_then(|said| claim::decide(&said, CudaDriver::parse, CudaDriver::default(), &mut notes));
        let hip_driver =
            said(&HIP_DRIVER).and_then(|said| claim::decide(&said, HipDriver::parse, HipDriver::default(), &mut notes));
        let headroom =
            said(&HEADROOM).and_then(|said| claim::decide(&said, Headroom::parse, Headroom::DEFAULT, &mut notes));
        let gpu_scratch = said(&GPU_SCRATCH)
            .and_then(|said| claim::decide(&said, GpuScratch::parse, GpuScratch::DEFAULT, &mut notes));
        let pinned_limit = said(&PINNED_LIMIT)
            .and_then(|said| claim::decide(&said, PinnedLimit::parse, PinnedLimit::OfTheMachine, &mut notes));
        let devices =
            said(&DEVICES).and_then(|said| claim::decide(&said, values::parse_devices, NonZeroU32::MIN, &mut notes));
        let rewrite = said(&REWRITE).and_then(|said| claim::decide(&said, Rewrite::parse, Rewrite::On, &mut notes));
        let scratch = said(&SCRATCH)
            .and_then(|said| claim::decide(&said, Scratch::parse, Scratch::default_for(chosen), &mut notes));
        let zero_copy = said(&ZERO_COPY)
            .and_then(|said| claim::decide(&said, ZeroCopy::parse, ZeroCopy::default_for(chosen), &mut notes));
        let history = said(&HISTORY)
            .and_then(|said| claim::decide(&said, values::parse_history, values::DEFAULT_HISTORY, &mut notes));
        let oom_report =
            said(&OOM_REPORT).and_then(|said| claim::decide(&said, OomReport::parse, OomReport::OFF, &mut notes));
        let log = said(&LOG).and_then(|said| claim::decide(&said, LogFilter::parse, LogFilter::default(), &mut notes));
        notes.warnings.extend(table::unknown_variables(environment));
        let foreign = engine_options::foreign(options, &mut notes.warnings);
        let gpu_async_dispatch =
            environment.get(engine_options::ASYNC_DISPATCH).map(|value| value.to_string_lossy().into_owned());
        // A file of flags that cannot be read is an error of the setting that is looked for in it.
        let gpu_update_mode = environment
            .get("XLA_FLAGS")
            .and_then(|flags| xla_flags::value(flags, engine_options::UPDATE_MODE).ok().flatten());
        let claim::Notes { warnings, overridden } = notes;
        Self {
            strategy,
            limit,
            compact,
            tpu_tiles,
            huge_pages,
            engine,
            cuda_driver,
            hip_driver,
            headroom,
            gpu_scratch,
            pinned_limit,
            devices,
            rewrite,
            scratch,
            zero_copy,
            history,
            oom_report,
            log,
            warnings,
            overridden,
            foreign,
            gpu_async_dispatch,
            gpu_update_mode,
        }
    }

    fn settings(self) -> Result<Settings> {
        let errors: Vec<&str> = [
            self.strategy.as_ref().err(),
            self.limit.as_ref().err(),
            self.compact.as_ref().err(),
            self.tpu_tiles.as_ref().err(),
            self.huge_pages.as_ref().err(),
            self.engine.as_ref().err(),
            self.cuda_driver.as_ref().err(),
            self.hip_driver.as_ref().err(),
            self.headroom.as_ref().err(),
            self.gpu_scratch.as_ref().err(),
            self.pinned_limit.as_ref().err(),
            self.devices.as_ref().err(),
            self.rewrite.as_ref().err(),
            self.scratch.as_ref().err(),
            self.zero_copy.as_ref().err(),
            self.history.as_ref().err(),
            self.oom_report.as_ref().err(),
            self.log.as_ref().err(),
        ]
        .into_iter()
        .flatten()
        .map(|error| error.message.as_str())
        .collect();
        if !errors.is_empty() {
            return Err(Error::invalid_argument(errors.join("; ")));
        }
        Ok(Settings {
            strategy: self.strategy?,
            limit: self.limit?,
            compact: self.compact?,
            tpu_tiles: self.tpu_tiles?,
            huge_pages: self.huge_pages?,
            engine: self.engine?,
            cuda_driver: self.cuda_driver?,
            hip_driver: self.hip_driver?,
            headroom: self.headroom?,
            gpu_scratch: self.gpu_scratch?,
            pinned_limit: self.pinned_limit?,
            devices: self.devices?,
            rewrite: self.rewrite?,
            scratch: self.scratch?,
            zero_copy: self.zero_copy?,
            history: self.history?,
            oom_report: self.oom_report?,
            log: self.log?,
            warnings: self.warnings,
            overridden: self.overridden,
            foreign: self.foreign,
            gpu_async_dispatch: self.gpu_async_dispatch,
            gpu_update_mode: self.gpu_update_mode,
        })
    }
}

/// The member of `known` that a user who wrote `word` most likely meant, if one is near: one typing error, or two in five
/// letters of a longer word (Damerau-Levenshtein: a pair of exchanged letters is one error).
fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let far = (word.chars().count() * 2 / 5).max(1);
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&word, &name.to_ascii_lowercase()), name))
        .filter(|(distance, name)| *distance <= far && *distance < name.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// `; did you mean X?`, or nothing.
fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map(|name| format!("; did you mean {name}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
