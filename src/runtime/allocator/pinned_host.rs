//! `pinned_host`: memory of the host that a GPU reads and writes by itself, in an arena of its own.
//!
//! ```text
//!  NumPy --the processor--> | arena "cuda:0 pinned_host"   | <-copy stream--> the GPU's arena   defined arrays
//!  (defined at once)        |  regions on demand, pinned   | <---programs---- destinations, donated arguments
//!                           |------------------------------|
//!                           | the engine's own pool        | <--its streams-- arrays that a program still writes;
//!                           `------------------------------'                  elements of less than a byte; programs
//!                            one limit (a `Budget`) for both                  that were not rewritten
//! ```
//!
//! # What the engine makes of such memory
//! Read in XLA at PJRT C API 0.112 and 0.114 (`xla/pjrt/`).
//!
//! - *It takes a view.* `PJRT_Client_CreateViewOfDeviceBuffer` passes `memory` on as it is
//!   (`c/pjrt_c_api_wrapper_impl.cc`). `PjRtStreamExecutorClient::CreateViewOfDeviceBuffer` (0.112,
//!   `pjrt_stream_executor_client.cc`) and `PjRtStreamExecutorRawClient::ImportForeignMemory` (0.114,
//!   `se/pjrt_stream_executor_client.cc`) put the pointer into a foreign buffer of that memory space without a look
//!   at what it points to. So all that is known of views of device memory holds: when they are ready, and that a
//!   stream for external ready events may be named. At 0.112 the view's shape keeps the layout that was given, which
//!   names no memory space; at 0.114 `MakeCanonicalShapeForMemorySpace` (`gpu/se_gpu_topology_description.cc`) adds
//!   it. Nothing compares the two but what refuses `non_donatable_input_indices` for donated arrays in `pinned_host`
//!   (`CommonPjRtClient::PrepareArguments`, UNIMPLEMENTED), which at 0.112 lets a view pass.
//! - *The address is the host's too.* `PjRtStreamExecutorClient::IsOnCpu` says yes for every buffer of the memory
//!   space, and `PjRtStreamExecutorRawBuffer::GetHostPointer` gives the view's pointer: JAX reads such arrays in
//!   place.
//! - *Programs take it.* `CommonPjRtLoadedExecutable::CheckBufferCompatibilities` compares the kind of an argument's
//!   memory space with the parameter's (`mhlo.memory_kind`, `Layout::kHostMemorySpace`), and
//!   `StreamExecutorGpuClient::RunAsync` (`gpu/se_gpu_pjrt_client.cc`) uses the pointer; unified addressing makes it
//!   the GPU's too.
//! - *Results have destinations.* `RunAsync` writes a result into the argument that it aliases if that was donated,
//!   whatever memory the two lie in; JAX itself lets a donated array in `pinned_host` alias a result there
//!   (`mlir.py`, `_set_up_aliases`), and `CompiledMemoryStats` counts such pairs apart (`compiled_memory_stats.cc`,
//!   `host_alias_size_in_bytes`). A result without one comes from `Allocate(.., memory_space = host)`: a pool of
//!   pinned memory for each GPU, of 64 GiB unless `XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB` says otherwise
//!   (`gpu/gpu_helpers.cc`, `GetGpuHostAllocator`), with no statistics.
//! - *Copies between the two* are the same `MemcpyD2D` as between arrays of a GPU
//!   (`PjRtStreamExecutorRawBuffer::IntraClientCopyToWithDependencies`): the shapes differ in nothing but the memory
//!   space, which `CommonPjRtBufferImpl::CopyToMemorySpace` ignores.

use std::{
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use crate::{
    config::Compact,
    engine::{Live, Raw},
    error::{Code, Error, Result},
    memory::{
        Arena, Strategy,
        budget::{Budget, Charge},
    },
    program::HostMemory,
    runtime::{
        allocator::{core::Allocator, reclaim::ROUNDS},
        device_memory::DeviceMemory,
    },
    sys,
    units::Bytes,
};

/// The kind of memory that this module is about, as PJRT names it.
pub const KIND: &str = HostMemory::Pinned.name();

/// A device's `pinned_host` memory.
pub struct PinnedHost {
    /// The engine's memory.
    pub memory: Raw<sys::PJRT_Memory>,
    /// The arena of that memory.
    pub arena: Arc<DeviceMemory>,
    /// Bytes of buffers there that the engine holds itself.
    pub engine_bytes: Arc<AtomicI64>,
    /// The limit of both.
    budget: Arc<Budget>,
}

impl PinnedHost {
    /// `memory` with the regions of `backing`, which `budget` bounds.
    ///
    /// # Errors
    /// The arena's.
    pub fn new(
        memory: Live<'_, sys::PJRT_Memory>,
        name: String,
        client: (&crate::config::Settings, &Arc<Budget>),
        backing: crate::device::cuda::PinnedBacking,
    ) -> Result<Self> {
        let (settings, budget) = client;
        // Pinning takes long, and no other process can use pinned memory: only about as much as was asked for is
        // pinned.
        let strategy = match settings.strategy.value {
            Strategy::Platform => Strategy::Platform,
            Strategy::Preallocate | Strategy::Growing | Strategy::Tpu => Strategy::Growing,
        };
        let backing = backing.bound_by(budget);
        let mut arena = Arena::new(name, strategy, budget.limit(), Box::new(backing.clone()))?;
        arena.record_history(settings.history.value);
        if settings.compaction() == Compact::Always {
            arena.use_no_slots();
        }
        Ok(Self {
            memory: Raw(memory.raw()),
            arena: DeviceMemory::new(arena, Box::new(backing)),
            engine_bytes: Arc::default(),
            budget: Arc::clone(budget),
        })
    }

    /// Whether it was ever used: reports leave it out otherwise.
    pub fn is_used(&self) -> bool {
        self.arena.stats().allocations_total > 0 || self.engine_bytes.load(Ordering::Relaxed) != 0
    }

    /// Counts an array that the engine has made there unasked. It exists already: where the limit has no room for it,
    /// it counts in the statistics alone.
    pub fn charge_made(&self, bytes: usize) -> Option<Charge> {
        self.budget.take(Bytes::new(bytes as u64)).ok()
    }
}

/// Room within the limit for an array that the engine is about to make in `pinned`: empty regions of the arena are
/// trimmed for it, and operations under way are waited for.
///
/// # Errors
/// RESOURCE_EXHAUSTED with the numbers.
pub fn admit_pinned(allocator: &Allocator, pinned: &PinnedHost, bytes: Bytes) -> Result<Charge> {
    match pinned.budget.take(bytes) {
        Ok(charge) => Ok(charge),
        Err(_) => make_room(allocator, pinned, bytes),
    }
}

#[cold]
fn make_room(allocator: &Allocator, pinned: &PinnedHost, bytes: Bytes) -> Result<Charge> {
    let deadline = allocator.deadline();
    let mut rounds = 0..ROUNDS;
    let charged = allocator.in_flight.wait_until(&deadline, |round| {
        allocator.drain();
        pinned.arena.trim();
        let over = match pinned.budget.take(bytes) {
            Ok(charge) => return Break(Ok(charge)),
            Err(over) => over,
        };
        if rounds.next().is_some() && round.wait() {
            return Continue(());
        }
        let (name, engine) = (pinned.arena.name(), pinned.engine_bytes.load(Ordering::Relaxed));
        let engine = Bytes::new(u64::try_from(engine).unwrap_or(0));
        Break(Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "Out of memory while trying to allocate {bytes} ({} bytes) on {name} [the engine's own].\n  {} more would pass \
                 the limit of {} by {}: arrays hold {}, {engine} of them in the engine's memory and {} in the arena's pool\n  \
                 PJRT_ARENA_PINNED_LIMIT sets the limit",
                bytes.get(),
                over.wanted,
                over.limit,
                over.missing,
                over.held,
                pinned.arena.stats().pool_bytes,
            ),
        )))
    });
    charged.map_err(|error| deadline.explain(error))
}
