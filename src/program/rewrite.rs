//! Destination passing: one more donated parameter for each result that has no memory of the caller's yet.
//!
//! ```text
//!   before   main(a, b {jax.buffer_donor}) -> (c, d, e)
//!   after    main(a, b {jax.buffer_donor}, C {tf.aliasing_output = 0}, E {tf.aliasing_output = 2}) -> (c, d, e)
//! ```
//!
//! Parameters are only appended, so the user's keep their numbers and all results keep their places. In the file,
//! `main` gets new properties (its type and parameter attributes), new block arguments behind the old ones, and every
//! operand in its body that named a value behind the arguments moves up by the number of arguments added:
//!
//! ```text
//!   values of main's region     0 .. arguments | arguments .. values | of nested inline regions ..
//!   after adding n              same           | + n + 6u            | + n + 6u + 2t
//!                                  u arguments go on in destinations (updates.rs), t results are tied (tie.rs)
//! ```
//!
//! Nested isolated regions have their own numbers and are copied as they are.

mod emit;
pub(super) mod outcome;
mod plan;
pub(super) mod renumber;
#[cfg(test)]
mod tests;
mod updates;

use std::borrow::Cow;

pub use crate::program::rewrite::outcome::{Placement, Policy, Rewritten, Skip};
use crate::program::{
    bytecode::container::Artifact,
    reject::Reject,
    rewrite::{emit::emit, plan::plan},
    signature::Program,
};

/// Adds a destination for every result that the rules allow one for. Linear in the artifact.
///
/// After each run the caller has to compare the address of a result with its destination: XLA treats the aliasing as a
/// permission.
///
/// # Errors
/// [`Reject`] where the program has to be compiled as it is.
pub fn add_destinations<'a>(artifact: &'a [u8], policy: &Policy) -> Result<Rewritten<'a>, Reject> {
    let file = Artifact::parse(artifact)?;
    let program = Program::find(&file)?;
    let plan = plan(&file, &program, policy)?;
    let is_changed = !(plan.destinations.is_empty() && plan.released.is_empty());
    let bytes = if is_changed { Cow::Owned(emit(&file, &program, &plan)?) } else { Cow::Borrowed(artifact) };
    Ok(Rewritten {
        bytes,
        signature: program.signature(&file.tables),
        placements: plan.placements,
        destinations: plan.destinations.len(),
        released: plan.released,
    })
}
