//! Models of protocols between processes, for a checker that visits every state. Their rules are the library's own.

pub mod group;
