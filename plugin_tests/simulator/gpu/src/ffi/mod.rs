//! The functions as C calls them, and the table of them by name.

use std::ffi::c_void;

pub use fake_cuda::{
    c_functions,
    ffi::{In, Out, graphs, memory},
    functions,
};

mod cublas;
mod hip;
mod modules;
mod nccl;
mod nvml;
mod runtime;

pub use cublas::*;
pub use hip::*;
pub use modules::*;
pub use nccl::*;
pub use nvml::*;
pub use runtime::*;

/// The function of a name, of those that a program looks for by name.
pub fn symbol(name: &str) -> Option<*const c_void> {
    let tables = [modules::TABLE, modules::MORE, cublas::TABLE, cublas::MORE, nccl::TABLE, hip::GRAPHS, hip::MODULES];
    let found = tables.into_iter().flatten().find(|(known, _)| *known == name);
    found.map(|(_, function)| function.cast())
}
