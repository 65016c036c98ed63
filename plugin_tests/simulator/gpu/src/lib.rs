//! The simulated driver, the crate `fake_cuda`, together with what XLA's own CUDA and ROCm plugins need beside it.
//!
//! ```text
//!   XLA's plugin       the file libsimulated_gpu.so, by the names of the driver and of all libraries below
//!        |
//!        v
//!  ffi/           every function as C calls it     runtime, nvml   stand-ins for the CUDA runtime, cuDNN and NVML
//!                 hip/   programs of AMD's GPUs, and stand-ins for AMD's libraries
//!  kernel         modules of PTX, functions, launches            reach   the memory that a running kernel uses
//!  code_object    modules of AMD's machine code, of which nothing runs
//!  blas/          cublasLt's products of matrices
//!  nccl/          collectives: operations of several GPUs' streams that meet
//!
//!  the crate ptx  translates and interprets kernels that a compiler made; of the driver it knows a trait for memory
//! ```
//!
//! What differs from a GPU, besides what the driver's crate says:
//! - A kernel is PTX that is interpreted; machine code is not known, so neither are kernels that come in NVIDIA's
//!   libraries. Its blocks run one after another on the thread of the stream, and kernels of different streams at the same time.
//! - On AMD's GPUs all kernels are machine code: it is loaded, and a launch is an error.
//! - A launch whose pointer arguments point to no memory is refused, where a GPU would wait for the kernel to use them.
//! - Of cuBLAS there are cublasLt's products, a plain loop without scales. NCCL has the GPUs of one machine, whose
//!   processes meet by TCP. The CUDA runtime and cuDNN have versions, copies and errors, but nothing that runs a kernel of theirs; NVML
//!   knows no device.
//!
//! This crate is frozen: it gets no new features.

use std::collections::BTreeMap;

// The modules of the driver's crate, by the names that this crate's modules use.
use fake_cuda::{clock, copy, device, graph, memory, operation, pages, parts, perform, state, status, stream};

mod blas;
mod code_object;
pub mod ffi;
mod kernel;
mod nccl;
mod reach;

use code_object::{CodeObject, MachineKernel};
use kernel::{Function, Module, ModulesOfGpus};
use nccl::{Collectives, Meetings, Registrations};

/// What these parts know, under the driver's lock.
#[derive(Debug, Default)]
struct Known {
    /// Modules, by handle.
    modules: BTreeMap<u64, Module>,
    /// Their kernels, by handle.
    functions: BTreeMap<u64, Function>,
    /// Objects of cuBLAS, by handle.
    blas: BTreeMap<u64, blas::Object>,
    /// Modules of AMD's machine code, by handle.
    code_objects: BTreeMap<u64, CodeObject>,
    /// Their kernels, by handle.
    machine_kernels: BTreeMap<u64, MachineKernel>,
    /// Communicators.
    nccl: Collectives,
}

/// [`Known`] in the driver's state.
trait KnownParts {
    fn known(&self) -> &Known;
    fn known_mut(&mut self) -> &mut Known;
}

impl KnownParts for parts::Known {
    fn known(&self) -> &Known {
        self.get()
    }

    fn known_mut(&mut self) -> &mut Known {
        self.get_mut()
    }
}

/// The driver learns of these parts when the library is loaded, or the program that it is linked with.
extern "C" fn register() {
    parts::register(parts::Parts {
        symbol: ffi::symbol,
        state: || Box::new(Known::default()),
        context_gone: |state, gpu| state.forget_modules_of(gpu),
        memory_goes: |state, range, how| state.check_registered(range, how),
        cancel: |state| state.cancel_all(),
        kernel: ffi::kernel_task,
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;
