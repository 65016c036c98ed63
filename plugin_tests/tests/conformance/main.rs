//! The conformance checklist, asserted through the exported C API.
//!
//! Tests are named by their point: `c07_...` asserts point 7 of the checklist, `t03_...` pins trap 3. A name with
//! `arena` in it asserts what only this library promises; all the others also hold for a bare engine, and running them
//! on one (`PJRT_ARENA_TEST_LIBRARY=<engine> cargo test -p plugin_tests --test conformance -- --skip arena`) tests the
//! test client. All modules are one binary because each process that loads the engine pays for it.

mod async_transfer;
mod buffer;
mod callbacks;
mod client;
mod compaction;
mod concurrency;
mod device;
mod donation;
mod dropped_in_flight;
mod engines;
mod executable;
mod execute;
mod exhausted;
mod exhausted_donated;
mod exhausted_in_vain;
mod ffi;
mod handed_on;
mod idle;
mod lent;
mod lifetime;
mod misuse;
mod newer;
mod on_demand;
mod out_of_memory;
mod partitioners;
mod profiler;
mod readers;
mod replicas;
mod reports;
mod settings;
mod stats;
mod strategies;
mod table;
mod transfer;
mod traps;
mod versions;
mod views;
mod zero_copy;

use std::{
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use plugin_tests::{Buffer, Client, Gate, Plugin, Value, event::HANG, plugin::engine_path};

/// Elements of most programs' arrays.
const N: usize = 1024;
/// Their dimensions.
const DIMS: [i64; 1] = [N as i64];
/// One binary megabyte.
const MIB: i64 = 1 << 20;

/// A one-device client that tests share when they neither count nor block.
fn shared() -> &'static Client {
    static SHARED: OnceLock<Client> = OnceLock::new();
    SHARED.get_or_init(Client::one)
}

/// A four-device client, shared in the same way.
fn four() -> &'static Client {
    static FOUR: OnceLock<Client> = OnceLock::new();
    FOUR.get_or_init(|| Client::create(4, &[]).expect("four devices"))
}

/// A client with one device and a small limit, for tests that count.
fn limited(strategy: &str, limit: i64) -> Client {
    let limit = limit.to_string();
    Client::create(1, &[("strategy", Value::from(strategy)), ("limit", Value::from(limit.as_str()))])
        .expect("a client with a limit")
}

/// The engine itself, loaded without the library under test in front.
fn engine() -> &'static Plugin {
    static ENGINE: OnceLock<&'static Plugin> = OnceLock::new();
    ENGINE.get_or_init(|| Box::leak(Box::new(Plugin::load(&engine_path()).expect("the engine loads"))))
}

/// `start, start + 1, ...`: distinct values, all exact in `f32`.
fn ramp(start: f32) -> Vec<f32> {
    (0..N).map(|i| start + i as f32).collect()
}

/// Every value plus `delta`.
fn plus(values: &[f32], delta: f32) -> Vec<f32> {
    values.iter().map(|value| value + delta).collect()
}

/// The gate's ticket as a device scalar.
fn ticket(client: &Client, gate: &Gate) -> Buffer {
    client.put(&[gate.ticket()], &[]).expect("a scalar")
}

/// Waits until `condition` holds: for effects that the C API promises "eventually", such as memory that comes back.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "not within {HANG:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the first device has exactly `bytes` in use.
#[track_caller]
fn settles_at(client: &Client, bytes: i64) {
    eventually(&format!("bytes_in_use = {bytes}"), || client.stats().expect("statistics").bytes_in_use == bytes);
}
