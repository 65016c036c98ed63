//! Callbacks.

pub mod ffi;
pub mod hooks;
pub mod partitioners;
pub mod python;
