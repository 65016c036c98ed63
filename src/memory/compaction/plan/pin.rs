//! A place for a block that is about to be pinned: beside others that stay, so that it divides nothing.
//!
//! ```text
//!  before   | a B c c d . . e . | # | f . | # #       `#` stays, and soon `B` will
//!  after    | a . c c d . . e B | # | f . | # #       the upper end of the largest stretch
//!
//!  before   | a B c c d e e . . g g | # | f . | # #
//!  after    | a g g c c d e e . . B | # | f . | # #   what lies there makes way
//! ```

use std::{cmp::Reverse, ops::Range};

use crate::memory::compaction::{
    costs::Costs,
    layout::{Kind, Layout, Run, Spot},
    plan::{
        clear::clear,
        snapshot::LayoutSnapshot,
        step::{Plan, Step},
    },
};

/// Stretches that are tried.
const TRIED: usize = 5;

/// What lies between two spans that stay, the block itself taken for one that moves.
struct Stretch {
    spans: Range<usize>,
    low: u32,
    high: u32,
    /// At the low end of a region: where programs' scratch grows.
    lowest: bool,
}

impl Stretch {
    fn size(&self) -> u32 {
        self.high.saturating_sub(self.low)
    }
}

/// The plan behind [`crate::memory::compaction::plan::pin()`].
pub(super) fn pin(layout: &Layout, block: usize, costs: &Costs) -> Option<Plan> {
    let span = *layout.spans.get(block)?;
    let mut stretches = stretches(layout);
    let own = stretches.iter().find(|stretch| stretch.spans.contains(&block))?;
    if own.spans.end == block + 1 || (own.spans.start == block && !own.lowest) {
        return None;
    }
    stretches.retain(|stretch| stretch.size() >= span.size);
    stretches.sort_by_key(|stretch| Reverse(stretch.size()));

    // What makes way must not go where the block lies, which leaves last.
    let mut around = layout.clone();
    around.spans[block].kind = Kind::Fixed;
    let snapshot = LayoutSnapshot::new(&around, costs);
    stretches.iter().take(TRIED).find_map(|stretch| {
        let region = layout.spans.get(stretch.spans.start)?.region;
        let to = Spot { region, offset: stretch.high.checked_sub(span.size)? };
        // Its new place may overlap its old one.
        let low = if stretch.spans.contains(&block) { to.offset.max(span.end()) } else { to.offset };
        let mut plan = clear(&snapshot, Run { region, offset: low, size: stretch.high.checked_sub(low)? })?;
        // The block lies in it.
        plan.hole = None;
        plan.steps.push(Step { span: block, region, to: to.offset });
        plan.moved += u64::from(span.size);
        plan.cost = plan.cost.saturating_add(snapshot.price(block, to));
        Some(plan)
    })
}

fn stretches(layout: &Layout) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut open = false;
    let mut region = None;
    for (index, span) in layout.spans.iter().enumerate() {
        let lowest = region != Some(span.region);
        region = Some(span.region);
        open &= !lowest;
        if span.kind == Kind::Fixed {
            open = false;
        } else if let Some(stretch) = stretches.last_mut().filter(|_| open) {
            stretch.spans.end = index + 1;
            stretch.high = span.end();
        } else {
            stretches.push(Stretch { spans: index..index + 1, low: span.offset, high: span.end(), lowest });
            open = true;
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{carry_out, layout, text},
        *,
    };

    const COSTS: Costs = Costs { per_move: 10, per_mib: 1 << 12, remap: None };

    /// The text after the plan for block `name`, and its cost.
    fn pinned(regions: &[&str], name: u8) -> Option<(Vec<String>, u64)> {
        let layout = layout(regions);
        let mut movable = (0..layout.spans.len()).filter(|&span| layout.spans[span].is_movable());
        let plan = pin(&layout, movable.nth(usize::from(name - b'a'))?, &COSTS)?;
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
