//! Compaction: which blocks to move, and where, so that contiguous room appears.
//!
//! ```text
//!  Space --> Layout (a snapshot: holes, blocks that may move, blocks that may not)
//!              |  plan: a pure function of snapshot, goal and costs
//!              v
//!            Plan (steps in order, and the hole that they open)
//! ```
//!
//! Nothing here touches the index or the bytes: the arena keeps what a plan needs out of circulation, the mover
//! carries the steps out and commits them one by one.

pub(super) mod costs;
pub(super) mod layout;
pub(super) mod plan;

pub use crate::memory::compaction::costs::Costs;
pub use crate::memory::compaction::costs::Remap;
