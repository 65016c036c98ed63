//! What an arena looks like, said to people. Functions of what the caller has gathered.
//!
//! ```text
//!   regions, blocks ---> map ------> text of one screen
//!   events -----------> timeline --> a plane of a profiler's trace
//! ```
#![deny(unsafe_code)]

mod map;
pub mod timeline;

pub use map::{MapBlock, MapKind, Screen, map};
