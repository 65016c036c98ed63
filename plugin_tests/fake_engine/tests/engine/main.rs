//! The fake CUDA engine through its C API: what it promises of XLA's ways, with a race detector behind.
//!
//! Every test has a process of its own, as what driver and engine are told in the environment is read once.

mod arrays;
mod common;
mod failures;
mod programs;
mod views;
