//! Of AMD's driver what concerns programs, and AMD's other libraries. Kernels are machine code, which cannot be run
//! here: modules are loaded, and a launch is an error.

use super::{In, Out};
use fake_cuda::{
    ffi::hip::{NO_BINARY, call, memory},
    hip_functions as functions,
};

mod graphs;
mod libraries;
mod modules;
mod refusals;

pub use graphs::*;
pub use libraries::*;
pub use modules::*;
pub use refusals::*;

/// The functions for graphs, by name.
pub(super) const GRAPHS: &[(&str, *const ())] = graphs::TABLE;

/// The functions for modules, by name.
pub(super) const MODULES: &[(&str, *const ())] = modules::TABLE;
