//! Executables.

pub mod bound;
pub mod compile;
pub mod cost;
pub mod description;
pub mod loaded;
pub mod output_cache;
pub mod registry;
pub mod serialized;
