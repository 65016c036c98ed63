//! A CUDA engine without a GPU: a PJRT plugin that plays XLA's CUDA plugin, or its ROCm plugin, for tests of what lies
//! on top of it.
//!
//! ```text
//!  the library under test, or JAX itself
//!         |  PJRT C API 0.89, platform "cuda" or "rocm"
//!  libfake_cuda_engine.so
//!    table entry error      the functions, the edge, the errors
//!    platform               what ROCm's plugin says otherwise than CUDA's
//!    client device program  the CPU engine's handles, and what stands behind them here
//!    buffer view transfer   arrays: where their bytes are and when
//!    execute run            launches; what a kernel does
//!    nodes                  the other processes of a job
//!    autotune               what compiling takes
//!    gpu milestone memory   streams, points in them, shared memory
//!    bfc                    a fixed share of the GPU, as XLA's allocator of that name
//!         |                                  |
//!  cpu: xla_cpu_pjrt.so               driver: libfake_cuda.so
//!  compiles and computes              device memory (of the host), streams (threads), a race detector
//! ```
//!
//! Everything happens in streams of the driver, as on a GPU: Execute returns before the program runs, memory is freed
//! in the order of the compute stream, and whoever forgets to wait reads bytes that are not there yet, which the
//! driver's race detector sees.
//!
//! | variable | what it says |
//! |---|---|
//! | `FAKE_ENGINE_CPU`, else `PJRT_ARENA_TEST_ENGINE` | the CPU engine |
//! | `PJRT_ARENA_CUDA_DRIVER` | the driver, else `libfake_cuda.so` beside this library |
//! | `FAKE_ENGINE_PINNED_RESULTS` | results in `pinned_host`, as `PROGRAM:NUMBER`, with commas between |
//! | `FAKE_ENGINE_PLATFORM` | which plugin is played: `cuda` (the default) or `rocm` |
//! | `FAKE_ENGINE_THROWS` | a text: the first execution throws a C++ exception with it, as libraries inside of XLA may |
//! | `FAKE_ENGINE_AUTOTUNE` | how many MiB of each GPU are taken and freed for each compilation; none unless it says so |
//! | `FAKE_ENGINE_SILENT` | set, no array's dimensions are told |
//! | `FAKE_ENGINE_ERA` | whose ways are played: `114` (XLA of PJRT C API 0.114, the default) or `112` |
//!
//! The two differ in views: in the old version one without a stream is ready after all that the compute stream has to
//! do, in the new one at once; and in the old one an outsider is told at once when the last handle goes, whatever still
//! runs.
//!
//! Memory of the kind `pinned_host` is the host's in both: views of it are taken as they are, and a program that was
//! donated one writes into it. XLA:CPU knows no kinds of memory in programs, so a variable says which results lie
//! there; that an argument lies where the program expects it is not checked.
//!
//! As ROCm's plugin it drives the same GPUs by the same functions of the driver's: what a caller sees of them, handles
//! of streams and addresses, is one thing under both vendors' names.
//!
//! The option `allocator=bfc` gives arrays and scratch a region of fixed size; with every other one they come from the
//! driver's pool.
//!
//! In a job of several processes each one learns of the others' GPUs through the caller's store of keys and values.
//! They are there to be seen, with their numbers and processes; programs that run on them too, and so all collectives
//! between processes, are refused.
//!
//! What is not played: send and receive callbacks, layouts with tiles.

#[allow(dead_code, reason = "the library's own file, of which not all is needed here")]
#[path = "../../../src/engine/abi.rs"]
mod abi;
mod alias;
mod async_transfer;
mod autotune;
mod bfc;
mod buffer;
mod client;
mod context;
mod cpu;
mod device;
mod driver;
mod entry;
mod error;
mod execute;
mod extensions;
mod gpu;
mod memory;
mod milestone;
mod nodes;
mod options;
mod platform;
mod program;
mod run;
mod shape;
// Not by depending on pjrt-arena: both libraries export GetPjrtApi.
#[allow(dead_code, reason = "as above")]
#[path = "../../../src/sys.rs"]
mod sys;
mod table;
mod throws;
mod transfer;
mod view;
