//! The options of `PJRT_Client_Create`, checked by name and type as XLA's GPU plugin does.

use std::env;

use crate::{
    entry::{list, text},
    error::{Error, Result},
    nodes::Node,
    platform::platform,
    sys,
};

/// What may be given, and of which type.
const KNOWN: [(&str, sys::PJRT_NamedValue_Type); 14] = [
    ("platform_name", sys::PJRT_NamedValue_kString),
    ("allocator", sys::PJRT_NamedValue_kString),
    ("memory_fraction", sys::PJRT_NamedValue_kFloat),
    ("preallocate", sys::PJRT_NamedValue_kBool),
    ("collective_memory_size", sys::PJRT_NamedValue_kInt64),
    ("visible_devices", sys::PJRT_NamedValue_kInt64List),
    ("node_id", sys::PJRT_NamedValue_kInt64),
    ("num_nodes", sys::PJRT_NamedValue_kInt64),
    ("should_stage_host_to_device_transfers", sys::PJRT_NamedValue_kBool),
    ("abort_collectives_on_failure", sys::PJRT_NamedValue_kBool),
    ("use_tfrt_gpu_client", sys::PJRT_NamedValue_kBool),
    ("enable_mock_nccl", sys::PJRT_NamedValue_kBool),
    ("mock_gpu_topology", sys::PJRT_NamedValue_kString),
    ("partition_index", sys::PJRT_NamedValue_kInt64),
];

const ALLOCATORS: [&str; 5] = ["default", "platform", "bfc", "cuda_async", "vmm"];

/// Names the version of XLA whose ways are played.
const ERA: &str = "FAKE_ENGINE_ERA";

/// Which XLA is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// That of PJRT C API 0.112: a view without a stream is ready after all that the compute stream has to do, and an
    /// outsider is told at once when the last handle goes, whatever still runs.
    Api112,
    /// That of 0.114: a view without a stream is ready at once, and memory is kept while programs run that read it.
    Api114,
}

impl Era {
    /// The one that the environment names, 0.114 without.
    ///
    /// # Errors
    /// Names the variable, its value, and what is allowed.
    pub fn from_environment() -> Result<Self> {
        match env::var(ERA).as_deref() {
            Err(env::VarError::NotPresent) | Ok("114") => Ok(Self::Api114),
            Ok("112") => Ok(Self::Api112),
            other => Err(Error::invalid(format!("{ERA} is {other:?}; 112 and 114 are allowed"))),
        }
    }
}

/// The options that mean something here.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Which of XLA's allocators is asked for.
    pub allocator: String,
    /// How much of a GPU's memory is for XLA.
    pub memory_fraction: f32,
    /// Whether it is taken at once.
    pub preallocate: bool,
    /// The GPUs to use, all of them without.
    pub visible_devices: Option<Vec<i64>>,
    /// Which process this is, of how many.
    pub node: Node,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            allocator: "default".into(),
            memory_fraction: 0.75,
            preallocate: true,
            visible_devices: None,
            node: Node::default(),
        }
    }
}

impl Options {
    /// Reads the caller's.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an option that is unknown or of another type, in XLA's words; UNIMPLEMENTED for an
    /// allocator that is unknown.
    ///
    /// # Safety
    /// The list and what it names must be valid.
    pub unsafe fn read(options: *const sys::PJRT_NamedValue, len: usize) -> Result<Self> {
        let mut read = Self::default();
        // SAFETY: the caller's promise.
        for option in unsafe { list(options, len) } {
            // SAFETY: as above.
            let name = unsafe { text(option.name, option.name_size) };
            let Some(&(_, expected)) = KNOWN.iter().find(|(known, _)| *known == name) else {
                return Err(Error::invalid(format!("Unexpected option name passed to PJRT_Client_Create: {name}")));
            };
            if option.type_ != expected {
                return Err(Error::invalid(format!(
                    "Option passed to PJRT_Client_Create with name {name} has type index {} but expected type index is {}",
                    option.type_.0, expected.0
                )));
            }
            let value = &option.__bindgen_anon_1;
            // SAFETY: the type says which member of the union is set; lists are as long as `value_size` says.
            unsafe {
                match name.as_str() {
                    "allocator" => read.allocator = text(value.string_value, option.value_size),
                    "memory_fraction" => read.memory_fraction = value.float_value,
                    "preallocate" => read.preallocate = value.bool_value,
                    "visible_devices" => {
                        read.visible_devices = Some(list(value.int64_array_value, option.value_size).to_vec());
                    }
                    "node_id" => read.node.id = value.int64_value,
                    "num_nodes" => read.node.nodes = value.int64_value,
                    _ => {}
                }
            }
        }
        if !ALLOCATORS.contains(&read.allocator.as_str()) {
            return Err(Error::unimplemented(format!(
                "Allocator {} not supported for PJRT GPU plugin. Supported allocator options are: {ALLOCATORS:?}.",
                read.allocator
            )));
        }
        // What XLA says where it was built for ROCm (`se_gpu_pjrt_client.cc`).
        match read.allocator.as_str() {
            "cuda_async" if !platform().pools => {
                Err(Error::new(sys::PJRT_Error_Code_FAILED_PRECONDITION, "CUDA async allocator requires CUDA >= 11.2"))
            }
            "vmm" if !platform().pools => Err(Error::unimplemented("VMM allocator is only supported with CUDA.")),
            _ => Ok(read),
        }
    }

    /// Bytes that the pool keeps although nobody uses them: with `preallocate`, XLA's share of the GPU.
    pub fn threshold(&self, memory: u64) -> u64 {
        if self.preallocate { self.share(memory) } else { 0 }
    }

    /// Bytes of a GPU that `bfc` divides, which stands for every allocator of ROCm's, rounded up to 2 MiB as XLA does
    /// (`gpu_helpers.cc`); `None` with another allocator. They are taken at once even without `preallocate`, where XLA
    /// would take them as they are needed.
    pub fn region(&self, memory: u64) -> Option<u64> {
        (self.allocator == "bfc" || !platform().pools).then(|| self.share(memory).next_multiple_of(2 << 20))
    }

    /// `bytes_limit` of the statistics; XLA's `cuda_async` knows none.
    pub fn limit(&self, memory: u64) -> u64 {
        if self.allocator == "cuda_async" { 0 } else { self.share(memory) }
    }

    fn share(&self, memory: u64) -> u64 {
        (memory as f64 * f64::from(self.memory_fraction)) as u64
    }
}
