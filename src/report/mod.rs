//! What an arena looks like, said to people. Pure functions of what the caller has gathered.
//!
//! ```text
//!   regions, blocks ---> map ---> text of one screen
//! ```
#![deny(unsafe_code)]

mod map;

pub use map::{MapBlock, MapKind, Screen, map};
