//! What the library under test counts, as its `pjrt_arena_counters` tells.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{event::HANG, plugin};

/// The sum of one of the numbers that `pjrt_arena_counters` tells of each device; `a/b` is `b` within `a`.
///
/// # Panics
/// When the library under test is not the arena, or does not tell this number.
pub fn sum(name: &str) -> u64 {
    let counters = plugin().json("pjrt_arena_counters");
    let pointer = format!("/{name}");
    let value = |device: &serde_json::Value| device.pointer(&pointer)?.as_u64();
    let devices = counters["devices"].as_array().expect("an array of devices");
    devices.iter().map(|device| value(device).unwrap_or_else(|| panic!("{name} in {counters}"))).sum()
}

/// Waits until no device holds anything: the last programs may not have told yet that they are done with what was
/// dropped, and what is pending divides the room for the next arrays.
///
/// # Panics
/// After [`HANG`].
pub fn wait_until_empty() {
    let held =
        || ["in_use_bytes", "pending_bytes", "live_blocks", "pending_blocks", "pinned_blocks", "engine_bytes"].map(sum);
    let start = Instant::now();
    while held() != [0; 6] && start.elapsed() < HANG {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(held(), [0; 6], "bytes in use, bytes pending, blocks live, pending and pinned, bytes of the engine");
}
