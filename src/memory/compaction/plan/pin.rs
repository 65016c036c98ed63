//! A place for a block that is about to be pinned: beside others that stay, so that it divides nothing.
//!
//! ```text
//!  before   | a B c c d . . e . | # | f . | # #       `#` stays, and soon `B` will
//!  after    | a . c c d . . e B | # | f . | # #       the upper end of the largest stretch
//!
//!  before   | a B c c d e e . . g g | # | f . | # #
//!  after    | a g g c c d e e . . B | # | f . | # #   what lies there makes way
//! ```

use crate::memory::compaction::{
    costs::Costs,
    layout::{Kind, Layout, Run, Span, Spot},
    plan::{
        clear::clear,
        snapshot::LayoutSnapshot,
        step::{Plan, Step},
    },
};

/// The plan behind [`crate::memory::compaction::plan::pin()`].
pub(super) fn pin(layout: &Layout, block: usize, ends: &[usize], costs: &Costs) -> Option<Plan> {
    let span = *layout.spans.get(block)?;
    let beside =
        |at: Option<usize>| at.and_then(|at| layout.spans.get(at)).filter(|beside| beside.region == span.region);
    // The low end of a region is no such end: scratch grows there.
    let stays = |beside: &Span| beside.kind == Kind::Fixed;
    if beside(block.checked_add(1)).is_none_or(stays) || beside(block.checked_sub(1)).is_some_and(stays) {
        return None;
    }
    // What makes way must not go where the block lies, which leaves last.
    let mut around = layout.clone();
    around.spans[block].kind = Kind::Fixed;
    let snapshot = LayoutSnapshot::new(&around, costs);
    ends.iter().find_map(|&end| {
        let (region, high) = layout.spans.get(end).map(|end| (end.region, end.end()))?;
        let to = Spot { region, offset: high.checked_sub(span.size)? };
        // Its new place may overlap its old one.
        let overlaps = region == span.region && span.offset < high;
        let low = if overlaps { to.offset.max(span.end()) } else { to.offset };
        let mut plan = clear(&snapshot, Run { region, offset: low, size: high.checked_sub(low)? })?;
        // The block lies in it.
        plan.hole = None;
        plan.steps.push(Step { span: block, region, to: to.offset });
        plan.moved += u64::from(span.size);
        plan.cost = plan.cost.saturating_add(snapshot.price(block, to));
        Some(plan)
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{carry_out, layout, pin_ends, text},
        *,
    };

    const COSTS: Costs = Costs { per_move: 10, per_mib: 1 << 12, remap: None };

    /// The text after the plan for block `name`, and its cost.
    fn pinned(regions: &[&str], name: u8) -> Option<(Vec<String>, u64)> {
        let layout = layout(regions);
        let mut movable = (0..layout.spans.len()).filter(|&span| layout.spans[span].is_movable());
        let block = movable.nth(usize::from(name - b'a'))?;
        let plan = pin(&layout, block, &pin_ends(&layout, block), &COSTS)?;
        Some((text(&layout, &carry_out(&layout, &COSTS, &plan)), plan.cost))
    }

    fn after(regions: &[&str], cost: u64) -> Option<(Vec<String>, u64)> {
        Some((regions.iter().map(ToString::to_string).collect(), cost))
    }

    #[test]
    fn the_block_goes_to_the_upper_end_of_the_largest_stretch() {
        assert_eq!(pinned(&["a.bb.c...##.#"], b'b'), after(&["a....c.bb##.#"], 12));
        assert_eq!(pinned(&["#.aa.#b......."], b'a'), after(&["#....#b.....aa"], 12));
        assert_eq!(pinned(&["#.aa.#", "b......."], b'a'), after(&["#....#", "b.....aa"], 12));
    }

    #[test]
    fn it_may_overlap_its_old_place_and_others_make_way() {
        assert_eq!(pinned(&["..aaaa.#"], b'a'), after(&["...aaaa#"], 14));
        assert_eq!(pinned(&["..aaaabb#"], b'a'), after(&["bb..aaaa#"], 12 + 14));
        assert_eq!(pinned(&["..aa.bbb..cc#"], b'a'), after(&["cc...bbb..aa#"], 12 + 12));
    }

    #[test]
    fn who_lies_at_an_end_stays() {
        assert_eq!(pinned(&["..aa#"], b'a'), None);
        assert_eq!(pinned(&["....aa"], b'a'), None);
        assert_eq!(pinned(&["..#aa.."], b'a'), None);
        // The low end of a region is no such end: scratch grows there.
        assert_eq!(pinned(&["aa...."], b'a'), after(&["....aa"], 12));
    }

    #[test]
    fn where_nobody_can_make_way_it_stays() {
        assert_eq!(pinned(&["aaabbbb#"], b'a'), None);
        // Swapping needs room.
        assert_eq!(pinned(&["aaa.bbbb#"], b'a'), None);
    }

    /// A letter for each block, in order.
    fn any_region(rng: &mut fastrand::Rng, letters: &mut std::ops::RangeFrom<u8>) -> String {
        let mut text = String::new();
        for _ in 0..rng.usize(1..12) {
            let letter = match rng.u32(0..10) {
                0..4 => '.',
                4 => '#',
                _ => letters.next().map_or('.', char::from),
            };
            text.extend(std::iter::repeat_n(letter, rng.usize(1..6)));
        }
        text
    }

    #[test]
    fn any_plan_can_be_carried_out_and_ends_beside_what_stays() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut plans = 0;
        for _ in 0..5000 {
            let mut letters = b'a'..;
            let regions: Vec<String> = (0..rng.usize(1..3)).map(|_| any_region(&mut rng, &mut letters)).collect();
            let regions: Vec<&str> = regions.iter().map(String::as_str).collect();
            for name in b'a'..letters.start {
                let Some((after, _)) = pinned(&regions, name) else { continue };
                plans += 1;
                let name = char::from(name);
                let beyond = after.iter().find_map(|text| text.rfind(name).map(|last| text[last + 1..].chars().next()));
                assert!(matches!(beyond, Some(None | Some('#'))), "{name}: {regions:?} {after:?}");
            }
        }
        assert!(plans > 5000, "{plans}");
    }
}
