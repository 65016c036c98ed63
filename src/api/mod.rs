//! The exported C API: the edge. Nothing else depends on this module; what the functions do is in [`crate::runtime`].
//!
//! ```text
//!  table.rs        GetPjrtApi: which of the 138 functions pass to the engine, and which are implemented here
//!  entry.rs        the edge: NULL, short and long argument structs, panics, errors
//!  child.rs        what ends nothing in a child after fork
//!  call.rs         a call as the functions' bodies get it, which are safe code
//!  owned.rs        values that the caller owns, with the function that destroys them
//!  own_error.rs, error.rs   PJRT_Error: pjrt-arena's or the engine's
//!  event.rs        PJRT_Event: the engine's, or the one that has happened
//!  plugin.rs       initialisation and attributes; where engines are looked for
//!  client.rs, device.rs, context.rs   a file for each of these handles
//!  buffer/         PJRT_Buffer: getters, addresses given to outsiders, buffers that the engine makes
//!  host.rs, copy.rs   arrays from the host and back, between devices and memories
//!  async_transfer.rs, transfer_manager.rs   arrays from the host, in pieces
//!  compile.rs, executable.rs, output_kinds.rs, cost.rs   compilation, and what an executable says of its program
//!  execute.rs      PJRT_LoadedExecutable_Execute
//!  extensions.rs   the engine's extensions, rebuilt; layouts.rs: the layouts of arrays; ffi.rs, partitioners.rs,
//!                  profiler.rs: extensions of pjrt-arena
//!  control/        pjrt_arena_*: what PJRT has no function for; text.rs: the texts that they take and return
//! ```
//!
//! Handles. `PJRT_Buffer`, `PJRT_ExecuteContext` and `PJRT_AsyncHostToDeviceTransferManager` are pjrt-arena's;
//! clients, devices, memories, executables and topologies are the engine's own pointers, with tables in `runtime`, and
//! so are events, but for one; the first word of a `PJRT_Error` says whose it is.

pub mod async_transfer;
pub mod buffer;
pub mod call;
pub mod child;
pub mod client;
pub mod compile;
pub mod context;
pub mod control;
pub mod copy;
pub mod cost;
pub mod device;
pub mod entry;
pub mod error;
pub mod event;
pub mod executable;
pub mod execute;
pub mod extensions;
pub mod ffi;
pub mod host;
pub mod layouts;
pub mod output_kinds;
pub mod own_error;
pub mod owned;
pub mod partitioners;
pub mod plugin;
pub mod profiler;
pub mod table;
pub mod text;
pub mod transfer_manager;
