//! pjrt-arena: the memory manager behind JAX's devices.
//!
//! ```text
//!  JAX (jaxlib's PJRT C API client)        any other PJRT client
//!         |  PJRT C API
//!  libpjrt_arena.so
//!    api/       the exported table and `pjrt_arena_*`: NULL, struct sizes, panics and errors end here
//!    runtime/   clients, buffers, executables, Execute, transfers, the allocator, operations in flight
//!    handlers/  functions that the engine calls while it runs a program: custom calls, host callbacks into Python
//!    program/   reads and rewrites the portable StableHLO artifact (destination passing)
//!    engine/    the inner plugin: libloading, version-checked function table, sessions, owned handles
//!    report/    an arena's state: text for people, snapshots in files, a timeline
//!    device/    where bytes lie: host (mmap), cuda (NVIDIA's driver, and AMD's), fake (tests, faults)
//!    group/     processes that share a device's budget, and the file that they have in common
//!    config/    the settings
//!    memory/    device-independent and safe: strategies, free-space index, block table, compaction plans, history
//!    error, units, region, sys (the C API's bindings), sync, fork, logging
//!         |  PJRT C API (views of the arenas' memory)
//!  engine: XLA's own plugin; it compiles and computes
//! ```
//!
//! Dependencies point one way: `api -> runtime -> handlers -> {engine, program, report, device, group, config} ->
//! memory -> region -> {error, units, sys, fork}`. `region` is a device's allocation as an owned value. The tool
//! `layers` (`plugin_tests/layers`) checks the order.

pub mod api;
pub mod config;
pub mod device;
pub mod engine;
pub mod error;
pub mod fork;
pub mod group;
pub mod handlers;
pub mod logging;
pub mod memory;
pub mod program;
pub mod region;
pub mod report;
pub mod runtime;
mod sync;
pub mod sys;
pub mod units;
