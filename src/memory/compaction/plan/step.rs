//! A plan: what to move, in which order.

use crate::memory::{
    compaction::layout::{Layout, Run},
    space::node::RegionId,
};

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
    /// As [`Costs`](crate::memory::compaction::Costs) counts, in nanoseconds.
    pub(crate) cost: u64,
}

impl Plan {
    /// Granules of all regions that hold nothing once the plan is carried out. O(n).
    pub(crate) fn emptied(&self, layout: &Layout) -> u64 {
        let mut stays: Vec<bool> = layout.spans.iter().map(|span| !span.is_hole()).collect();
        self.steps.iter().for_each(|step| stays[step.span] = false);
        let regions = layout.spans.chunk_by(|one, next| one.region == next.region);
        let mut first = 0;
        let emptied = regions.filter(|spans| {
            let stays = &stays[first..first + spans.len()];
            first += spans.len();
            !stays.contains(&true) && !self.steps.iter().any(|step| step.region == spans[0].region)
        });
        emptied.flatten().map(|span| u64::from(span.size)).sum()
    }
}
