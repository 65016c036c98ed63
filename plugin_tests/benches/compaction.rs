//! 100,000 compactions under load, on one device and on four: `cargo bench -p plugin_tests --bench compaction`.
//!
//! A number after `--` asks for as many instead, a second one names the seed. With `--always` each allocation and each
//! launch moves all that can move, which comes to six times as many compactions in the same time. With `--spill` the
//! arrays take three times what the devices have, and as many are spilled. It fails on a wrong byte, a deadlock, a
//! leak, or resident memory that grows; the times are for reading.

use plugin_tests::stress::{Load, Outcome, Pressure, run};

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (compactions, seed) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(1));
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    // A device that is always packed is small: the time of a compaction goes with the bytes that move.
    let (pressure, alone) = match (asked("--always"), asked("--spill")) {
        (false, false) => (Pressure::Full, 64 << 20),
        (true, false) => (Pressure::Always, 16 << 20),
        (false, true) => (Pressure::Spilled, 64 << 20),
        (true, true) => panic!("--always or --spill, not both"),
    };
    for (devices, limit, share) in [(1, alone, compactions - compactions / 4), (4, 16 << 20, compactions / 4)] {
        let load = Load { devices, limit, threads: 8, pressure, compactions: share, seed };
        println!("{load:?}");
        show(&run(load));
    }
}

fn show(outcome: &Outcome) {
    let mib = |bytes: u64| bytes >> 20;
    println!("  compactions  {:>10}", outcome.compactions);
    println!("  spilled      {:>10}   {} brought back", outcome.spilled.0, outcome.spilled.1);
    println!("  moves        {:>10}   {} MiB", outcome.moves, mib(outcome.moved_bytes));
    println!("  checks       {:>10}   {} MiB", outcome.checks, mib(outcome.checked_bytes));
    println!("  seconds      {:>10.1}", outcome.time.as_secs_f64());
    println!(
        "  resident     {:>10} KiB after a tenth, {} KiB at the end",
        outcome.resident_early, outcome.resident_late
    );
    outcome.done.iter().for_each(|(what, times)| println!("    {times:>10} {what}"));
    outcome.refused.iter().for_each(|(why, times)| println!("    {times:>10} refused ({why})"));
    let grown = outcome.resident_late.saturating_sub(outcome.resident_early);
    assert!(grown < 64 << 10, "resident memory grew by {grown} KiB");
}
