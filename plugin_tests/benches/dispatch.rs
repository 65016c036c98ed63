//! What one execution costs on the host: `cargo bench -p plugin_tests --bench dispatch`.
//!
//! The same tiny programs run on the bare engine and on pjrt-arena in front of it, in one process, in turn; each line
//! is the median of the rounds' nanoseconds per execution and the ratio of the two. One execution is what jaxlib does
//! for one call of a jitted function: create an execute context, execute with completion events, destroy event, context
//! and the outputs. Numbers are for reading; nothing fails on time. A word after `--` picks the
//! programs whose line holds it. The bench `instructions` counts instead.

use std::time::Instant;

use plugin_tests::{
    Plugin,
    dispatch::{self, Lane},
    plugin,
};

const EXECUTIONS: usize = 2_000;

/// Nanoseconds per execution of one round.
fn round(lane: &Lane) -> f64 {
    let start = Instant::now();
    (0..EXECUTIONS).for_each(|_| lane.run());
    start.elapsed().as_nanos() as f64 / EXECUTIONS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::var("PJRT_BENCH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(31);
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let bare = Plugin::load(&plugin_tests::plugin::engine_path()).expect("the engine");
    let bare: &'static Plugin = Box::leak(Box::new(bare));
    println!("{:34} {:>12} {:>12} {:>7}", "ns per execution, median", "bare engine", "pjrt-arena", "ratio");
    for case in dispatch::small() {
        let name = case.0;
        if !wanted.iter().all(|word| name.contains(word.as_str())) {
            continue;
        }
        let lanes = [bare, plugin()].map(|plugin| Lane::new(plugin, &case, &[]));
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (lane, times) in lanes.iter().zip(&mut times) {
                times.push(round(lane));
            }
        }
        let [bare, ours] = times.map(median);
        println!("{name:34} {bare:12.0} {ours:12.0} {:7.2}", ours / bare);
    }
}
