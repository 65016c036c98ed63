//! The one table of settings. Whatever reads, explains or lists settings goes through it.

use crate::config::{
    Environment,
    Source::{self, Environment as Var, Option as Opt, XlaFlag},
    nearest,
};

/// One setting.
#[derive(Debug)]
pub struct Row {
    /// Its own name, which is also its client option.
    pub name: &'static str,
    /// Every name under which a value may come, strongest first: client options, our variable, XLA's.
    pub names: &'static [Source],
    /// The value when nobody says anything, about this setting or another.
    pub default: &'static str,
    /// What is allowed, under our own names.
    pub allowed: &'static str,
    /// One line that explains it.
    pub doc: &'static str,
}

/// How the arena obtains space.
pub static STRATEGY: Row = Row {
    name: "strategy",
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
};

/// How much memory one device may use.
pub static LIMIT: Row = Row {
    name: "limit",
    names: &[
        Opt("limit"),
        Opt("memory_fraction"),
        Var("PJRT_ARENA_LIMIT"),
        Var("XLA_CLIENT_MEM_FRACTION"),
        Var("XLA_PYTHON_CLIENT_MEM_FRACTION"),
    ],
    default: "75%",
    allowed: "bytes per device, at least 1MiB (8GiB, 500MB, 1048576), or a share above 0%, at most 100%",
    doc: "Memory of one device. CPU devices share the machine: a percentage is divided among them.",
};

/// Whether live buffers are moved to make room.
pub static COMPACT: Row = Row {
    name: "compact",
    names: &[Opt("compact"), Var("PJRT_ARENA_COMPACT")],
    default: "off",
    allowed: "on, off, always",
    doc: "Whether buffers are moved to make room before memory counts as exhausted. Without a word: on for tpu, off for \
          the others. platform has nothing to move in. always, for tests: before each allocation too, at any price.",
};

/// Whether arrays are counted as a TPU would lay them out.
pub static TPU_TILES: Row = Row {
    name: "tpu_tiles",
    names: &[Opt("tpu_tiles"), Var("PJRT_ARENA_TPU_TILES")],
    default: "off",
    allowed: "on, off",
    doc: "Whether the strategy tpu reserves for each array what a TPU's tiled layout takes, padding included.",
};

/// Whether large regions ask for huge pages.
pub static HUGE_PAGES: Row = Row {
    name: "huge_pages",
    names: &[Opt("huge_pages"), Var("PJRT_ARENA_HUGE_PAGES")],
    default: "off",
    allowed: "on, off",
    doc: "Whether memory asks Linux for huge pages (2MiB): its first use costs a fraction, but can stall where the kernel, \
          or the host of a virtual machine, has to find room.",
};

/// Which engine to load.
pub static ENGINE: Row = Row {
    name: "engine",
    names: &[Opt("engine"), Var("PJRT_ARENA_ENGINE")],
    default: "cpu",
    allowed: "cpu, cuda, rocm, or the path of a PJRT plugin library",
    doc: "XLA's own plugin, which compiles and runs programs; a name means the installed wheel.",
};

/// NVIDIA's driver.
pub static CUDA_DRIVER: Row = Row {
    name: "cuda_driver",
    names: &[Opt("cuda_driver"), Var("PJRT_ARENA_CUDA_DRIVER")],
    default: "libcuda.so.1",
    allowed: "a library's file name, or its path",
    doc: "NVIDIA's driver library, which memory of a CUDA engine's devices is taken from.",
};

/// AMD's driver.
pub static HIP_DRIVER: Row = Row {
    name: "hip_driver",
    names: &[Opt("hip_driver"), Var("PJRT_ARENA_HIP_DRIVER")],
    default: "libamdhip64.so",
    allowed: "a library's file name, or its path",
    doc: "AMD's driver library, which memory of a ROCm engine's devices is taken from: by default libamdhip64.so.7 or .6, the \
          one that the engine has loaded first.",
};

/// What programs' scratch leaves free on a GPU.
pub static HEADROOM: Row = Row {
    name: "headroom",
    names: &[Opt("headroom"), Var("PJRT_ARENA_HEADROOM")],
    default: "512.00MiB",
    allowed: "bytes per device (1GiB, 0)",
    doc: "What arrays and programs' scratch leave free of a GPU's memory, for what asks for none of ours: cuDNN, NCCL, CUDA \
          graphs, autotuning.",
};

/// What programs' scratch has of a GPU's limit for good.
pub static GPU_SCRATCH: Row = Row {
    name: "gpu_scratch",
    names: &[Opt("gpu_scratch"), Var("PJRT_ARENA_GPU_SCRATCH")],
    default: "50%",
    allowed: "a share of the limit above 0%, below 100%, or bytes per device, at least 2MiB (8GiB)",
    doc: "What programs' scratch has of a GPU's limit for good where the engine has no memory pools (AMD's GPUs, some of \
          NVIDIA's), and arrays never; elsewhere both share the limit as they need it.",
};

/// How much memory of the host may be pinned for arrays.
pub static PINNED_LIMIT: Row = Row {
    name: "pinned_limit",
    names: &[Opt("pinned_limit"), Var("PJRT_ARENA_PINNED_LIMIT"), Var("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB")],
    default: "64GiB or less",
    allowed: "bytes per GPU, at least 1MiB (16GiB)",
    doc: "Memory of the host that is pinned for arrays in pinned_host. Without a word: 64GiB for each GPU, as XLA has it, but \
          half of the machine's memory at most for all of them.",
};

/// How many devices a CPU engine shows.
pub static DEVICES: Row = Row {
    name: "devices",
    names: &[
        Opt("devices"),
        Opt("cpu_device_count"),
        Var("PJRT_ARENA_DEVICES"),
        XlaFlag("xla_force_host_platform_device_count"),
    ],
    default: "1",
    allowed: "a whole number from 1 to 4096",
    doc: "How many devices a CPU engine shows; engines of real devices count for themselves.",
};

/// Whether programs are rewritten for destination passing.
pub static REWRITE: Row = Row {
    name: "rewrite",
    names: &[Opt("rewrite"), Var("PJRT_ARENA_REWRITE")],
    default: "on",
    allowed: "on, off",
    doc: "Destination passing: programs are rewritten so that XLA writes results into the arena.",
};

/// Where programs' scratch lies.
pub static SCRATCH: Row = Row {
    name: "scratch",
    names: &[Opt("scratch"), Var("PJRT_ARENA_SCRATCH")],
    default: "warm",
    allowed: "warm, system",
    doc: "Where a CPU engine takes programs' scratch from: memory that stays warm, or malloc. Without a word: system for \
          platform, warm for the others.",
};

/// How many events are remembered.
pub static HISTORY: Row = Row {
    name: "history",
    names: &[Opt("history"), Var("PJRT_ARENA_HISTORY")],
    default: "65536",
    allowed: "a whole number of events from 0 to 1000000; 0 is off",
    doc: "How many of the arena's last events each device remembers for snapshots, at 48 bytes each.",
};

/// Where a report of an allocation that failed goes.
pub static OOM_REPORT: Row = Row {
    name: "oom_report",
    names: &[Opt("oom_report"), Var("PJRT_ARENA_OOM_REPORT")],
    default: "off",
    allowed: "off, or a path that ends in .html, .json, .perfetto.json or .pickle",
    doc: "A file that a snapshot is written to when memory is exhausted; at most one in 10 seconds, each in the place of \
          the one before.",
};

/// What is logged.
pub static LOG: Row = Row {
    name: "log",
    names: &[Opt("log"), Var("PJRT_ARENA_LOG")],
    default: "warn",
    allowed: "off, error, warn, info, debug, trace, or a filter such as warn,pjrt_arena::memory=debug",
    doc: "What goes to standard error. The first client of a process decides.",
};

/// Whether arrays of the host are used where they lie.
pub static ZERO_COPY: Row = Row {
    name: "zero_copy",
    names: &[Opt("zero_copy"), Var("PJRT_ARENA_ZERO_COPY")],
    default: "on",
    allowed: "on, off",
    doc: "Whether a CPU device uses NumPy arrays of 64 KiB and more, 64-byte aligned and dense, where they lie, as JAX's \
          CPU backend does; such arrays are not in memory_stats(). Without a word: off for tpu, on for the others.",
};

/// All settings, in the order in which they are shown.
pub static TABLE: [&Row; 18] = [
    &STRATEGY,
    &LIMIT,
    &COMPACT,
    &TPU_TILES,
    &HUGE_PAGES,
    &ENGINE,
    &CUDA_DRIVER,
    &HIP_DRIVER,
    &HEADROOM,
    &GPU_SCRATCH,
    &PINNED_LIMIT,
    &DEVICES,
    &REWRITE,
    &SCRATCH,
    &ZERO_COPY,
    &HISTORY,
    &OOM_REPORT,
    &LOG,
];

/// Variables that carry our prefix and are read elsewhere: the Python package finds this library by the first.
const READ_ELSEWHERE: [&str; 7] = [
    "PJRT_ARENA_LIBRARY_PATH",
    "PJRT_ARENA_PLATFORM_TAG",
    "PJRT_ARENA_PREBUILT",
    "PJRT_ARENA_TEST_CHILD",
    "PJRT_ARENA_TEST_CUDA_ENGINE",
    "PJRT_ARENA_TEST_ENGINE",
    "PJRT_ARENA_TEST_LIBRARY",
];

/// What our variables begin with.
const PREFIX: &str = "PJRT_ARENA_";

/// Every variable with our prefix that means something.
fn known_variables() -> impl Iterator<Item = &'static str> {
    let ours = TABLE.iter().flat_map(|row| row.names).filter_map(|name| match name {
        Var(name) if name.starts_with(PREFIX) => Some(*name),
        _ => None,
    });
    ours.chain(READ_ELSEWHERE)
}

/// Whether `name` is a client option of ours.
pub(super) fn is_our_option(name: &str) -> bool {
    our_options().any(|ours| ours == name)
}

/// The client options that we read.
pub(super) fn our_options() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|row| row.names).filter_map(|name| match name {
        Opt(name) => Some(*name),
        _ => None,
    })
}

/// A warning for each variable with our prefix that means nothing to us.
pub(super) fn unknown_variables(environment: &Environment) -> Vec<String> {
    // The prefix is common to all names and would drown the difference.
    let bare = |name: &'static str| name.trim_start_matches(PREFIX);
    environment
        .names()
        .filter(|name| !known_variables().any(|known| known == *name))
        .filter_map(|name| Some((name, name.strip_prefix(PREFIX)?)))
        .map(|(name, rest)| {
            let hint = nearest(rest, known_variables().map(bare))
                .map(|known| format!("; did you mean {PREFIX}{known}?"))
                .unwrap_or_default();
            format!("the environment variable {name} means nothing to pjrt-arena{hint}")
        })
        .collect()
}
