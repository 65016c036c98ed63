//! Compaction: which blocks to move, and where, so that room appears in one piece.
//!
//! ```text
//!  Space --> Layout (a picture: holes, blocks that may move, blocks that may not)
//!              |  plan: a pure function of picture, goal and costs
//!              v
//!            Plan (steps in order, and the hole that they open)
//! ```
//!
//! Nothing here touches the index or the bytes: [`super::Arena`] keeps what a plan needs out of circulation, the mover
//! carries the steps out and commits them one by one.

mod costs;
mod layout;
mod plan;

pub use self::costs::{Costs, Remap};
use self::layout::Spot;
pub(crate) use self::{
    layout::{Kind, Layout, Run, Span},
    plan::{Plan, clear, open_hole, pack, pin},
};
