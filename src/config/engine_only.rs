//! What is not a setting of ours, and goes on to the engine.

use crate::config::{
    environment::{Environment, OptionValue},
    names::{self, did_you_mean},
    row::Row,
    xla_flags,
};

/// With this variable at 1, an execution on a GPU returns before its kernels are queued (`se_gpu_pjrt_client.cc`), and
/// a fence behind the queue no longer stands behind the execution.
pub(super) const ASYNC_DISPATCH: &str = "PJRT_GPU_ENABLE_ASYNC_DISPATCH";

/// XLA's flag for what becomes of recorded CUDA graphs when addresses change.
pub(super) const UPDATE_MODE: &str = "xla_gpu_command_buffer_update_mode";

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
pub(super) const NODE_ID: &str = "node_id";
pub(super) const NUM_NODES: &str = "num_nodes";

/// The option that names the GPUs to use.
pub(super) const VISIBLE_DEVICES: &str = "visible_devices";

/// The option that selects XLA's other GPU client. What it promises about foreign memory is not known.
pub(super) const USE_TFRT_GPU_CLIENT: &str = "use_tfrt_gpu_client";

/// The options of `options` that are not ours; those that XLA's engines do not know either are added to `unknown`.
fn foreign(
    table: &[&'static Row],
    options: &[(String, OptionValue)],
    unknown: &mut Vec<Unknown>,
) -> Vec<(String, OptionValue)> {
    let foreign: Vec<_> = options.iter().filter(|(name, _)| !names::is_our_option(table, name)).cloned().collect();
    for (name, value) in &foreign {
        if !KNOWN.contains(&name.as_str()) {
            let hint = did_you_mean(name, names::our_options(table).chain(KNOWN));
            let text = format!(
                "the client option {name}={value} means nothing to pjrt-arena and is passed on to the engine{hint}"
            );
            unknown.push(Unknown { name: name.clone(), text });
        }
    }
    foreign
}

/// A client option that neither this library nor XLA's engines know, as far as is known here.
#[derive(Clone, Debug)]
pub(super) struct Unknown {
    pub(super) name: String,
    /// What is said of it.
    pub(super) text: String,
}

/// What is not a setting of ours: it goes on to the engine, or is checked on its behalf.
#[derive(Clone, Debug)]
pub(super) struct EngineOnly {
    /// The client options that are not ours, as they came.
    pub(super) options: Vec<(String, OptionValue)>,
    /// Those of them that XLA's engines do not know either.
    pub(super) unknown: Vec<Unknown>,
    /// `PJRT_GPU_ENABLE_ASYNC_DISPATCH`, which a GPU engine reads for itself.
    pub(super) gpu_async_dispatch: Option<String>,
    /// The flag `xla_gpu_command_buffer_update_mode` in `XLA_FLAGS`.
    pub(super) gpu_update_mode: Option<String>,
}

impl EngineOnly {
    pub(super) fn read(
        table: &[&'static Row],
        environment: &Environment,
        options: &[(String, OptionValue)],
        warnings: &mut Vec<String>,
    ) -> Self {
        let mut unknown = Vec::new();
        let options = foreign(table, options, &mut unknown);
        warnings.extend(unknown.iter().map(|option| option.text.clone()));
        Self {
            options,
            unknown,
            gpu_async_dispatch: environment.get(ASYNC_DISPATCH).map(|value| value.to_string_lossy().into_owned()),
            // A file of flags that cannot be read is an error of the setting that is looked for in it.
            gpu_update_mode: environment
                .get("XLA_FLAGS")
                .and_then(|flags| xla_flags::value(flags, UPDATE_MODE).ok().flatten()),
        }
    }
}
