//! The exported C API. Nothing else depends on this module.
//!
//! ```text
//!  table.rs       GetPjrtApi: which of the 138 functions pass to the engine, which are ours
//!  entry.rs       the edge: NULL, short and long argument structs, panics, errors
//!  plugin.rs      the one engine of the process
//!  state.rs       client -> devices -> arenas; executables; devices.rs: whose memory an arena divides
//!  origins.rs     where blocks come from, in words
//!  device_memory.rs   one device's arena, the buffers in it, and what moves their bytes
//!  buffer.rs      PJRT_Buffer: a block of ours, or memory that the engine holds, and what is known about it
//!  arrival.rs     arrays on their way into an arena; adoption.rs: buffers that the engine made
//!  storage.rs     where the bytes of a buffer are
//!  custody.rs     who uses, holds, frees and moves the bytes of a buffer
//!  admission.rs   whether there is memory for a program's scratch, where the engine takes that from the device
//!  room.rs        what happens when an arena has no room: drain, wait, compact, wait, error
//!  exhausted.rs   what the error says where there is none, and the report of it
//!  compaction.rs  the mover: carries an arena's plan out on live buffers
//!  flight.rs      executions and transfers under way, and what they keep alive
//!  callbacks.rs   programs that call back into the host end before Execute returns
//!  execute.rs     views in, destinations in; lane.rs: what one device of it runs on; results.rs: whose block each result took
//!  gifts.rs       arguments that a launch may consume, and reading.rs: who reads bytes that the engine thinks idle
//!  candidates.rs  memory that a result may lie in
//!  stand_in.rs    copies that are donated in place of arrays that only lend their memory
//!  nested.rs      programs that host callbacks run
//!  bound.rs       results that a program binds to memories of the host
//!  spares.rs      destinations ready to be used again
//!  idle.rs        gives memory back that nobody uses any more
//!  snapshot.rs    the arenas of the process at one instant; track.rs: between two instants
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

pub mod admission;
pub mod adoption;
pub mod arrival;
pub mod async_transfer;
pub mod bound;
pub mod buffer;
pub mod callbacks;
pub mod candidates;
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
pub mod devices;
pub mod entry;
pub mod error;
pub mod executable;
pub mod execute;
pub mod exhausted;
pub mod extensions;
pub mod ffi;
pub mod flight;
pub mod getters;
pub mod gifts;
pub mod host;
pub mod idle;
pub mod lane;
pub mod loaded;
pub mod nested;
pub mod origins;
pub mod patience;
pub mod pinned_host;
pub mod plugin;
pub mod profiler;
pub mod python;
pub mod reading;
pub mod references;
pub mod results;
pub mod room;
pub mod shape;
pub mod snapshot;
pub mod spares;
pub mod stand_in;
pub mod state;
pub mod storage;
pub mod table;
pub mod track;
pub mod transfer;
