//! Programs as they travel: the portable StableHLO artifact, compile options and optimised HLO, read and rewritten
//! as bytes. Safe code that knows no PJRT and no device.
//!
//! ```text
//!  PJRT_Client_Compile(artifact, options)
//!      memories::without_annotations(artifact)    on a processor: nothing is said to lie elsewhere
//!      rewrite::add_destinations(artifact)   main(a, b) -> (c, d)  becomes  main(a, b, C, D) -> (c @ C, d @ D)
//!      options::add_parameters(options)      the per-parameter lists grow with it
//!              |
//!           engine
//!              |
//!  PJRT_Executable_OptimizedProgram
//!      hlo::hide_parameters(program)         the user is shown main(a, b) again
//! ```
//!
//! A *destination* is an additional donated parameter that one result aliases: at run time the caller passes a view of
//! memory that it chose, and the engine writes the result there.
//!
//! Every edit either succeeds as a whole or returns [`Reject`], and the caller goes on with the bytes it had: a program
//! that the engine would accept must never fail because of this module. Nothing here panics on any input, recursion is
//! capped, every count is checked against the bytes that are left before anything is allocated for it, and time and
//! memory are linear in the input: what many may refer to is charged (`budget.rs`).
#![deny(unsafe_code)]

mod budget;
mod bytecode;
pub mod hlo;
mod memories;
pub mod options;
mod reject;
pub mod rewrite;
mod sharding;
mod signature;
mod tie;
mod vhlo;
mod wire;

pub use memories::{HostMemory, Unbound, without_annotations};
pub use reject::Reject;
pub use rewrite::{Placement, Policy, Rewritten, Skip, add_destinations};
pub use signature::{
    Donation, Parameter, ParameterIndex, ResultIndex, Signature, has_host_callbacks, inspect, is_cheap_text, names_one,
};
pub use vhlo::{ElementType, ValueType};
