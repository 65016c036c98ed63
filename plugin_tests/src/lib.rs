//! A small PJRT client for tests: it loads a plugin as a framework would and drives it through the C API.
//!
//! ```text
//!  tests/conformance        one module for each theme; every test is named by the point that it asserts
//!        |
//!  Client Buffer Loaded Event Transfer ...   RAII handles, results with code and message
//!        |
//!  call!(plugin, PJRT_Xxx { field: value })  fills and size-stamps the argument struct, turns PJRT_Error into Failure
//!        |
//!  Plugin                   dlopen, GetPjrtApi, a private copy of the table
//!        |
//!  the library under test   libpjrt_arena.so beside the test binary, or PJRT_ARENA_TEST_LIBRARY
//! ```
//!
//! The standard part of the tests also passes on a bare engine; that guards the client itself:
//! `PJRT_ARENA_TEST_LIBRARY=<a CPU plugin of XLA's> cargo test -p plugin_tests --test conformance c`. Tests of promises
//! that only the arena makes carry `arena` in their name.
//!
//! Handles do not borrow from each other: C does not either, and tests must be able to destroy things in a bad order.

pub mod alias;
pub mod buffer;
pub mod bundle;
pub mod callgrind;
pub mod child;
pub mod client;
pub mod counters;
pub mod counting;
pub mod dispatch;
pub mod event;
pub mod executable;
pub mod ffi;
pub mod gate;
pub mod plugin;
pub mod program;
pub mod raw;
pub mod stress;
pub mod transfer;

pub use buffer::{Buffer, Element, ElementType, HostArray, HostLayout, Semantics, View};
pub use client::{Client, Device, Memory, Stats, Value};
pub use event::{Event, Signal};
pub use executable::{Executable, Loaded, Run, RunOptions};
pub use gate::Gate;
pub use pjrt_arena::sys;
pub use plugin::{Plugin, plugin};
pub use program::Program;
pub use raw::{Code, Failure, Result};
pub use transfer::Transfer;

#[doc(hidden)]
pub use pastey;
