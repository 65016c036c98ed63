//! Runs a kernel: block after block, on the thread that asks.
//!
//! ```text
//!   launch    checks, arguments, addresses of variables; all blocks
//!   block     its warps, from barrier to barrier; shared memory
//!   warp      32 lanes in lockstep, parted and met again; one instruction at a time
//!   access    loads and stores        global      those of the GPU's memory, joined      exchange    shuffles and votes        space    where which memory lies
//! ```

mod access;
mod block;
mod exchange;
pub mod global;
mod launch;
pub mod space;
mod warp;

pub use launch::Launch;
