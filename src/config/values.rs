//! The types of the settings whose names all take the same kind of text, and how that text is read.

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bytesize::ByteSize;

use crate::{
    config::{
        limit::{self, Fraction, Limit},
        names::did_you_mean,
        precedence::Given,
        row::Setting,
    },
    error::{Error, Result},
    memory::Strategy,
    report::snapshot::Format,
};

/// The kinds of engine that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// XLA:CPU.
    Cpu,
    /// XLA:GPU for CUDA.
    Cuda,
    /// XLA:GPU for ROCm.
    Rocm,
}

impl EngineKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Cuda, Self::Rocm];

    /// The name in settings; also the platform name that such an engine reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
        }
    }

    /// The kind called `name`, in any case of letters.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which engine to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineRequest {
    /// The installed engine of this kind.
    Installed(EngineKind),
    /// The library at this path.
    Path(PathBuf),
}

impl EngineRequest {
    pub(super) const DEFAULT: Self = Self::Installed(EngineKind::Cpu);

    /// A text with a `/` or with a library's suffix is a path; any other has to be a name.
    pub(super) fn parse(given: &Given) -> Result<Self> {
        let text = given.text();
        if let Some(kind) = EngineKind::from_name(&text) {
            return Ok(Self::Installed(kind));
        }
        if text.contains('/') || text.ends_with(".so") {
            return Ok(Self::Path(PathBuf::from(&given.raw)));
        }
        // Near to a name's letters, and no typing error.
        let hint = match &*text.to_ascii_lowercase() {
            "gpu" => "; a GPU's engine is cuda (NVIDIA) or rocm (AMD)".to_owned(),
            "tpu" => "; as a TPU manages memory is a strategy: PJRT_ARENA_STRATEGY=tpu".to_owned(),
            _ => did_you_mean(&text, EngineKind::ALL.map(EngineKind::name)),
        };
        Err(given.refuse(&format!("{}{hint}", given.allowed)))
    }
}

impl fmt::Display for EngineRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Installed(kind) => write!(f, "{kind}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Most devices that a CPU engine is asked for: the size of the largest machines that people imitate with them, and far
/// below what a byte count in the wrong variable would ask for.
const MOST_DEVICES: u32 = 4096;

pub(super) fn parse_devices(given: &Given) -> Result<NonZeroU32> {
    let count = given.text().parse::<NonZeroU32>().ok().filter(|count| count.get() <= MOST_DEVICES);
    count.ok_or_else(|| given.refuse(given.allowed))
}

/// Events remembered by default: 3 MiB for each device, touched as they come.
pub const DEFAULT_HISTORY: usize = 1 << 16;
/// Most events: 46 MiB, and far below what block numbers in reports bear.
const MOST_HISTORY: usize = 1_000_000;

pub(super) fn parse_history(given: &Given) -> Result<usize> {
    let count = given.text().parse::<usize>().ok().filter(|&count| count <= MOST_HISTORY);
    count.ok_or_else(|| given.refuse(given.allowed))
}

/// Where a report goes when memory is exhausted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomReport(Option<PathBuf>);

impl OomReport {
    pub(super) const OFF: Self = Self(None);

    /// The file, if there is to be one.
    pub fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }

    pub(super) fn parse(given: &Given) -> Result<Self> {
        if ["off", "false", "0"].contains(&given.text().to_ascii_lowercase().as_str()) {
            return Ok(Self::OFF);
        }
        let path = PathBuf::from(&given.raw);
        if Format::of(&path).is_err() {
            return Err(given.refuse(given.allowed));
        }
        // Found out now, not when memory ends hours later.
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                Err(given.refuse(&format!("a file in a folder that exists, and {} is none", folder.display())))
            }
            _ => Ok(Self(Some(path))),
        }
    }
}

impl fmt::Display for OomReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => write!(f, "{}", path.display()),
            None => f.write_str("off"),
        }
    }
}

/// Settings that are on or off, each with a type of its own.
macro_rules! on_or_off {
    ($(#[$doc:meta])* $name:ident, $(#[$on:meta])* On, $(#[$off:meta])* Off) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $(#[$on])*
            On,
            $(#[$off])*
            Off,
        }

        impl $name {
            pub(super) fn parse(given: &Given) -> Result<Self> {
                match given.text().to_ascii_lowercase().as_str() {
                    "on" | "true" | "1" => Ok(Self::On),
                    "off" | "false" | "0" => Ok(Self::Off),
                    _ => Err(given.refuse(given.allowed)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    Self::On => "on",
                    Self::Off => "off",
                })
            }
        }
    };
}

on_or_off! {
    /// Whether programs are rewritten for destination passing.
    Rewrite,
    /// Programs are rewritten where the rules allow.
    On,
    /// Every program goes to the engine as it came.
    Off
}

on_or_off! {
    /// Whether arrays of the host are used in place, without a copy.
    ZeroCopy,
    /// Those that the caller keeps unchanged, and that the engine can use as they are.
    On,
    /// Every array is copied into the arena.
    Off
}

impl ZeroCopy {
    /// The default. A TPU cannot use the host's memory: under its strategy every array counts.
    pub(super) fn default_for(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Tpu => Self::Off,
            Strategy::Preallocate | Strategy::Growing | Strategy::Platform => Self::On,
        }
    }
}

/// When live buffers are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compact {
    /// To make room, before memory counts as exhausted.
    On,
    /// Before each allocation, needed or not, and those of a few bytes too. For tests: a program that holds an address
    /// which it should not shows soon.
    Always,
    /// Never: every buffer stays where it was put.
    Off,
}

impl fmt::Display for Compact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Always => "always",
            Self::Off => "off",
        })
    }
}

impl Compact {
    pub(super) fn parse(given: &Given) -> Result<Self> {
        match given.text().to_ascii_lowercase().as_str() {
            "on" | "true" | "1" => Ok(Self::On),
            "always" => Ok(Self::Always),
            "off" | "false" | "0" => Ok(Self::Off),
            _ => Err(given.refuse(given.allowed)),
        }
    }

    /// The default: a TPU's runtime compacts (XLA, `docs/errors/error_0100.md`), XLA's
    /// allocators for other devices never do.
    pub(super) fn default_for(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Tpu => Self::On,
            Strategy::Preallocate | Strategy::Growing | Strategy::Platform => Self::Off,
        }
    }
}

on_or_off! {
    /// Whether spilled arrays come back before the launch that needs them.
    Prefetch,
    /// A thread brings them back for the next launches.
    On,
    /// Each launch brings its own back.
    Off
}

on_or_off! {
    /// Whether arrays are counted as a TPU would lay them out.
    TpuTiles,
    /// Each array takes what its tiled layout takes on a TPU ([`crate::memory::tiles`]).
    On,
    /// Each array takes its own bytes.
    Off
}

/// Where a CPU engine takes programs' scratch from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scratch {
    /// Memory that stays warm ([`crate::engine::scratch`]).
    Warm,
    /// The system's malloc.
    System,
}

impl Scratch {
    pub(super) fn parse(given: &Given) -> Result<Self> {
        match given.text().to_ascii_lowercase().as_str() {
            "warm" => Ok(Self::Warm),
            "system" => Ok(Self::System),
            _ => Err(given.refuse(given.allowed)),
        }
    }

    /// The default: a user who chose `platform` wants memory to be released at once.
    pub(super) fn default_for(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Platform => Self::System,
            Strategy::Preallocate | Strategy::Growing | Strategy::Tpu => Self::Warm,
        }
    }
}

impl fmt::Display for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "warm",
            Self::System => "system",
        })
    }
}

on_or_off! {
    /// Whether large regions ask for huge pages.
    HugePages,
    /// Regions of 2 MiB and more ask for them ([`crate::device::host`]).
    On,
    /// The kernel does what it does for everybody.
    Off
}

/// Files of drivers' libraries, for the dynamic loader, each with a type of its own.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident, $(#[$default:meta])* $file:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// The file's name or path.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub(super) fn parse(given: &Given) -> Result<Self> {
                let text = given.text();
                // The loader would open this program itself for an empty name, and read up to the NUL.
                if text.trim().is_empty() || text.contains('\0') { Err(given.refuse(given.allowed)) } else { Ok(Self(text)) }
            }
        }

        impl Default for $name {
            $(#[$default])*
            fn default() -> Self {
                Self($file.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

library! {
    /// The file of NVIDIA's driver library.
    CudaDriver,
    /// What NVIDIA's driver installs for programs; `libcuda.so` comes with development packages only.
    "libcuda.so.1"
}

library! {
    /// The file of AMD's driver library, HIP's.
    HipDriver,
    /// Under this name the versions are looked for that ROCm 7 and 6 install, and then a development package's.
    "libamdhip64.so"
}

/// Memory of a GPU that arrays and programs' scratch leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom(crate::units::Bytes);

impl Headroom {
    /// What cuDNN and cuBLAS take for handles and workspaces of their own comes to some hundred MiB (jax-ml/jax#8506
    /// asks for such a setting).
    pub const DEFAULT: Self = Self(crate::units::Bytes::mib(512));

    /// The number of bytes.
    pub fn bytes(self) -> crate::units::Bytes {
        self.0
    }

    pub(super) fn parse(given: &Given) -> Result<Self> {
        let bytes = given.text().parse::<ByteSize>().map_err(|_| given.refuse(given.allowed))?;
        Ok(Self(crate::units::Bytes::new(bytes.as_u64())))
    }
}

impl fmt::Display for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&limit::show(self.0.get()))
    }
}

/// What programs' scratch has of a GPU's limit for good, where the engine cannot take it from memory that arrays free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuScratch(Limit);

impl GpuScratch {
    /// Every program whose arrays and scratch both fit half of the limit runs; any other share runs some that half does
    /// not, and fails as many that half runs. Scratch holds the activations of a training step, so a small share would
    /// fail what people do.
    pub const DEFAULT: Self = Self(Limit::Fraction(Fraction::HALF));

    /// What the engine's allocator deals in (XLA `gpu_helpers.cc` rounds its size to it).
    pub const UNIT: crate::units::Bytes = crate::units::Bytes::mib(2);

    /// The bytes of a `limit`, whole units of [`Self::UNIT`].
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where that, or what it leaves for arrays, is less than a unit.
    pub fn of(setting: &Setting<Self>, limit: crate::units::Bytes) -> Result<crate::units::Bytes> {
        let wanted = match setting.value.0 {
            Limit::Bytes(bytes) => crate::units::Bytes::new(bytes),
            Limit::Fraction(share) => crate::units::Bytes::new((limit.get() as f64 * share.get()) as u64),
        };
        let bytes = wanted.round_down(Self::UNIT);
        let most = limit.saturating_sub(Self::UNIT);
        if bytes < Self::UNIT || bytes > most {
            return Err(Error::invalid_argument(format!(
                "gpu_scratch={setting} is {bytes} of the limit of {limit} of a GPU on which the engine has no memory pools; allowed: {} to \
                 {most}",
                Self::UNIT
            )));
        }
        Ok(bytes)
    }

    pub(super) fn parse(given: &Given) -> Result<Self> {
        let refused = || given.refuse(given.allowed);
        match Limit::from_text(&given.text()) {
            Some(Limit::Fraction(share)) if share.get() < 1.0 => Ok(Self(Limit::Fraction(share))),
            Some(Limit::Bytes(bytes)) if bytes >= Self::UNIT.get() => Ok(Self(Limit::Bytes(bytes))),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for GpuScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A filter in env_logger's syntax that has been looked through: `LEVEL`, `TARGET`, `TARGET=LEVEL`, separated by
/// commas.
///
/// env_logger itself takes a misspelt level for the name of a module and then logs nothing; here a target has to lie in
/// this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn parse(given: &Given) -> Result<Self> {
        let text = given.text();
        match text.split(',').map(str::trim).find(|part| !is_directive(part)) {
            None => Ok(Self(text)),
            Some(part) => {
                const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
                let word = part.rsplit('=').next().unwrap_or(part);
                Err(given.refuse(&format!("{}{}", given.allowed, did_you_mean(word, LEVELS))))
            }
        }
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("warn".to_owned())
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_directive(part: &str) -> bool {
    let is_level = |text: &str| log::LevelFilter::from_str(text).is_ok();
    let is_target = |text: &str| text == "pjrt_arena" || text.starts_with("pjrt_arena::");
    match part.split_once('=') {
        Some((target, level)) => is_target(target.trim()) && is_level(level.trim()),
        None => is_level(part) || is_target(part),
    }
}
