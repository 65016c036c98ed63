//! What the file under test takes from the memory layer.

pub use pjrt_arena::memory::{Execution, MoveBarrier};
