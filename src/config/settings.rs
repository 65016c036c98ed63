//! The settings, each declared once: every name it goes by, its default, what is allowed, one line of explanation, and
//! how it is read.
//!
//! A new setting is one entry of the macro below, and a type in `values` where no type there will do. The entry becomes
//! a row of [`TABLE`], a field of [`Settings`], and a line of the log and of `pjrt-arena doctor`.

use std::num::NonZeroU32;

use crate::{
    config::{
        engine_only::EngineOnly,
        environment::{Environment, OptionValue},
        limit::{self, Limit},
        names,
        pinned_limit::PinnedLimit,
        precedence::{self, Notes},
        reading::{Context, beside, parsed},
        row::{Row, Setting, Source},
        share::{self, Share, ShareMin},
        spill::{SleepAfter, Spill},
        strategy,
        values::{
            self, Compact, CudaDriver, EngineRequest, GpuScratch, Headroom, HipDriver, HugePages, LogFilter, OomReport,
            Prefetch, Rewrite, Scratch, TpuTiles, ZeroCopy,
        },
    },
    error::{Error, Result},
    memory::Strategy,
};

use Source::{Environment as Var, Option as Opt, XlaFlag};

/// A setting as it is shown, whether it is valid or not.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) row: &'static Row,
    /// Its value and where that came from, or why it is not valid.
    pub(super) value: Result<(String, Source)>,
}

/// Declares the settings. Makes of each entry a static [`Row`], a field of [`Settings`], and what reads and shows it.
macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $row:ident, $field:ident: $type:ty = {
            names: $names:expr,
            default: $default:expr,
            allowed: $allowed:expr,
            doc: $text:expr,
            read: $read:expr,
        }
    )*) => {
        $(
            $(#[$doc])*
            pub static $row: Row = Row {
                name: stringify!($field), names: $names, default: $default, allowed: $allowed, doc: $text,
            };
        )*

        /// All settings, in the order in which they are shown.
        pub static TABLE: &[&Row] = &[$(&$row),*];

        /// Everything that a client is told to do.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $(
                $(#[$doc])*
                pub $field: Setting<$type>,
            )*
            /// What was said to no effect, for the user to read.
            pub warnings: Vec<String>,
            /// What was said validly and lost to a stronger level, as `NAME=value`.
            pub overridden: Vec<String>,
            /// What goes on to the engine, or is checked on its behalf.
            pub(super) engine_only: EngineOnly,
        }

        /// The settings before it is known whether all of them are valid, for the report that shows the invalid ones
        /// too.
        pub(super) struct Reading {
            $(pub(super) $field: Result<Setting<$type>>,)*
            pub(super) warnings: Vec<String>,
            pub(super) overridden: Vec<String>,
            engine_only: EngineOnly,
        }

        impl Reading {
            /// Reads all settings, in the order of the table.
            pub(super) fn new(environment: &Environment, options: &[(String, OptionValue)]) -> Self {
                let mut context = Context::default();
                $(
                    let given = precedence::gather(&$row, environment, options);
                    let $field: Result<Setting<$type>> = context.read(given, $read);
                )*
                let Notes { mut warnings, overridden } = context.notes;
                warnings.extend(names::unknown_variables(TABLE, environment));
                let engine_only = EngineOnly::read(TABLE, environment, options, &mut warnings);
                Self { $($field,)* warnings, overridden, engine_only }.shared()
            }

            pub(super) fn settings(self) -> Result<Settings> {
                let errors: Vec<&str> =
                    [$(self.$field.as_ref().err()),*].into_iter().flatten().map(|error| error.message.as_str()).collect();
                if !errors.is_empty() {
                    return Err(Error::invalid_argument(errors.join("; ")));
                }
                let Self { warnings, overridden, engine_only, .. } = self;
                Ok(Settings { $($field: self.$field?,)* warnings, overridden, engine_only })
            }

            /// Every setting, valid or not, in the order of the table.
            pub(super) fn shown(&self) -> Vec<Shown> {
                vec![$(Shown {
                    row: &$row,
                    value: self.$field.as_ref().map(Setting::shown).map_err(Clone::clone),
                }),*]
            }
        }

        impl Settings {
            /// Every setting with its value and source, in the order of the table.
            pub(super) fn shown(&self) -> Vec<(&'static Row, (String, Source))> {
                vec![$((&$row, self.$field.shown())),*]
            }
        }
    };
}

settings! {
    /// How the arena obtains space.
    STRATEGY, strategy: Strategy = {
        names: &[
            Opt("strategy"),
            Opt("allocator"),
            Opt("preallocate"),
            Var("PJRT_ARENA_STRATEGY"),
            Var("XLA_PYTHON_CLIENT_ALLOCATOR"),
            Var("XLA_PYTHON_CLIENT_PREALLOCATE"),
        ],
        default: "preallocate",
        allowed: "preallocate, growing, platform, tpu",
        doc: "One region at the first allocation, regions on demand, one allocation per buffer, or as a TPU: one region, \
              with room for programs' scratch.",
        read: |given, context| {
            let strategy = strategy::decide(given, &mut context.notes);
            context.decided = strategy.as_ref().ok().map(|strategy| strategy.value);
            strategy
        },
    }

    /// How much memory one device may use; [`Setting::resolve`] turns it into bytes.
    LIMIT, limit: Limit = {
        names: &[
            Opt("limit"),
            Opt("memory_fraction"),
            Var("PJRT_ARENA_LIMIT"),
            Var("XLA_CLIENT_MEM_FRACTION"),
            Var("XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ],
        default: "75%",
        allowed: limit::ALLOWED,
        doc: "Memory of one device. CPU devices share the machine: a percentage is divided among them.",
        read: |given, context| {
            limit::refuse_both_fractions(given)?;
            let given = limit::without_overridden_shares(given, &mut context.notes);
            parsed(Limit::parse, |_| Limit::DEFAULT)(&given, context)
        },
    }

    /// When live buffers are moved, as it was said; [`Settings::compaction`] is what that comes to.
    COMPACT, compact: Compact = {
        names: &[Opt("compact"), Var("PJRT_ARENA_COMPACT")],
        default: "off",
        allowed: "on, off, always",
        doc: "Whether buffers are moved to make room before memory counts as exhausted. Default: on for tpu and \
              for a growing device that is shared, off for the others. platform has nothing to move in. always, for \
              tests: before each allocation too, at any price.",
        read: |given, context| {
            let compact = parsed(Compact::parse, Compact::default_for)(given, context)?;
            if context.strategy() == Strategy::Platform && compact.value != Compact::Off {
                let why = "the strategy platform has no region in which buffers could be moved";
                context.notes.no_effect(given, why);
            }
            Ok(compact)
        },
    }

    /// The group of processes that share one budget for each device.
    SHARE, share: Share = {
        names: &[Opt("share"), Var("PJRT_ARENA_SHARE")],
        default: "off",
        allowed: "off, or a group's name: 1 to 64 letters, digits, dots, dashes and underscores, no dot first",
        doc: "Processes of one user with the same name share the limit of each device: who needs more gets what others \
              do not use. With the strategies growing, which is the default then, and platform.",
        read: |given, context| {
            let share = parsed(Share::parse, |_| Share(None))(given, context);
            context.share = share.as_ref().ok().map(|share| share.value.clone());
            share
        },
    }

    /// What no other process of the group takes from this one.
    SHARE_MIN, share_min: ShareMin = {
        names: &[Opt("share_min"), Var("PJRT_ARENA_SHARE_MIN")],
        default: "0",
        allowed: "bytes per device (1GiB, 0)",
        doc: "How much of each device the others of the group leave to this process in any case.",
        read: beside(Context::without_share, ShareMin::parse, || ShareMin::NONE),
    }

    /// This process's part of what is not guaranteed, beside those of the group's others.
    SHARE_WEIGHT, share_weight: NonZeroU32 = {
        names: &[Opt("share_weight"), Var("PJRT_ARENA_SHARE_WEIGHT")],
        default: "100",
        allowed: "a whole number from 1 to 1000",
        doc: "How much of the limit this process may keep beyond its minimum when all of the group need more, \
              beside the weights of the others.",
        read: beside(Context::without_share, share::parse_weight, || share::DEFAULT_WEIGHT),
    }

    /// Where arrays go that no program uses, to make room.
    SPILL, spill: Spill = {
        names: &[Opt("spill"), Var("PJRT_ARENA_SPILL")],
        default: "off",
        allowed: "off, host, always, or the path of a folder, with a /",
        doc: "Whether arrays that no program uses go to memory of the host, beyond the limit, or to files of a folder, \
              where nothing else makes room; they come back before a program that needs them. GPUs spill to pinned \
              memory of the host. always, for tests: to memory of the host, before each allocation too.",
        read: |given, context| {
            let spill = parsed(Spill::parse, |_| Spill::Off)(given, context);
            context.spill = spill.as_ref().ok().map(|spill| spill.value.clone());
            spill
        },
    }

    /// How much memory of the host the spilled arrays of one device may take; [`Setting::resolve`] makes bytes of it.
    SPILL_LIMIT, spill_limit: Limit = {
        names: &[Opt("spill_limit"), Var("PJRT_ARENA_SPILL_LIMIT")],
        default: "25%",
        allowed: limit::ALLOWED,
        doc: "Memory for the spilled arrays of one device. A percentage is one of the machine's memory, or of what the \
              folder's disk has left, divided among the devices.",
        read: beside(Context::without_spill, Limit::parse, || Limit::SPILL_DEFAULT),
    }

    /// Whether spilled arrays come back before the launch that is expected to need them.
    PREFETCH, prefetch: Prefetch = {
        names: &[Opt("prefetch"), Var("PJRT_ARENA_PREFETCH")],
        default: "off",
        allowed: "on, off",
        doc: "Whether a thread brings spilled arrays back for the next launches, as the past tells them, in the \
              place of arrays that are used later, or of nothing. Has an effect with spill only.",
        read: beside(Context::without_spill, Prefetch::parse, || Prefetch::Off),
    }

    /// When a device that does nothing spills all its arrays and gives its memory back.
    SLEEP_AFTER, sleep_after: SleepAfter = {
        names: &[Opt("sleep_after"), Var("PJRT_ARENA_SLEEP_AFTER")],
        default: "off",
        allowed: "off, or whole seconds from 1 to 86400",
        doc: "After so long without a program or a new array a device spills all arrays and gives its memory back to \
              the system; the next program brings back what it needs. Has an effect with spill only.",
        read: beside(Context::without_spill, SleepAfter::parse, || SleepAfter(None)),
    }

    /// Whether arrays are counted as a TPU would lay them out, as it was said; see [`Settings::counts_tiles`].
    TPU_TILES, tpu_tiles: TpuTiles = {
        names: &[Opt("tpu_tiles"), Var("PJRT_ARENA_TPU_TILES")],
        default: "off",
        allowed: "on, off",
        doc: "Whether the strategy tpu reserves for each array what a TPU's tiled layout takes, padding included.",
        read: |given, context| {
            let tiles = parsed(TpuTiles::parse, |_| TpuTiles::Off)(given, context)?;
            if let Some(chosen) = context.decided.filter(|&chosen| chosen != Strategy::Tpu)
                && tiles.value == TpuTiles::On
            {
                context.notes.no_effect(given, &format!("only the strategy tpu counts tiles, and this is {chosen}"));
            }
            Ok(tiles)
        },
    }

    /// Whether large regions ask for huge pages.
    HUGE_PAGES, huge_pages: HugePages = {
        names: &[Opt("huge_pages"), Var("PJRT_ARENA_HUGE_PAGES")],
        default: "off",
        allowed: "on, off",
        doc: "Whether memory asks Linux for huge pages (2MiB): its first use costs a fraction, but can stall where the kernel, \
              or the host of a virtual machine, has to find room.",
        read: parsed(HugePages::parse, |_| HugePages::Off),
    }

    /// Which engine to load.
    ENGINE, engine: EngineRequest = {
        names: &[Opt("engine"), Var("PJRT_ARENA_ENGINE")],
        default: "cpu",
        allowed: "cpu, cuda, rocm, or the path of a PJRT plugin library",
        doc: "XLA's own plugin, which compiles and runs programs; a name means the installed wheel.",
        read: parsed(EngineRequest::parse, |_| EngineRequest::DEFAULT),
    }

    /// The file of NVIDIA's driver library.
    CUDA_DRIVER, cuda_driver: CudaDriver = {
        names: &[Opt("cuda_driver"), Var("PJRT_ARENA_CUDA_DRIVER")],
        default: "libcuda.so.1",
        allowed: "a library's file name, or its path",
        doc: "NVIDIA's driver library, which memory of a CUDA engine's devices is taken from.",
        read: parsed(CudaDriver::parse, |_| CudaDriver::default()),
    }

    /// The file of AMD's driver library.
    HIP_DRIVER, hip_driver: HipDriver = {
        names: &[Opt("hip_driver"), Var("PJRT_ARENA_HIP_DRIVER")],
        default: "libamdhip64.so",
        allowed: "a library's file name, or its path",
        doc: "AMD's driver library, which memory of a ROCm engine's devices is taken from: by default libamdhip64.so.7 or .6, the \
              one that the engine has loaded first.",
        read: parsed(HipDriver::parse, |_| HipDriver::default()),
    }

    /// What arrays and programs' scratch leave free of a GPU's memory.
    HEADROOM, headroom: Headroom = {
        names: &[Opt("headroom"), Var("PJRT_ARENA_HEADROOM")],
        default: "512.00MiB",
        allowed: "bytes per device (1GiB, 0)",
        doc: "What arrays and programs' scratch leave free of a GPU's memory, for what asks for none of ours: cuDNN, NCCL, CUDA \
              graphs, autotuning.",
        read: parsed(Headroom::parse, |_| Headroom::DEFAULT),
    }

    /// What programs' scratch has of a GPU's limit where the engine has no memory pools.
    GPU_SCRATCH, gpu_scratch: GpuScratch = {
        names: &[Opt("gpu_scratch"), Var("PJRT_ARENA_GPU_SCRATCH")],
        default: "50%",
        allowed: "a share of the limit above 0%, below 100%, or bytes per device, at least 2MiB (8GiB)",
        doc: "What programs' scratch has of a GPU's limit for good where the engine has no memory pools (AMD's GPUs, some of \
              NVIDIA's), and arrays never; elsewhere both share the limit as they need it.",
        read: parsed(GpuScratch::parse, |_| GpuScratch::DEFAULT),
    }

    /// How much memory of the host may be pinned for the arrays of one GPU; [`Setting::resolve`] turns it into bytes.
    PINNED_LIMIT, pinned_limit: PinnedLimit = {
        names: &[Opt("pinned_limit"), Var("PJRT_ARENA_PINNED_LIMIT"), Var("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB")],
        default: "64GiB or less",
        allowed: "bytes per GPU, at least 1MiB (16GiB)",
        doc: "Memory of the host that is pinned for arrays in pinned_host. Default: 64GiB for each GPU, as XLA has it, but \
              half of the machine's memory at most for all of them.",
        read: parsed(PinnedLimit::parse, |_| PinnedLimit::OfTheMachine),
    }

    /// How many devices a CPU engine shows. Engines of real devices count for themselves.
    DEVICES, devices: NonZeroU32 = {
        names: &[
            Opt("devices"),
            Opt("cpu_device_count"),
            Var("PJRT_ARENA_DEVICES"),
            XlaFlag("xla_force_host_platform_device_count"),
        ],
        default: "1",
        allowed: "a whole number from 1 to 4096",
        doc: "How many devices a CPU engine shows; engines of real devices count for themselves.",
        read: parsed(values::parse_devices, |_| NonZeroU32::MIN),
    }

    /// Whether results are placed in our memory by rewriting programs (destination passing).
    REWRITE, rewrite: Rewrite = {
        names: &[Opt("rewrite"), Var("PJRT_ARENA_REWRITE")],
        default: "on",
        allowed: "on, off",
        doc: "Destination passing: programs are rewritten so that XLA writes results into the arena.",
        read: parsed(Rewrite::parse, |_| Rewrite::On),
    }

    /// Where programs' scratch lies.
    SCRATCH, scratch: Scratch = {
        names: &[Opt("scratch"), Var("PJRT_ARENA_SCRATCH")],
        default: "warm",
        allowed: "warm, system",
        doc: "Where a CPU engine takes programs' scratch from: memory that stays warm, or malloc. Default: system for \
              platform, warm for the others.",
        read: parsed(Scratch::parse, Scratch::default_for),
    }

    /// Whether arrays of the host are used in place, without a copy.
    ZERO_COPY, zero_copy: ZeroCopy = {
        names: &[Opt("zero_copy"), Var("PJRT_ARENA_ZERO_COPY")],
        default: "on",
        allowed: "on, off",
        doc: "Whether a CPU device uses NumPy arrays of 64 KiB and more, 64-byte aligned and dense, where they lie, as JAX's \
              CPU backend does; such arrays are not in memory_stats(). Default: off for tpu, on for the others.",
        read: parsed(ZeroCopy::parse, ZeroCopy::default_for),
    }

    /// How many events each device remembers.
    HISTORY, history: usize = {
        names: &[Opt("history"), Var("PJRT_ARENA_HISTORY")],
        default: "65536",
        allowed: "a whole number of events from 0 to 1000000; 0 is off",
        doc: "How many of the arena's last events each device remembers for snapshots, at 48 bytes each.",
        read: parsed(values::parse_history, |_| values::DEFAULT_HISTORY),
    }

    /// Where a report goes when memory is exhausted.
    OOM_REPORT, oom_report: OomReport = {
        names: &[Opt("oom_report"), Var("PJRT_ARENA_OOM_REPORT")],
        default: "off",
        allowed: "off, or a path that ends in .html, .json, .perfetto.json or .pickle",
        doc: "A file that a snapshot is written to when memory is exhausted; at most one in 10 seconds, each in the place of \
              the one before.",
        read: parsed(OomReport::parse, |_| OomReport::OFF),
    }

    /// What is logged.
    LOG, log: LogFilter = {
        names: &[Opt("log"), Var("PJRT_ARENA_LOG")],
        default: "warn",
        allowed: "off, error, warn, info, debug, trace, or a filter such as warn,pjrt_arena::memory=debug",
        doc: "What goes to standard error. The first client of a process decides.",
        read: parsed(LogFilter::parse, |_| LogFilter::default()),
    }
}

impl Reading {
    /// With what changes where processes share their devices.
    fn shared(mut self) -> Self {
        if !self.share.as_ref().is_ok_and(|share| share.value.0.is_some()) {
            return self;
        }
        self.strategy = self.strategy.and_then(share::strategy);
        if let (Ok(strategy), Ok(compact)) = (&self.strategy, &mut self.compact)
            && (strategy.value, compact.source) == (Strategy::Growing, Source::Default)
        {
            // Others can have what holes take only when those are joined.
            compact.value = Compact::On;
        }
        self
    }
}

impl Settings {
    /// Reads all settings.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a value that cannot be read, is out of range or contradicts another of the same level;
    /// one clause for each setting that is wrong.
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

/// What is needed before there is a client: which engine to load, and what to log while looking for it. Whatever else
/// is wrong with the settings is said when a client is created.
///
/// # Errors
/// `INVALID_ARGUMENT` for an engine that cannot be read.
pub fn before_client(environment: &Environment) -> Result<(Setting<EngineRequest>, LogFilter)> {
    let reading = Reading::new(environment, &[]);
    Ok((reading.engine?, reading.log.map(|log| log.value).unwrap_or_default()))
}
