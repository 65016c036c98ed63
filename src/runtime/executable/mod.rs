//! Executables: compiled, loaded, and what is known of each beyond what the engine knows.
//!
//! ```text
//!  compile.rs       the program gets destinations, the engine compiles it, the executable is registered
//!  loaded.rs        Plan, Program, Loaded: where each result is expected, and what a program has done
//!  queries.rs       what the engine says of an executable
//!  registry.rs      the tables from the engine's handles to these
//!  serialized.rs    the engine's blob with the plan before it
//!  bound.rs         results that a program binds to a memory of the host
//!  description.rs   the optimised program
//!  cost.rs          what a program costs
//!  undonated.rs     arguments that a program could be donated, and is not
//! ```

pub mod bound;
pub mod compile;
pub mod cost;
pub mod description;
pub mod loaded;
pub mod queries;
pub mod registry;
pub mod serialized;
pub mod undonated;
