//! Directed plans as text, and random layouts against the simulator and against searches that try everything.

mod reference;
mod thousands;

use super::{
    testing::{carry_out, layout, text},
    *,
};
use crate::{memory::compaction::Remap, units::Bytes};

/// Every granule copied costs one, and every move ten.
const UNIT: Costs = Costs { per_move: 10, per_mib: 1 << 12, remap: None };

/// As [`UNIT`]; pages have four granules and an exchange of eight or more costs two, so that a copied block of eight
/// costs 18 and an exchanged one 12.
const REMAP: Costs =
    Costs { remap: Some(Remap { page: Bytes::kib(1), least: Bytes::kib(2), per_exchange: 2, per_mib: 0 }), ..UNIT };

fn opened(regions: &[&str], need: u32, costs: &Costs) -> Option<(Vec<String>, u64)> {
    let layout = layout(regions);
    let plan = open_hole(&layout, need, costs)?;
    assert!(plan.hole.is_some_and(|hole| hole.size >= need), "{plan:?}");
    Some((text(&layout, &carry_out(&layout, costs, &plan)), plan.cost))
}

fn cleared(regions: &[&str], offset: u32, size: u32) -> Option<(Vec<String>, u64)> {
    let layout = layout(regions);
    let window = Run { region: RegionId(0), offset, size };
    let plan = clear(&layout, window, &UNIT)?;
    assert_eq!(plan.hole, Some(window));
    Some((text(&layout, &carry_out(&layout, &UNIT, &plan)), plan.cost))
}

fn packed(regions: &[&str]) -> (Vec<String>, u64) {
    let layout = layout(regions);
    let plan = pack(&layout, &UNIT);
    (text(&layout, &carry_out(&layout, &UNIT, &plan)), plan.cost)
}

/// The text after a plan, and its cost.
fn after(regions: &[&str], cost: u64) -> (Vec<String>, u64) {
    (regions.iter().map(ToString::to_string).collect(), cost)
}

#[test]
fn the_smallest_hole_that_is_large_enough_is_taken_as_it_is() {
    let layout = layout(&["....a...b....."]);
    let plan = open_hole(&layout, 3, &UNIT).expect("three holes do");
    assert_eq!(plan, Plan { hole: Some(Run { region: RegionId(0), offset: 5, size: 3 }), ..Plan::default() });
}

#[test]
fn nothing_is_opened_for_no_granules_or_for_more_than_are_free() {
    assert_eq!(opened(&["..a.b."], 0, &UNIT), None);
    assert_eq!(opened(&["..a.b."], 5, &UNIT), None);
    assert_eq!(opened(&[], 1, &UNIT), None);
}

#[test]
fn the_cheapest_block_between_two_holes_slides() {
    assert_eq!(opened(&["..aaaa..b.."], 4, &UNIT), Some(after(&["..aaaab...."], 11)));
}

#[test]
fn a_block_is_evacuated_where_that_moves_less_than_a_slide() {
    assert_eq!(opened(&["#...aaaa..bb#....."], 6, &UNIT), Some(after(&["#.........bb#aaaa."], 14)));
    assert_eq!(opened(&["aa.bbbbc...##....#"], 7, &UNIT), Some(after(&["aac........##bbbb#"], 14 + 11)));
    // Into another region as well.
    assert_eq!(opened(&["#.aaaa...bb", "c..d"], 4, &UNIT), Some(after(&["#.aaaa.....", "cbbd"], 12)));
}

#[test]
fn what_the_window_does_not_need_of_a_hole_takes_blocks() {
    // Four of `.. bb ...` are enough for the window, so that `bb` has two to go to.
    assert_eq!(opened(&["#...aa...#"], 4, &UNIT), Some(after(&["#aa......#"], 12)));
    // `a` can only go below and `b` only beyond the barrier: the window is the uppermost place.
    assert_eq!(opened(&["....aaabbb..#...c"], 9, &UNIT), Some(after(&["aaa.........#bbbc"], 2 * 13)));
}

#[test]
fn the_large_block_slides_and_the_small_one_leaves() {
    let regions = &["#..aaaaaaaa.bb..#..cccc#"];
    assert_eq!(opened(regions, 7, &UNIT), Some(after(&["#aaaaaaaa.......#bbcccc#"], 18 + 12)));
}

#[test]
fn blocks_that_stay_are_not_crossed() {
    assert_eq!(opened(&["..a#b..."], 5, &UNIT), None);
    assert_eq!(opened(&["..aa", "bb.."], 4, &UNIT), Some(after(&["....", "bbaa"], 12)));
    assert_eq!(opened(&["..##", "##.."], 4, &UNIT), None);
    // `b` would have to leave, and finds no room even if `a` makes way.
    assert_eq!(opened(&["..aaa.#.b.#"], 4, &UNIT), None);
}

#[test]
fn other_runs_make_room_where_barriers_leave_none() {
    // Holes of one granule: `a` fits nowhere until `b` has made way.
    let regions = &["#.aa.#.b.#ccc#"];
    assert_eq!(opened(regions, 4, &UNIT), Some(after(&["#....#baa#ccc#"], 11 + 12)));
    let regions = &["aaabbb#.c..#.d..#e.#"];
    assert_eq!(opened(regions, 6, &UNIT), Some(after(&["......#caaa#dbbb#e.#"], 2 * 13 + 2 * 11)));
    assert_eq!(opened(&["aaabb.#.cc."], 3, &UNIT), Some(after(&["aaa...#ccbb"], 2 * 12)));
    // The part below the window makes room as well.
    let regions = &["#.aaa.bbcc#.d.#"];
    assert_eq!(opened(regions, 4, &UNIT), Some(after(&["#aaa....cc#dbb#"], 13 + 12 + 11)));
}

#[test]
fn pages_are_exchanged_where_a_block_can_lie_alike() {
    // Both holes beyond the barrier could hold `a`; in the first it lies in its page as before.
    let regions = &["....aaaaaaaa....#bbb........#cc.........#"];
    let (map, cost) = opened(regions, 16, &REMAP).expect("`a` leaves");
    assert_eq!((map, cost), after(&["................#bbbaaaaaaaa#cc.........#"], 10 + 2));
    // Here it does so one granule above the hole's lower end.
    let (map, cost) = opened(&["....aaaaaaaa....#bb.............#"], 16, &REMAP).expect("`a` leaves");
    assert_eq!((map, cost), after(&["................#bb.aaaaaaaa....#"], 10 + 2));
}

#[test]
fn a_slide_stops_short_where_a_block_then_lies_alike() {
    // Down by twelve granules the block lies alike; by thirteen it would have to be copied.
    let regions = &[".............aaaaaaaaaa.."];
    assert_eq!(opened(regions, 14, &REMAP), Some(after(&[".aaaaaaaaaa.............."], 10 + 2)));
    assert_eq!(opened(regions, 15, &REMAP), Some(after(&["aaaaaaaaaa..............."], 10 + 10)), "no slack");
}

#[test]
fn an_empty_place_is_clear() {
    assert_eq!(cleared(&["aa...b"], 2, 2), Some(after(&["aa...b"], 0)));
    assert_eq!(cleared(&["aa...b"], 2, 0), None, "no place");
    assert_eq!(cleared(&["aa...b"], 4, 3), None, "beyond the end");
    assert_eq!(cleared(&["aa...#"], 4, 2), None, "the last granule stays");
}

#[test]
fn a_place_is_cleared_by_evacuation() {
    assert_eq!(cleared(&["aabb.c...d.."], 0, 3), Some(after(&[".....cbb.daa"], 12 + 12)));
    assert_eq!(cleared(&["aaa", "b.."], 1, 1), None, "too large for the only hole");
    // A hole that straddles the edge takes blocks with what lies outside.
    assert_eq!(cleared(&["#b..#"], 0, 1), None);
    assert_eq!(cleared(&["b..#"], 0, 2), Some(after(&["..a#"], 11)));
}

#[test]
fn a_place_is_cleared_by_pushing_blocks_aside() {
    assert_eq!(cleared(&["aaabb.cc..d"], 0, 3), Some(after(&["...aaabbccd"], 13 + 12 + 12)));
    assert_eq!(cleared(&["..aa.bbb"], 5, 3), Some(after(&["aabbb..."], 12 + 13)));
}

#[test]
fn a_place_is_cleared_into_runs_that_make_room() {
    assert_eq!(cleared(&["aa#.b.#"], 0, 2), Some(after(&["..#baa#"], 11 + 12)));
    assert_eq!(cleared(&["aa#.b#"], 0, 2), None);
}

#[test]
fn packing_leaves_one_hole_in_a_run() {
    assert_eq!(packed(&["a.bb#.c..d#.e"]), after(&["abbc#d....#e."], 12 + 3 * 11));
    assert_eq!(packed(&["aabb..", "####"]), after(&["aabb..", "####"], 0));
    assert_eq!(packed(&[]), after(&[], 0));
}

#[test]
fn packing_empties_regions() {
    assert_eq!(packed(&["a..b..", "c.dd"]), after(&["abddc.", "...."], 11 + 12 + 11));
    // `c` goes to the second region, which then stays as it is.
    assert_eq!(packed(&["aaaa.", "b..", "cc.."]), after(&["aaaa.", "bcc", "...."], 12));
}

#[test]
fn packing_widens_the_largest_hole() {
    assert_eq!(packed(&["a..#....bb...c.d#"]), after(&["abb#cd..........#"], 12 + 11 + 11));
}
