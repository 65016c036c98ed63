//! What happens behind the edge: no `extern "C"`, no `impl Entry`. Each line imports only from lines below it.
//!
//! ```text
//!  report           a snapshot of every arena
//!  execute/         PJRT_LoadedExecutable_Execute: call, launch, collect
//!  transfer/        arrays from the host, between devices and memories, and back
//!  executable/      compiled programs: plan, registration, output cache, serialisation
//!  client/          Client and Device; opening the devices; buffers that the engine made
//!  nested/          clients of the engine that programs with host callbacks run on
//!  allocator/       a block for an array: the reclaim loop, compaction, admission, trimming, the out-of-memory error
//!  in_flight/       operations under way, what they keep alive, and how long an allocation waits for them
//!  buffer/          PJRT_Buffer: its usage, its memory, the engine's handle
//!  device_memory/   one device's arena, the blocks' residents, what the engine takes of the same memory
//!  counters         what programs did, counted
//!  dispatch         which thread runs a program
//!  shape, host_memories
//! ```

pub mod allocator;
pub mod buffer;
pub mod client;
pub mod counters;
pub mod device_memory;
pub mod dispatch;
pub mod executable;
pub mod execute;
pub mod host_memories;
pub mod in_flight;
pub mod nested;
pub mod report;
pub mod shape;
pub mod transfer;
