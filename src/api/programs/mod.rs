//! Programs: `PJRT_Executable` and `PJRT_LoadedExecutable`.
//!
//! ```text
//!  compile.rs     the program gets destinations on its way to the engine; bound.rs: results that it binds to memories of the host
//!  loaded.rs      what is known about a program, beside what the engine knows
//!  executable.rs  descriptions as if no parameter had been added, serialisation, ends
//!  cost.rs        what a program costs, where the engine does not say
//!  counters.rs    programs and results, counted
//! ```

pub mod bound;
pub mod compile;
pub mod cost;
pub mod counters;
pub mod executable;
pub mod loaded;
