//! The engine: XLA's own plugin, which compiles programs and runs them on views of our memory.

pub mod discover;
