//! Nanoseconds that taking a block and giving it back cost inside of real executions:
//! `cargo bench -p plugin_tests --bench pairs`.
//!
//! The program's result is 256 KiB, too large for its block to wait for the next run, so that each execution allocates
//! one and frees one. While a profiler records, pjrt-arena notes how long each took; the times come from its trace.
//! They hold one reading of the clock, which is measured too, and is to be taken off each time once and off a pair
//! twice. A caller that waits for each program sleeps meanwhile, and finds the arena cold in the caches; one that runs
//! ahead, as a training loop does, finds it as the program and the calls between left it. Numbers are for reading;
//! nothing fails on time.

use std::{mem::zeroed, slice, time::Instant};

use plugin_tests::{
    Value,
    dispatch::{self, Lane},
    plugin, sys,
};
use prost::Message;

/// What is read of a trace: XLA's `xplane.proto`.
#[derive(Clone, PartialEq, Message)]
struct Space {
    #[prost(message, repeated, tag = "1")]
    planes: Vec<Plane>,
}

#[derive(Clone, PartialEq, Message)]
struct Plane {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "4")]
    events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// 1 is an allocation, 2 a free.
    #[prost(int64, tag = "1")]
    metadata: i64,
    #[prost(int64, tag = "3")]
    picoseconds: i64,
}

/// What the arena noted while `body` ran.
fn recorded(body: impl FnOnce()) -> Vec<Event> {
    const EXTENSION: u32 = sys::PJRT_Extension_Type_Profiler.0;
    let extension = plugin().extension(EXTENSION).cast::<sys::PJRT_Profiler_Extension>();
    // SAFETY: the extension and what its calls give live as long as the profiler; an error would not be NULL.
    let trace = unsafe {
        let api = &*(*extension).profiler_api;
        let mut created: sys::PLUGIN_Profiler_Create_Args = zeroed();
        assert!(api.create.expect("a function")(&mut created).is_null(), "a profiler");
        let mut args = sys::PLUGIN_Profiler_Args { struct_size: 0, profiler: created.profiler };
        assert!(api.start.expect("a function")(&mut args).is_null(), "it starts");
        body();
        assert!(api.stop.expect("a function")(&mut args).is_null(), "it stops");
        let mut data = sys::PLUGIN_Profiler_CollectData_Args { profiler: created.profiler, ..zeroed() };
        assert!(api.collect_data.expect("a function")(&mut data).is_null(), "it has data");
        let trace = Space::decode(slice::from_raw_parts(data.buffer, data.buffer_size_in_bytes)).expect("a trace");
        assert!(api.destroy.expect("a function")(&mut args).is_null(), "it ends");
        trace
    };
    let ours = trace.planes.into_iter().filter(|plane| plane.name.contains("pjrt-arena"));
    let lines = ours.flat_map(|plane| plane.lines).filter(|line| line.name == "allocations");
    lines.flat_map(|line| line.events).collect()
}

const EXECUTIONS: usize = 5_000;

/// One execution.
type Run = fn(&Lane);

/// How the caller goes on after Execute has returned.
const MANNERS: [(&str, Run); 2] = [("waits", Lane::run_and_wait), ("runs ahead", Lane::run)];

/// Median and 90th percentile.
fn percentiles(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[values.len() * 9 / 10]]
}

fn main() {
    let case = dispatch::large();
    println!("{}, ns, median and 90th percentile", case.0);
    println!("{:14} {:12} {:>17} {:>17} {:>17}", "strategy", "the caller", "allocate", "free", "pair");
    let show = |name: &str, manner: &str, columns: &[Vec<f64>]| {
        print!("{name:14} {manner:12}");
        for column in columns {
            let [median, late] = percentiles(column.clone());
            print!(" {median:8.0} {late:8.0}");
        }
        println!();
    };
    for strategy in ["preallocate", "growing", "tpu"] {
        let options = [("strategy", Value::Text(strategy.into()))];
        let lane = Lane::new(plugin(), &case, &options);
        for (manner, run) in MANNERS {
            (0..EXECUTIONS).for_each(|_| run(&lane));
            let events = recorded(|| (0..EXECUTIONS).for_each(|_| run(&lane)));
            lane.run_and_wait();
            let times = |metadata: i64| -> Vec<f64> {
                let events = events.iter().filter(|event| event.metadata == metadata);
                events.map(|event| event.picoseconds as f64 / 1000.0).collect()
            };
            let (allocations, frees) = (times(1), times(2));
            assert!(allocations.len() >= EXECUTIONS, "each execution allocates: {}", allocations.len());
            let pairs = allocations.iter().zip(&frees).map(|(one, other)| one + other).collect();
            show(strategy, manner, &[allocations, frees, pairs]);
        }
    }
    let clock = (0..EXECUTIONS).map(|_| {
        let since = Instant::now();
        since.elapsed().as_nanos() as f64
    });
    show("the clock", "", &[clock.collect()]);
}
