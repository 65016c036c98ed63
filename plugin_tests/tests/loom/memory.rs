//! What the file under test takes from the memory layer.

#[path = "../../../src/memory/barrier.rs"]
#[allow(dead_code, missing_docs, reason = "the library uses and documents what the models here do not need")]
mod barrier;

pub use barrier::MoveBarrier;
