//! The planner.

use super::{Costs, Layout, Run};
use crate::memory::space::RegionId;

/// Moves one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The block, as an index into the layout's spans. No block moves twice in a plan.
    pub(crate) span: usize,
    /// Where it goes.
    pub(crate) region: RegionId,
    /// The first granule there. All of the destination is hole, vacated by earlier steps, or the block itself.
    pub(crate) to: u32,
}

/// What to move, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The hole that is free at the end; `None` for a plan that only packs.
    pub(crate) hole: Option<Run>,
    /// Granules moved.
    pub(crate) moved: u64,
    /// As [`Costs`] counts, in nanoseconds.
    pub(crate) cost: u64,
}

/// Opens a hole of `need` granules somewhere, as cheaply as it can; `None` if it finds no way.
pub(crate) fn open_hole(layout: &Layout, need: u32, costs: &Costs) -> Option<Plan> {
    let _ = (layout, need, costs);
    None
}

/// Empties the place `window`; `None` if a block in it cannot move, or has nowhere to go.
pub(crate) fn clear(layout: &Layout, window: Run, costs: &Costs) -> Option<Plan> {
    let _ = (layout, window, costs);
    None
}

/// Moves every block that can move down, so that the holes of each run between blocks that stay become one.
pub(crate) fn pack(layout: &Layout, costs: &Costs) -> Plan {
    let _ = (layout, costs);
    Plan::default()
}
