//! The exported C API. Nothing else depends on this module.
//!
//! ```text
//!  table.rs       GetPjrtApi: which of the 138 functions pass to the engine, which are ours
//!  entry.rs       the edge: NULL, short and long argument structs, panics, errors
//!  plugin.rs      the one engine of the process
//!  state.rs       client -> devices -> arenas; executables
//!  arena/         one device's memory: who lies in it, how room is found, what is moved, what goes back
//!  buffer/        PJRT_Buffer: a block of ours, or memory that the engine or an outsider holds, and who uses it
//!  transfer/      arrays from the host, between devices and memories, and back
//!  programs/      compilation, and what is known about a program
//!  execute/       views in, destinations in, results out; host callbacks
//!  flight.rs      executions and transfers under way, and what they keep alive
//!  extensions.rs  the engine's extensions; profiler.rs: what memory does, in a profiler's trace
//!  partitioners.rs  who splits custom calls over devices, for engines that ask nobody; hooks.rs: how Python is asked
//!  ffi/           handlers for custom calls, given to the engine; python/: the one of host callbacks into Python
//!  control/       pjrt_arena_*: what PJRT has no function for
//!  client.rs, device.rs, error.rs     a file for each of these handles
//! ```
//!
//! Handles. `PJRT_Buffer`, `PJRT_ExecuteContext` and `PJRT_AsyncHostToDeviceTransferManager` are ours; clients, devices,
//! memories, events, executables and topologies are the engine's own pointers, with side tables here; a `PJRT_Error` is
//! whoever's first word says it is.

pub mod async_transfer;
pub mod buffer;
pub mod client;
pub mod compile;
pub mod context;
pub mod control;
pub mod copy;
pub mod cost;
pub mod device;
pub mod entry;
pub mod error;
pub mod executable;
pub mod execute;
pub mod extensions;
pub mod ffi;
pub mod host;
pub mod output_kinds;
pub mod own_error;
pub mod partitioners;
pub mod plugin;
pub mod profiler;
pub mod table;
