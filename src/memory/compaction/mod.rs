//! Compaction: which blocks to move, and where, so that contiguous room appears.
//!
//! ```text
//!  Space --> Layout (a snapshot: holes, blocks that may move, blocks that may not)
//!              |  plan: a pure function of snapshot, goal and costs
//!              v
//!            Plan (steps in order, and the hole that they open)
//! ```
//!
//! Nothing here touches the index or the bytes: [`super::Arena`] keeps what a plan needs out of circulation, the mover
//! carries the steps out and commits them one by one.

mod costs;
mod layout;
mod plan;

pub use crate::memory::compaction::costs::Costs;
pub use crate::memory::compaction::costs::Remap;
pub(crate) use crate::memory::compaction::layout::Kind;
pub(crate) use crate::memory::compaction::layout::Layout;
pub(crate) use crate::memory::compaction::layout::Run;
pub(crate) use crate::memory::compaction::layout::Span;
use crate::memory::compaction::layout::Spot;
pub(crate) use crate::memory::compaction::plan::Plan;
pub(crate) use crate::memory::compaction::plan::clear;
pub(crate) use crate::memory::compaction::plan::open_hole;
pub(crate) use crate::memory::compaction::plan::pack;
pub(crate) use crate::memory::compaction::plan::pin;
