//! The sources of the plugin as a graph of files.
//!
//! An arrow leads from a file to the file that defines a name which the first one imports or writes with a path. A
//! re-export is followed to the definition; the module that re-exports has an arrow of its own. Declaring a module is
//! no arrow, and neither is naming one without going on into it. Tests are left out: what stands under `#[cfg(test)]`,
//! in a folder `tests` or in a file `tests.rs`. What macros are given is read token by token.
//!
//! A call of a method is not seen; `impl` blocks away from their type are listed instead.

pub mod graph;
pub mod names;
pub mod order;
pub mod report;
pub mod tree;
pub mod visit;

use std::path::PathBuf;

/// The folder `src` of the plugin.
#[must_use]
pub fn plugin_sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../src")
}
