//! Plays NVIDIA's driver on a machine without a GPU: the functions of `libcuda.so.1` over host memory and threads, and of NVIDIA's
//! other libraries what XLA needs of them; and, on the same GPUs, AMD's: `libamdhip64.so`, and the other libraries of ROCm.
//!
//! ```text
//!   pjrt-arena                 XLA's plugin, or what plays it      the test itself
//!        | cuMem..., hipMalloc...     | the same file, by all names    | fake_cuda_...: settings, violations
//!        v                            v                                v
//!  ffi/      every function in its frame: counts, ordered failures, checks, no panic
//!            hip/     HIP's names and numbers         runtime, nvml   stand-ins for the CUDA runtime, cuDNN and NVML
//!  device    GPUs, primary contexts, the stack of contexts of each thread
//!  memory    what lies at which address: cuMemAlloc, pinned memory          pointer   what a program may ask about an address
//!  vmm       handles, reservations, mappings                                pool      cuMemAllocAsync
//!  copy      copies and fills, staging                                      pages     mmap and files in memory
//!  stream    a thread for each stream                                       operation what a stream does, one after another
//!  event     places in the order of streams, and times                      perform   does an operation
//!  kernel    modules of PTX, functions, launches                            reach     the memory that a running kernel uses
//!  code_object   modules of AMD's machine code, of which nothing runs
//!  host_kernel   functions of the program that play kernels
//!  graph/    work that is described once and launched many times            blas/     cublasLt's products of matrices
//!  nccl/     collectives: operations of several GPUs' streams that meet
//!  race      who used which bytes, by the vector clocks of `clock`
//!  state     all of it, under one lock                                      control   what tests set and ask
//!
//!  the crate ptx   translates and interprets kernels that a compiler made; of the driver it knows a trait for memory
//! ```
//!
//! A program that opens this library in place of the driver and uses it wrongly gets the error that CUDA documents, and
//! what it did is counted as a violation and told in a sentence. What CUDA would let pass, and what goes wrong there only
//! sometimes, is found as well: operations on the same bytes that nothing orders, memory that is taken away in use.
//!
//! What differs from a GPU:
//! - Physical memory is as large as it is told to be and zero at first.
//! - A kernel is PTX that is interpreted, or a function of the program; machine code is not known, so neither are kernels that
//!   come in NVIDIA's libraries. Its blocks run one after another on the thread of the stream, and kernels of different streams
//!   at the same time.
//! - On AMD's GPUs all kernels are machine code: it is loaded, and a launch is an error.
//! - A launch whose pointer arguments point to no memory is refused, where a GPU would wait for the kernel to use them.
//! - The nodes of a graph run one after another. Nodes with conditions, for memory and for functions of the host are not known.
//! - Of cuBLAS there are cublasLt's products, a plain loop without scales. NCCL has the GPUs of one machine, whose processes meet by TCP. The CUDA runtime and cuDNN have
//!   versions, copies and errors, but nothing that runs a kernel of theirs; NVML knows no device.
//! - There are no arrays, textures, managed memory, contexts but the primary ones, or handles for other processes.

mod blas;
mod clock;
mod code_object;
pub mod control;
mod copy;
mod device;
mod event;
pub mod ffi;
mod graph;
mod host_kernel;
mod kernel;
mod memory;
mod nccl;
mod operation;
mod pages;
mod perform;
mod pointer;
mod pool;
mod race;
mod reach;
mod state;
pub mod status;
mod stream;
mod vmm;

pub use control::Session;
pub use ffi::symbol;
pub use host_kernel::FakeCudaRange;
