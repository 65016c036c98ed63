//! Plays NVIDIA's driver on a machine without a GPU: the functions of `libcuda.so.1` over host memory and threads; and, on the same
//! GPUs, AMD's: those of `libamdhip64.so` that pjrt-arena calls.
//!
//! ```text
//!   pjrt-arena                 engine that plays XLA's         the test itself
//!        | cuMem..., hipMalloc...     | the same file               | fake_cuda_...: settings, violations
//!        v                            v                             v
//!  ffi/      every function in its frame: counts, ordered failures, checks, no panic; ffi/hip: HIP's names and numbers
//!  device    GPUs, primary contexts, the stack of contexts of each thread
//!  memory    what lies at which address: cuMemAlloc, pinned memory          vmm   handles, reservations, mappings
//!  pool      cuMemAllocAsync                                                copy  copies and fills, staging
//!  stream    a thread for each stream, operations in order                  event
//!  race      who used which bytes, by the vector clocks of `clock`          pages mmap and files in memory
//!  state     all of it, under one lock                                      control  what tests set and ask
//! ```
//!
//! A program that opens this library in place of the driver and uses it wrongly gets the error that CUDA documents, and
//! what it did is counted as a violation and told in a sentence. What CUDA would let pass, and what goes wrong there only
//! sometimes, is found as well: operations on the same bytes that nothing orders, memory that is taken away in use.
//!
//! What differs from a GPU: physical memory is as large as it is told to be and zero at first; a kernel is a function of the
//! host; there are no modules, graphs, arrays, managed memory, contexts but the primary ones, or handles for other processes.

mod clock;
pub mod control;
mod copy;
mod device;
mod event;
pub mod ffi;
mod memory;
mod pages;
mod pool;
mod race;
mod state;
pub mod status;
mod stream;
mod vmm;

pub use control::Session;
pub use ffi::symbol;
pub use stream::FakeCudaRange;
