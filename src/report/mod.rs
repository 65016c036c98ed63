//! What an arena looks like, said to people. Functions of what the caller has gathered.
//!
//! ```text
//!   regions, blocks ---> map ------> text of one screen
//!   events -----------> timeline --> a plane of a profiler's trace
//!   everything -------> snapshot --> a file: JSON, a page, a trace, PyTorch's pickle
//!   Python's frames --> stacks ----> rows, for each frame and each stack one
//! ```
#![deny(unsafe_code)]

mod map;
pub mod snapshot;
pub mod stacks;
pub mod timeline;

pub use map::{MapBlock, MapKind, Screen, map};
