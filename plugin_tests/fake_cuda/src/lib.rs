//! Simulates NVIDIA's driver on a machine without a GPU: the functions of `libcuda.so.1` over host memory and threads;
//! and, on the same GPUs, AMD's: `libamdhip64.so`.
//!
//! ```text
//!   pjrt-arena              the simulated engine          the test itself
//!        | cuMem..., hipMalloc...  | the same file             | fake_cuda_...: settings, violations
//!        v                         v                           v
//!  ffi/      every function in its frame: counts, ordered failures, checks, no panic     hip       HIP's names and numbers
//!  device    GPUs, primary contexts, the stack of contexts of each thread
//!  memory    what lies at which address: cuMemAlloc, pinned memory          vmm       handles, reservations, mappings
//!  pool      cuMemAllocAsync                                                copy      copies and fills, staging
//!  stream    a thread for each stream                                       operation what a stream does, one after another
//!  event     places in the order of streams                                 perform   does an operation
//!  capture   streams that are captured, and who spoils that                 host_kernel   functions that stand for kernels
//!  race      who used which bytes, by the vector clocks of `clock`          pages     mmap and files in memory
//!  state     all of it, under one lock                                      control   what tests set and ask
//! ```
//!
//! A program that opens this library in place of the driver and uses it wrongly gets the error that CUDA documents, and
//! what it did is counted as a violation and told in a sentence. What CUDA would let pass, and what goes wrong there
//! only sometimes, is found as well: operations on the same bytes that nothing orders, memory that is taken away in
//! use.
//!
//! What differs from a GPU:
//! - Physical memory is as large as it is told to be and zero at first.
//! - A kernel is a function of the program, which says what it uses.
//! - A captured stream takes no work, and its capture gives no graph.
//! - There are no modules, arrays, textures, managed memory, contexts but the primary ones, or handles for other
//!   processes.

mod capture;
mod clock;
pub mod control;
mod copy;
mod device;
mod event;
mod ffi;
mod host_kernel;
mod memory;
mod operation;
mod pages;
mod perform;
mod pool;
mod race;
mod state;
pub mod status;
mod stream;
mod vmm;

pub use control::Session;
pub use ffi::symbol;
pub use host_kernel::FakeCudaRange;
