//! The planner: pure functions from a snapshot of the space, a goal and the costs to a list of moves.
//!
//! ```text
//!  open_hole   an existing hole, else the cheapest of
//!                slide     blocks between two holes of a run move apart                     exact, O(n)
//!                evacuate  a window's blocks go into holes anywhere, the largest may slide  64 windows, O(n log n)
//!              else
//!                gather    other runs slide to make room for a window's blocks              rare, O(64 n)
//!  clear       one given place: evacuate it, or push its blocks aside, else gather
//!  pack        every run down to one hole; later runs' blocks into earlier runs
//! ```
//!
//! Neither a block that stays nor a region's end is ever crossed by a slide; a *run* is what lies between two of them.
//! Blocks leave a window for any run of any region. No plan moves a block twice.
//!
//! The slide is the minimum of all slides that open the hole, where blocks are copied. The evacuation is the first, in
//! order of cost, of the windows that yield just enough whose blocks find a place largest first. To find the cheapest
//! of all plans is to solve bin packing, so that a cheaper one can exist; on random layouts of few blocks it rarely
//! does (see the tests).
//!
//! [`pack()`] and slides keep the order of blocks: Lisp 2's sliding compaction (Jones, Hosking, Moss: "The Garbage
//! Collection Handbook", section 3.2), without its forwarding addresses, because blocks are found through a table.

mod clear;
mod evacuate;
mod fit;
mod gather;
mod pack;
mod pin;
mod slide;
mod snapshot;
pub(in crate::memory) mod step;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod windows;

use crate::memory::compaction::{
    costs::Costs,
    layout::{Layout, Run},
    plan::{evacuate::Evacuation, gather::Gathering, slide::Slider, snapshot::LayoutSnapshot, step::Plan},
};

/// Opens a hole of `need` granules somewhere, as cheaply as it can; `None` if it finds no way, or if `need` is zero.
///
/// It finds one whenever a run has `need` granules free. O(n log n) for n spans, unless all runs must give of theirs.
pub(crate) fn open_hole(layout: &Layout, need: u32, costs: &Costs) -> Option<Plan> {
    if need == 0 {
        return None;
    }
    let snapshot = LayoutSnapshot::new(layout, costs);
    if snapshot.largest >= need {
        let fits = snapshot.spans.iter().filter(|span| span.is_hole() && span.size >= need);
        let hole = fits.min_by_key(|span| span.size)?;
        let hole = Run { region: hole.region, offset: hole.offset, size: hole.size };
        return Some(Plan { hole: Some(hole), ..Plan::default() });
    }
    if snapshot.free < need.into() {
        return None;
    }
    let mut slider = Slider::default();
    let mut best = slide::cheapest(&snapshot, &mut slider, need);
    Evacuation::new(&snapshot, &mut slider).improve(need, &mut best);
    best.or_else(|| Gathering::new(&snapshot, &mut slider).open_hole(need))
}

/// Empties the place `window`; `None` if a block in it cannot move or has nowhere to go, or if it is no place of one
/// region.
///
/// O(n log n) for n spans.
pub(crate) fn clear(layout: &Layout, window: Run, costs: &Costs) -> Option<Plan> {
    clear::clear(&LayoutSnapshot::new(layout, costs), window)
}

/// Moves the block `block`, which is about to be pinned, to where it divides nothing: directly below the upper end of
/// one of the spans `ends`, the first that will do, others making way. `None` where it lies beside what stays already,
/// or no way was found. The layout may have gaps, drawn as spans that stay.
///
/// O(n log n) for n spans.
pub(crate) fn pin(layout: &Layout, block: usize, ends: &[usize], costs: &Costs) -> Option<Plan> {
    pin::pin(layout, block, ends, costs)
}

/// Moves every block that can move down, so that the holes of each run between blocks that stay become one; and blocks
/// of later runs into earlier ones, where that empties a region or makes the largest hole larger.
///
/// O(n log n) for n spans.
pub(crate) fn pack(layout: &Layout, costs: &Costs) -> Plan {
    pack::pack(&LayoutSnapshot::new(layout, costs))
}
