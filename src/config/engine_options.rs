//! The client options that go on to the engine.
//!
//! Options that are ours are taken out, and so are XLA's three for memory (`allocator`, `memory_fraction`,
//! `preallocate`): they speak of memory that the arena manages now. The rest passes as it came. Then what this library
//! decides for the engine is added:
//!
//! ```text
//!   cpu    cpu_device_count=N                         without it the engine makes four devices, whatever XLA_FLAGS says
//!          asynchronous=false                         where long programs can be kept out of the caller's thread
//!   cuda   allocator=cuda_async preallocate=false     the engine's own pool holds scratch space only, and can be trimmed
//!          allocator=bfc        preallocate=true      the same with a fixed size, where the driver has no memory pools
//!          memory_fraction=F
//!   rocm   allocator=bfc        preallocate=true      likewise: that engine refuses `cuda_async` (PJRT 0.112 and 0.116)
//!          memory_fraction=F
//!          allocator=bfc        preallocate=false     where there is no driver, and all memory is the engine's
//! ```
//!
//! An engine for GPUs refuses a name or a type that it does not know (PJRT 0.112, `pjrt_c_api_gpu_internal.cc`); the
//! CPU engine reads `cpu_device_count` alone, and skips every other name (PJRT 0.81 and 0.106) or refuses it (0.115).

use crate::{
    config::{
        engine_only::{ASYNC_DISPATCH, NODE_ID, NUM_NODES, UPDATE_MODE, USE_TFRT_GPU_CLIENT, VISIBLE_DEVICES},
        environment::OptionValue,
        row::{Setting, Source},
        settings::Settings,
        values::EngineKind,
    },
    error::{Error, Result},
};

/// What the engine's `PJRT_Client_Create` is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineOptions {
    /// The options, each name once at most if the caller gave it once.
    pub values: Vec<(String, OptionValue)>,
    /// What has no effect with this engine.
    pub warnings: Vec<String>,
}

/// The CPU engine's option: whether programs run on threads of its own, and not in the caller's.
const ASYNCHRONOUS: &str = "asynchronous";

/// Which programs an engine runs in the caller's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inline {
    /// Those that it takes for short.
    #[default]
    Short,
    /// All that need not wait: the user asked for it.
    All,
    /// All that need not wait, and pjrt-arena has the long ones wait.
    AllButLong,
}

impl EngineOptions {
    /// Has a CPU engine run programs in the caller's thread, unless the user has decided.
    pub fn run_inline(&mut self) -> Inline {
        match self.values.iter().find(|(name, _)| name == ASYNCHRONOUS) {
            Some((_, OptionValue::Bool(false))) => Inline::All,
            Some(_) => Inline::Short,
            None => {
                self.values.push((ASYNCHRONOUS.to_owned(), OptionValue::Bool(false)));
                Inline::AllButLong
            }
        }
    }
}

/// The CPU engine's option for its number of devices.
const CPU_DEVICE_COUNT: &str = "cpu_device_count";

/// Its one value that leaves the engine's memory where it is. Under the others all arrays have to come from an
/// allocator of the engine's own, which fails programs that are given others ("No raw allocation found", PJRT 0.112,
/// `gpu_executable.cc`), or scratch comes from one beside its pool, without a limit (PJRT 0.114,
/// `GetStreamExecutorGpuDeviceAllocator`).
const ALWAYS_UPDATE: &str = "ALWAYS_UPDATE";

impl Settings {
    /// The options for an engine of `kind`; `None` is an engine given by path whose kind is not known. With `share` an
    /// engine for GPUs takes that share of each GPU's memory in one piece and for good, for its programs' scratch, when
    /// the first program needs any.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for what an engine for GPUs would accept, but cannot do on memory of ours.
    pub fn engine_options(&self, kind: Option<EngineKind>, share: Option<f32>) -> Result<EngineOptions> {
        let mut options = EngineOptions { values: self.engine_only.options.clone(), warnings: Vec::new() };
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

    /// What is known about the client option that the engine's error names: that it may be a typing error.
    pub fn unknown_option(&self, error: &str) -> Option<&str> {
        let named = |name: &str| error.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name);
        self.engine_only.unknown.iter().find(|option| named(&option.name)).map(|option| option.text.as_str())
    }

    /// Which process of a job this is, and how many there are, where the caller says that there are several.
    pub fn place_in_job(&self) -> Option<(i64, i64)> {
        let number = |wanted: &str| {
            let given = self.engine_only.options.iter().rev().find(|(name, _)| name == wanted);
            given.and_then(|(_, value)| value.to_string().trim().parse::<i64>().ok())
        };
        let nodes = number(NUM_NODES).filter(|&nodes| nodes > 1)?;
        Some((number(NODE_ID).unwrap_or(0), nodes))
    }

    /// The GPUs that the engine is told to use; `None` is all that the driver shows.
    pub fn visible_devices(&self) -> Option<&[i64]> {
        self.engine_only.options.iter().rev().find_map(|(name, value)| match value {
            OptionValue::Int64List(devices) if name == VISIBLE_DEVICES => Some(devices.as_slice()),
            _ => None,
        })
    }

    /// What takes away what memory of ours on a GPU rests on: the order of the queue, and arrays at addresses of our
    /// choice.
    fn refuse_unsafe_gpu_client(&self) -> Result<()> {
        if let Some(mode) = self.engine_only.gpu_update_mode.as_deref()
            && !mode.eq_ignore_ascii_case(ALWAYS_UPDATE)
        {
            return Err(Error::invalid_argument(format!(
                "XLA_FLAGS --{UPDATE_MODE}={mode} is not valid with pjrt-arena: under it programs take arrays or scratch of an allocator \
                 of the engine's own; allowed: {ALWAYS_UPDATE}, or unset"
            )));
        }
        if let Some("1") = self.engine_only.gpu_async_dispatch.as_deref() {
            return Err(Error::invalid_argument(format!(
                "{ASYNC_DISPATCH}=1 is not valid with pjrt-arena: memory would be reused before the kernels that use it are \
                 queued; allowed: 0, or unset"
            )));
        }
        let tfrt = self.engine_only.options.iter().find(|(name, value)| {
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
