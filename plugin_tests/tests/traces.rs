//! How much memory the strategies need for programs that were recorded.

use pjrt_arena::{
    device::fake::FakeBacking,
    memory::{Arena, Strategy},
    units::Bytes,
};
use plugin_tests::traces::{ADVERSARIAL, RECORDED, Trace};

/// A replay's capacity is tried in steps of 1/2000 (0.05 %) of the peak.
const STEPS: u64 = 2000;

fn replays(trace: &Trace, strategy: Strategy, limit: Bytes) -> bool {
    let device = FakeBacking::new(limit, Bytes::new(256));
    let arena = Arena::new("trace".into(), strategy, limit, Box::new(device.clone())).expect("a good arena");
    let fits = trace.replay(&arena).is_ok();
    let stats = arena.stats();
    assert_eq!(stats.bytes_in_use + stats.pending_bytes + stats.slack_bytes, Bytes::ZERO);
    assert_eq!(stats.free_bytes, stats.pool_bytes);
    drop(arena);
    assert_eq!((device.violations(), device.regions().len()), (0, 0));
    fits
}

/// The smallest limit that replays the trace, in percent above its peak, by bisection.
fn excess(trace: &Trace, strategy: Strategy) -> f64 {
    let limit = |steps: u64| Bytes::new(trace.peak.get() + trace.peak.get() * steps / STEPS);
    let (mut low, mut high) = (0, 4 * STEPS);
    assert!(replays(trace, strategy, limit(high)), "five times the peak");
    while low < high {
        let middle = low.midpoint(high);
        if replays(trace, strategy, limit(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high as f64 * 100.0 / STEPS as f64
}

/// Prints the table and returns the mean for `strategy`.
fn mean_excess(names: &[&str], strategy: Strategy) -> f64 {
    let excesses = names.iter().map(|name| {
        let trace = Trace::read(name);
        let excess = excess(&trace, strategy);
        println!("{strategy:<12} {name:<18} peak {:>10} {excess:+7.2} %", trace.peak);
        excess
    });
    excesses.sum::<f64>() / names.len() as f64
}

/// The goal is 1.7 % on the mean of the recorded traces. XLA's BFC needs 2.34 (resnet50), 4.93 (G_1) and 3.27 %
/// (magma) on the same ones: it hands out a whole hole unless the hole is twice the request.
#[test]
fn preallocate_needs_little_more_than_the_peak() {
    let mean = mean_excess(&RECORDED, Strategy::Preallocate);
    println!("mean {mean:+.2} %");
    assert!(mean <= 1.7, "{mean} % above the peaks");
}

/// Puzzles that an exact solver packs into exactly 1 MiB; best fit without moving anything needs 59.7 % more on the
/// mean of eleven of them, BFC 66.1 %. The bound only notices a policy that broke.
#[test]
fn puzzles_stay_below_bfc() {
    let mean = mean_excess(&ADVERSARIAL, Strategy::Preallocate);
    println!("mean {mean:+.2} %");
    assert!(mean <= 66.1, "{mean} % above the peaks");
}

/// Holes of different regions do not join, so growing needs more. BFC needs 7.42, 4.59 and 4.10 % when it grows.
#[test]
fn growing_needs_no_more_than_bfc_when_it_grows() {
    let mean = mean_excess(&RECORDED, Strategy::Growing);
    println!("mean {mean:+.2} %");
    assert!(mean <= (7.42 + 4.59 + 4.10) / 3.0, "{mean} % above the peaks");
}
