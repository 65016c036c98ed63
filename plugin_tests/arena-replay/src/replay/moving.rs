//! What moving promises: that the peak is enough.

use std::fmt::Write;

use pjrt_arena::memory::Strategy as Kind;
use proptest::prelude::*;

use super::{tests::*, *};
use crate::{policy::ArenaPolicy, synthetic::Workload};

fn tpu(capacity: Bytes) -> Result<ArenaPolicy, String> {
    ArenaPolicy::new(Kind::Tpu, capacity)
}

#[test]
fn the_peak_is_enough_for_every_recorded_trace() {
    for name in RECORDED.iter().chain(&PUZZLES) {
        let trace = read(name);
        assert_eq!(min_capacity(&trace, tpu, None), Ok(Some(trace.peak)), "{name}");
    }
}

#[test]
fn the_peak_is_enough_for_what_jax_does() {
    for workload in [Workload::Serving, Workload::Jitted, Workload::Finetune] {
        let trace = parse(&workload.generate(1));
        assert_eq!(min_capacity(&trace, tpu, None), Ok(Some(trace.peak)), "{}", workload.name());
    }
}

/// The goal is 5 % of the peak over the whole trace.
#[test]
fn with_one_percent_more_recorded_traces_move_little() {
    for name in RECORDED {
        let trace = read(name);
        let capacity = Bytes::new(trace.peak.get() / 100 * 101).round_down(UNIT);
        let outcome = replay(&trace, &mut tpu(capacity).expect("an arena"), None);
        assert_eq!(outcome.failed, 0, "{name}");
        assert!(outcome.work.moved.get() <= trace.peak.get() / 20, "{name}: {outcome:?}");
    }
}

fn failed_with_pins(name: &str, every: u64) -> u64 {
    let trace = read(name);
    let capacity = Bytes::new(trace.peak.get().div_ceil(100) * 101).round_down(UNIT);
    replay(&trace, &mut tpu(capacity).expect("an arena"), NonZeroU64::new(every)).failed
}

/// The goal is that 5 % of the allocations can be pinned. One puzzle stays unsolved: once its pinned block of 66 KiB
/// divides 1 MiB, blocks of the two sides would have to change places where neither side has room for one.
#[test]
fn with_one_percent_more_every_20th_block_may_be_pinned() {
    for name in RECORDED.iter().chain(&PUZZLES) {
        let unsolved = u64::from(*name == "minimalloc_F");
        assert!(failed_with_pins(name, 20) <= unsolved, "{name}");
    }
}

#[test]
fn with_one_percent_more_every_100th_block_may_be_pinned() {
    for name in RECORDED.iter().chain(&PUZZLES) {
        assert_eq!(failed_with_pins(name, 100), 0, "{name}");
    }
}

#[derive(Clone, Debug)]
enum Line {
    Take(u64),
    Free(prop::sample::Index),
}

fn lines(sizes: impl Strategy<Value = u64> + 'static) -> BoxedStrategy<Vec<Line>> {
    let line = prop_oneof![3 => sizes.prop_map(Line::Take), 2 => any::<prop::sample::Index>().prop_map(Line::Free)];
    prop::collection::vec(line, 1..300).boxed()
}

fn any_lines() -> impl Strategy<Value = Vec<Line>> {
    prop_oneof![
        // From nothing to 16 MiB, each doubling equally often.
        lines((0..25u32).prop_flat_map(|exponent| 0..1u64 << exponent)),
        // Slots, and what is just too large for one.
        lines(0..6000u64),
        // Few sizes, so that holes fit often.
        lines(prop::sample::select(vec![0, 1, 256, 4096, 4097, 1 << 16, 1 << 20, 3 << 20])),
        // Powers of two and what they miss by a granule.
        lines((8..24u32, 0..3u64).prop_map(|(exponent, more)| (1 << exponent) - 256 + 256 * more)),
        lines(Just(1000)),
    ]
}

/// A trace that takes `first` bytes before all else.
fn trace(first: u64, lines: &[Line]) -> Trace {
    let mut text = format!("a 0 {first}\n");
    let (mut next, mut live) = (1, vec![0]);
    for line in lines {
        match line {
            Line::Take(size) => {
                live.push(next);
                writeln!(text, "a {next} {size}").expect("a string takes everything");
                next += 1;
            }
            Line::Free(index) if !live.is_empty() => {
                let id = live.swap_remove(index.index(live.len()));
                writeln!(text, "f {id}").expect("a string takes everything");
            }
            Line::Free(_) => {}
        }
    }
    parse(&text)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// With the first block the arena is large enough for slabs, without it usually not.
    #[test]
    fn the_peak_is_enough_for_any_trace(
        first in prop::sample::select(vec![0, 1 << 20, (64 << 20) - 256, 64 << 20, 100 << 20, 1 << 30]),
        lines in any_lines(),
    ) {
        let trace = trace(first, &lines);
        prop_assert_eq!(min_capacity(&trace, tpu, None), Ok(Some(trace.peak)));
    }

    /// Pinned blocks may leave no room, but the books and the naive model agree, and nothing pinned moves.
    #[test]
    fn pins_break_nothing(
        first in prop::sample::select(vec![0, 64 << 20, 100 << 20]),
        every in 1..30u64,
        lines in any_lines(),
    ) {
        let trace = trace(first, &lines);
        let capacity = Bytes::new(trace.peak.get() / 50 * 51).round_down(UNIT).max(UNIT);
        replay(&trace, &mut tpu(capacity).expect("an arena"), NonZeroU64::new(every));
    }
}

/// Where most blocks are small, slabs must not keep them out of the holes of the larger ones.
#[test]
fn small_blocks_among_slightly_larger_ones_move_little() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut text, mut live, mut next) = (String::new(), Vec::new(), 0);
    for _ in 0..60_000 {
        // 5,600 blocks at most; their mean of 11.5 KiB makes a pool of about 64 MiB.
        if live.len() < 5600 && (rng.bool() || live.len() < 5000) {
            let size = 256u64 << rng.u32(0..8);
            writeln!(text, "a {next} {}", rng.u64(size..2 * size)).expect("a string takes everything");
            live.push(next);
            next += 1;
        } else {
            writeln!(text, "f {}", live.swap_remove(rng.usize(0..live.len()))).expect("a string takes everything");
        }
    }
    let trace = parse(&text);
    let capacity = Bytes::new(trace.peak.get() / 50 * 51).round_down(UNIT);
    let outcome = replay(&trace, &mut tpu(capacity).expect("an arena"), None);
    assert!(outcome.failed == 0 && outcome.work.moved.get() <= trace.peak.get() / 5, "{}: {outcome:?}", trace.peak);
}

#[test]
fn more_than_a_tebibyte_can_be_replayed() {
    let trace = parse("a 1 2199023255552\na 2 256\na 3 5000\nf 2\na 4 256");
    for kind in [Kind::Preallocate, Kind::Growing, Kind::Tpu] {
        let mut policy = ArenaPolicy::new(kind, trace.peak + Bytes::kib(4)).expect("an arena");
        assert_eq!(replay(&trace, &mut policy, None).failed, 0, "{kind:?}");
    }
}
