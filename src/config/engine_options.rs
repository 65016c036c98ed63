//! The client options that go on to the engine.
//!
//! Options that are ours are taken out, and so are XLA's three for memory (`allocator`, `memory_fraction`,
//! `preallocate`): they speak of memory that the arena manages now. The rest passes as it came. Then what this library
//! decides for the engine is added:
//!
//! ```text
//!   cpu    cpu_device_count=N                         without it the engine makes four devices, whatever XLA_FLAGS says
//!   cuda   allocator=cuda_async preallocate=false     the engine's own pool holds scratch space only, and can be trimmed
//!          allocator=bfc        preallocate=true      the same with a fixed size, where the driver has no memory pools
//!          memory_fraction=F
//!   rocm   allocator=bfc        preallocate=true      likewise: that engine refuses `cuda_async` (PJRT 0.112 and 0.116)
//!          memory_fraction=F
//!          allocator=bfc        preallocate=false     where there is no driver, and all memory is the engine's
//! ```
//!
//! An engine for GPUs refuses a name or a type that it does not know (PJRT 0.112, `pjrt_c_api_gpu_internal.cc`); the CPU
//! engine reads `cpu_device_count` alone, and skips every other name (PJRT 0.81 and 0.106) or refuses it (0.115).

use std::fmt;

use crate::{
    config::{EngineKind, Setting, Settings, Source, did_you_mean, table},
    error::{Error, Result},
};

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

/// What the engine's `PJRT_Client_Create` is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineOptions {
    /// The options, each name once at most if the caller gave it once.
    pub values: Vec<(String, OptionValue)>,
    /// What has no effect with this engine.
    pub warnings: Vec<String>,
}

/// The CPU engine's option for its number of devices.
const CPU_DEVICE_COUNT: &str = "cpu_device_count";

/// With this variable at 1, an execution on a GPU returns before its kernels are queued (`se_gpu_pjrt_client.cc`), and
/// a fence behind the queue no longer stands behind the execution.
pub(super) const ASYNC_DISPATCH: &str = "PJRT_GPU_ENABLE_ASYNC_DISPATCH";

/// XLA's flag for what becomes of recorded CUDA graphs when addresses change.
pub(super) const UPDATE_MODE: &str = "xla_gpu_command_buffer_update_mode";

/// Its one value that leaves the engine's memory where it is. Under the others all arrays have to come from an allocator of the engine's
/// own, which fails programs that are given others ("No raw allocation found", PJRT 0.112, `gpu_executable.cc`), or scratch comes from one
/// beside its pool, which nobody limits (PJRT 0.114, `GetStreamExecutorGpuDeviceAllocator`).
const ALWAYS_UPDATE: &str = "ALWAYS_UPDATE";

/// Options that XLA's engines know (PJRT 0.112, `pjrt_c_api_gpu_internal.cc`), apart from those for memory.
const KNOWN: [&str; 11] = [
    "platform_name",
    "collective_memory_size",
    VISIBLE_DEVICES,
    NODE_ID,
    NUM_NODES,
    "should_stage_host_to_device_transfers",
    "abort_collectives_on_failure",
    USE_TFRT_GPU_CLIENT,
    "enable_mock_nccl",
    "mock_gpu_topology",
    "partition_index",
];

/// The options that say which process of how many this is; JAX gives them after `jax.distributed.initialize`.
const NODE_ID: &str = "node_id";
const NUM_NODES: &str = "num_nodes";

/// The option that names the GPUs to use.
const VISIBLE_DEVICES: &str = "visible_devices";

/// The option that selects XLA's other GPU client. What it promises about foreign memory is not known.
const USE_TFRT_GPU_CLIENT: &str = "use_tfrt_gpu_client";

/// The options of `options` that are not ours; a warning for each name that XLA's engines do not know either.
pub(super) fn foreign(options: &[(String, OptionValue)], warnings: &mut Vec<String>) -> Vec<(String, OptionValue)> {
    let foreign: Vec<_> = options.iter().filter(|(name, _)| !table::is_our_option(name)).cloned().collect();
    for (name, value) in &foreign {
        if !KNOWN.contains(&name.as_str()) {
            let hint = did_you_mean(name, table::our_options().chain(KNOWN));
            warnings.push(format!(
                "the client option {name}={value} means nothing to pjrt-arena and is passed on to the engine{hint}"
            ));
        }
    }
    foreign
}

impl Settings {
    /// The options for an engine of `kind`; `None` is an engine given by path whose kind is not known. With `share` an
    /// engine for GPUs takes that share of each GPU's memory in one piece and for good, for its programs' scratch, when the
    /// first program needs any.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what an engine for GPUs would accept, but cannot do on memory of ours.
    pub fn engine_options(&self, kind: Option<EngineKind>, share: Option<f32>) -> Result<EngineOptions> {
        let mut options = EngineOptions { values: self.foreign.clone(), warnings: Vec::new() };
        let Setting { value: devices, source } = self.devices;
        let count = || (CPU_DEVICE_COUNT.to_owned(), OptionValue::Int64(i64::from(devices.get())));
        match kind {
            Some(EngineKind::Cpu) => {
                // Of a job the engine knows nothing, and 0.115 refuses the names: what is wrong is said when the
                // devices are looked at.
                options.values.retain(|(name, _)| name != NODE_ID && name != NUM_NODES);
                options.values.push(count());
            }
            // An engine for GPUs would refuse the option, so an unknown one gets it only if somebody asked.
            None if source != Source::Default => options.values.push(count()),
            None => {}
            Some(kind @ (EngineKind::Cuda | EngineKind::Rocm)) => {
                self.refuse_unsafe_gpu_client()?;
                let allocator = if kind == EngineKind::Cuda && share.is_none() { "cuda_async" } else { "bfc" };
                options.values.push(("allocator".to_owned(), OptionValue::String(allocator.to_owned())));
                options.values.push(("preallocate".to_owned(), OptionValue::Bool(share.is_some())));
                let fraction = share.map(|share| ("memory_fraction".to_owned(), OptionValue::Float(share)));
                options.values.extend(fraction);
                // XLA's own flag is about its host platform and says nothing here.
                if matches!(source, Source::Option(_) | Source::Environment(_)) {
                    options.warnings.push(format!(
                        "{source}={devices} has no effect: a {kind} engine shows the devices of the machine"
                    ));
                }
            }
        }
        Ok(options)
    }

    /// Which process of a job this is, and how many there are, where the caller says that there are several.
    pub fn place_in_job(&self) -> Option<(i64, i64)> {
        let number = |wanted: &str| {
            let given = self.foreign.iter().rev().find(|(name, _)| name == wanted);
            given.and_then(|(_, value)| value.to_string().trim().parse::<i64>().ok())
        };
        let nodes = number(NUM_NODES).filter(|&nodes| nodes > 1)?;
        Some((number(NODE_ID).unwrap_or(0), nodes))
    }

    /// The GPUs that the engine is told to use; `None` is all that the driver shows.
    pub fn visible_devices(&self) -> Option<&[i64]> {
        self.foreign.iter().rev().find_map(|(name, value)| match value {
            OptionValue::Int64List(devices) if name == VISIBLE_DEVICES => Some(devices.as_slice()),
            _ => None,
        })
    }

    /// What takes away what memory of ours on a GPU rests on: the order of the queue, and arrays at addresses of our choice.
    fn refuse_unsafe_gpu_client(&self) -> Result<()> {
        if let Some(mode) = self.gpu_update_mode.as_deref()
            && !mode.eq_ignore_ascii_case(ALWAYS_UPDATE)
        {
            return Err(Error::invalid_argument(format!(
                "XLA_FLAGS --{UPDATE_MODE}={mode} is not valid with pjrt-arena: under it programs take arrays or scratch of an allocator \
                 of the engine's own; allowed: {ALWAYS_UPDATE}, or unset"
            )));
        }
        if let Some("1") = self.gpu_async_dispatch.as_deref() {
            return Err(Error::invalid_argument(format!(
                "{ASYNC_DISPATCH}=1 is not valid with pjrt-arena: memory would be reused before the kernels that use it are \
                 queued; allowed: 0, or unset"
            )));
        }
        let tfrt = self.foreign.iter().find(|(name, value)| {
            name == USE_TFRT_GPU_CLIENT && !matches!(value.to_string().to_ascii_lowercase().as_str(), "false" | "0")
        });
        match tfrt {
            Some((name, value)) => Err(Error::invalid_argument(format!(
                "client option {name}={value} is not supported by pjrt-arena, which is built on XLA's other GPU client; \
                 allowed: false"
            ))),
            None => Ok(()),
        }
    }
}
