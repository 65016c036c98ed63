//! The fake CUDA engine through its C API: what it promises of XLA's ways, with a race detector behind.
//!
//! `arena` has pjrt-arena between, for what JAX does not do itself or not soon enough.
//!
//! Every test has a process of its own, as what driver and engine are told in the environment is read once.

#[macro_use]
mod arena;
mod arrays;
mod common;
mod failures;
mod mixture;
mod programs;
mod run_ahead;
mod views;
