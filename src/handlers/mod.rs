//! Handlers of custom calls: functions that the engine calls while it runs a program.
//!
//! ```text
//!  ffi/             handlers that a framework or its user registers, of any XLA FFI version
//!  python/          the handler of JAX's host callbacks into Python
//!  partitioners.rs  custom calls that their owner splits over devices
//!  hooks.rs         calls of functions that the Python package installed
//!  depth.rs         whether this thread runs a handler
//! ```

pub mod depth;
pub mod ffi;
pub mod hooks;
pub mod partitioners;
pub mod python;
