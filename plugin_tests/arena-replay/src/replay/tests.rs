//! Figures of the recorded traces, and of policies that do wrong.

use std::{fs, path::Path};

use pjrt_arena::{memory::Strategy, units::Address};

use super::*;
use crate::{bfc::Bfc, policy::ArenaPolicy};

pub(super) const RECORDED: [&str; 3] = ["idealloc_G_1", "idealloc_resnet50", "mit_magma"];
pub(super) const PUZZLES: [&str; 6] =
    ["minimalloc_A", "minimalloc_B", "minimalloc_C", "minimalloc_D", "minimalloc_E", "minimalloc_F"];

pub(super) fn read(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/traces").join(format!("{name}.ev"));
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Trace::parse(name, name, &text).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn parse(text: &str) -> Trace {
    Trace::parse("t", "t", text.as_bytes()).expect("a good trace")
}

/// The least capacity in percent above the peak.
fn excess<P: Policy>(trace: &Trace, policy: impl Fn(Bytes) -> Result<P, String>) -> f64 {
    let least = min_capacity(trace, policy, None).expect("a good policy").expect("64 peaks are enough");
    (least.get() as f64 / trace.peak.get() as f64 - 1.0) * 100.0
}

/// The excesses of a table, with their mean.
fn excesses<P: Policy>(names: &[&str], policy: impl Fn(Bytes) -> Result<P, String>) -> (Vec<f64>, f64) {
    let table: Vec<f64> = names.iter().map(|name| excess(&read(name), &policy)).collect();
    let mean = table.iter().sum::<f64>() / table.len() as f64;
    println!("{names:?} {table:.2?} mean {mean:.2}");
    (table, mean)
}

fn bfc(capacity: Bytes) -> Result<Bfc, String> {
    Ok(Bfc::new(capacity))
}

fn arena(strategy: Strategy) -> impl Fn(Bytes) -> Result<ArenaPolicy, String> {
    move |capacity| ArenaPolicy::new(strategy, capacity)
}

/// Another replica of BFC, made from its source independently of this one, needs 4.93, 2.34 and 3.27 %. Its search
/// took other steps, and with BFC more memory is not always enough where less was, so they agree but roughly.
#[test]
fn bfc_needs_what_another_replica_of_it_needs() {
    let (table, _) = excesses(&RECORDED, bfc);
    for (found, expected) in table.iter().zip([4.93, 2.34, 3.27]) {
        assert!((found - expected).abs() <= 0.2, "{found} % instead of {expected} %");
    }
}

/// The goal is 1.7 % on the mean of the recorded traces; BFC needs 3.5 % on the mean of the same ones, because it
/// hands out a whole hole unless the hole is twice the request.
#[test]
fn preallocate_needs_little_more_than_the_peak() {
    let (_, mean) = excesses(&RECORDED, arena(Strategy::Preallocate));
    assert!(mean <= 1.7, "{mean} % above the peaks");
}

/// Holes of different regions do not join, so growing needs more. BFC needs 4.59, 7.42 and 4.10 % when it grows.
#[test]
fn growing_needs_no_more_than_bfc_when_it_grows() {
    let (_, mean) = excesses(&RECORDED, arena(Strategy::Growing));
    assert!(mean <= (4.59 + 7.42 + 4.10) / 3.0, "{mean} % above the peaks");
}

/// Puzzles that an exact solver packs into exactly 1 MiB, hard for whoever sees one request at a time.
#[test]
fn puzzles_stay_below_bfc() {
    let (_, theirs) = excesses(&PUZZLES, bfc);
    let (_, ours) = excesses(&PUZZLES, arena(Strategy::Preallocate));
    assert!(ours < theirs, "{ours} % above the peaks, BFC {theirs} %");
}

#[test]
fn blocks_without_room_are_counted_and_their_frees_passed_over() {
    let trace = parse("a 1 512\na 2 512\na 3 1\nf 2\nf 1\na 2 700\nf 3");
    for outcome in [
        replay(&trace, &mut Bfc::new(Bytes::new(512)), None),
        replay(&trace, &mut ArenaPolicy::new(Strategy::Preallocate, Bytes::new(512)).expect("an arena"), None),
    ] {
        assert_eq!(outcome, Outcome { failed: 3, work: Work::default() });
    }
}

#[test]
fn the_least_capacity_is_the_peak_where_nothing_fragments() {
    let stack = parse("a 1 1000\na 2 5000\nf 2\na 3 300\nf 3\nf 1");
    for least in [min_capacity(&stack, arena(Strategy::Preallocate), None), min_capacity(&stack, bfc, None)] {
        assert_eq!(least, Ok(Some(stack.peak)));
    }
    assert_eq!(min_capacity(&parse(""), bfc, None), Ok(Some(Bytes::ZERO)));
}

#[test]
fn the_least_capacity_is_found_where_something_fragments() {
    // The third block stays between the holes of the first and the second, so the last one needs two units beyond the
    // peak.
    let trace = parse("a 1 512\na 3 256\na 2 512\nf 1\nf 2\na 4 1024");
    assert_eq!(trace.peak, Bytes::new(1280));
    let least = min_capacity(&trace, bfc, None).expect("a policy").expect("enough");
    assert_eq!(least, Bytes::new(256 * 7));
    assert_eq!(replay(&trace, &mut Bfc::new(least), None).failed, 0);
    assert_eq!(replay(&trace, &mut Bfc::new(least - UNIT), None).failed, 1);
}

/// Says no to everything, and counts what it is asked.
#[derive(Default)]
struct Never {
    asked: u64,
}

impl Policy for Never {
    type Block = ();

    fn allocate(&mut self, _: Bytes, _: &mut impl FnMut(Move)) -> Option<((), Address)> {
        self.asked += 1;
        None
    }

    fn free(&mut self, (): ()) {
        panic!("nothing was given");
    }

    fn settled(&self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_policy_that_never_has_room_ends_the_search() {
    let trace = parse("a 1 1\nf 1\na 1 1");
    assert_eq!(min_capacity(&trace, |_| Ok(Never::default()), None), Ok(None));
    let mut never = Never::default();
    assert_eq!((replay(&trace, &mut never, None).failed, never.asked), (2, 2));
}

/// Gives every block the same address, writes down the pins, and finds fault with itself after five blocks.
#[derive(Default)]
struct Overlapping {
    given: u64,
    pinned: Vec<u64>,
}

impl Policy for Overlapping {
    type Block = u64;

    fn allocate(&mut self, _: Bytes, _: &mut impl FnMut(Move)) -> Option<(u64, Address)> {
        self.given += 1;
        Some((self.given, Address::new(4096)))
    }

    fn free(&mut self, _: u64) {}

    fn pin(&mut self, block: u64, _: &mut impl FnMut(Move)) {
        self.pinned.push(block);
    }

    fn settled(&self) -> Result<(), String> {
        if self.given == 5 { Err("the books are wrong".into()) } else { Ok(()) }
    }
}

#[test]
fn every_kth_block_is_pinned() {
    let trace = parse(&"a 1 1\nf 1\n".repeat(7));
    let mut policy = Overlapping::default();
    replay(&trace, &mut policy, NonZeroU64::new(3));
    assert_eq!(policy.pinned, [3, 6]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "overlap the block")]
fn a_policy_that_gives_an_address_twice_is_noticed() {
    replay(&parse("a 1 1\na 2 1"), &mut Overlapping::default(), None);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "t: the books are wrong")]
fn books_that_do_not_agree_are_noticed() {
    replay(&parse(&"a 1 1\nf 1\n".repeat(5)), &mut Overlapping::default(), None);
}

#[test]
fn time_is_told_unless_nothing_happens() {
    let mut policy = Bfc::new(Bytes::kib(4));
    assert!(ns_per_op(&parse("a 1 300\nf 1\na 2 1"), &mut policy).is_some_and(|time| time > 0.0));
    assert_eq!(ns_per_op(&parse("# nothing"), &mut policy), None);
}
