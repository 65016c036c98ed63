//! The exported C API. Nothing else depends on this module.
//!
//! ```text
//!  table.rs       GetPjrtApi: which of the 138 functions pass to the engine, which are ours
//!  entry.rs       the edge: NULL, short and long argument structs, panics, errors
//!  plugin.rs      the one engine of the process
//!  state.rs       client -> devices -> arenas; executables
//!  device_memory.rs   one device's arena, the buffers in it, and what moves their bytes
//!  buffer.rs      PJRT_Buffer: a block of ours, or memory that the engine holds, and what is known about it
//!  custody.rs     who uses, holds, frees and moves the bytes of a buffer
//!  room.rs        what happens when an arena has no room: drain, wait, compact, wait, error
//!  compaction.rs  the mover: carries an arena's plan out on live buffers
//!  flight.rs      executions and transfers under way, and what they keep alive
//!  callbacks.rs   programs that call back into the host end before Execute returns
//!  execute.rs     views in, destinations in, results out; lane.rs: what one device of it runs on
//!  nested.rs      programs that host callbacks run
//!  spares.rs      destinations ready to be used again
//!  profiler.rs    what memory does, in a profiler's trace
//!  async_transfer.rs  arrays first, their bytes later
//!  python/        the handler of host callbacks into Python
//!  ...            one file for each kind of handle
//!  ffi.rs         handlers for custom calls, given to the engine
//!  control.rs     pjrt_arena_*: what PJRT has no function for
//! ```
//!
//! Handles. `PJRT_Buffer`, `PJRT_ExecuteContext` and `PJRT_AsyncHostToDeviceTransferManager` are ours; clients, devices,
//! memories, events, executables and topologies are the engine's own pointers, with side tables here; a `PJRT_Error` is
//! whoever's first word says it is.

pub mod async_transfer;
pub mod buffer;
pub mod callbacks;
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
pub mod ffi;
pub mod flight;
pub mod getters;
pub mod host;
pub mod lane;
pub mod loaded;
pub mod nested;
pub mod plugin;
pub mod profiler;
pub mod python;
pub mod references;
pub mod room;
pub mod shape;
pub mod spares;
pub mod state;
pub mod table;
pub mod transfer;
