//! The locks that threads share. A module of its own so that a model checker's can stand in for them.

pub use parking_lot::{Condvar, Mutex, MutexGuard};
