//! The exported C API. Nothing else depends on this module.
//!
//! ```text
//!  table.rs       GetPjrtApi: which of the 138 functions pass to the engine, which are ours
//!  entry.rs       the edge: NULL, short and long argument structs, panics, errors
//!  plugin.rs      the one engine of the process
//!  state.rs       client -> devices -> arenas; executables
//!  buffer.rs      PJRT_Buffer: a block of ours, or memory that the engine holds, and what is known about it
//!  flight.rs      executions and transfers under way, and what they keep alive
//!  execute.rs     views in, destinations in, results out
//!  spares.rs      destinations ready to be used again
//!  async_transfer.rs  arrays first, their bytes later
//!  ...            one file for each kind of handle
//!  control.rs     pjrt_arena_*: what PJRT has no function for
//! ```
//!
//! Handles. `PJRT_Buffer`, `PJRT_ExecuteContext` and `PJRT_AsyncHostToDeviceTransferManager` are ours; clients, devices,
//! memories, events, executables and topologies are the engine's own pointers, with side tables here; a `PJRT_Error` is
//! whoever's first word says it is.

pub mod async_transfer;
pub mod buffer;
pub mod client;
pub mod compaction;
pub mod compile;
pub mod context;
pub mod control;
pub mod copy;
pub mod counters;
pub mod custody;
pub mod device;
pub mod device_memory;
pub mod entry;
pub mod error;
pub mod executable;
pub mod execute;
pub mod extensions;
pub mod flight;
pub mod getters;
pub mod host;
pub mod loaded;
pub mod plugin;
pub mod references;
pub mod room;
pub mod shape;
pub mod spares;
pub mod state;
pub mod table;
pub mod transfer;
