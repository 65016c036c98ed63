//! pjrt-arena: the memory manager behind JAX's devices.
//!
//! ```text
//!  JAX (jaxlib's PJRT C API client)        any other PJRT client
//!         |  PJRT C API
//!  libpjrt_arena.so
//!    api/      exported entry points; panics never cross it
//!    program/  reads and rewrites the portable StableHLO artifact (destination passing)
//!    engine/   the inner plugin: libloading, version-checked function table
//!    report/   what an arena looks like: text for people, snapshots in files
//!    memory/   device-independent and safe: strategies, free-space index, block table, history, statistics
//!    device/   where bytes live: host (mmap), cuda (NVIDIA's driver, and AMD's), fake (tests, faults)
//!         |  PJRT C API (views of our memory)
//!  engine: XLA's own plugin; it compiles and computes
//! ```
//!
//! Beside them stand `config` (the settings) and `logging`. `region` is a device's allocation as an owned value.
//!
//! Dependencies point one way: `api -> {engine, program, report, device} -> memory -> region -> {error, units}`.

pub mod api;
pub mod config;
pub mod device;
pub mod engine;
pub mod error;
pub mod fork;
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
