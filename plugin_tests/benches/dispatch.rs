//! What one execution costs on the host: `cargo bench -p plugin_tests --bench dispatch`.
//!
//! The same tiny programs run on the bare engine and on pjrt-arena in front of it, in one process, in turn; each line is
//! the median of the rounds' nanoseconds per execution and the ratio of the two. One execution is what jaxlib does for
//! one call of a jitted function: create an execute context, execute with completion events, destroy event, context and
//! the outputs. Numbers are for reading; nothing fails on time. A word after `--` picks the programs whose line holds it; with
//! `PJRT_BENCH_ROUNDS=1` a run is short enough for `valgrind --tool=callgrind`.

use std::{ptr, time::Instant};

use plugin_tests::{Buffer, Client, Loaded, Plugin, Program, call, executable::Context, plugin, sys};

const EXECUTIONS: usize = 2_000;

/// One program on one plugin, with its arguments.
struct Lane {
    plugin: &'static Plugin,
    loaded: Loaded,
    arguments: Vec<Buffer>,
    outputs: usize,
    _client: Client,
}

impl Lane {
    fn new(plugin: &'static Plugin, program: &Program, arguments: usize, dims: &[i64]) -> Self {
        let client = Client::create_on(plugin, 1, &[]).expect("a client");
        let loaded = client.compile(program).expect("the program compiles");
        let outputs = loaded.executable().num_outputs();
        let values = vec![1.0_f32; dims.iter().product::<i64>() as usize];
        let arguments = (0..arguments).map(|_| client.put(&values, dims).expect("room")).collect();
        Self { plugin, loaded, arguments, outputs, _client: client }
    }

    fn run(&self) {
        let plugin = self.plugin;
        let arguments: Vec<*mut sys::PJRT_Buffer> = self.arguments.iter().map(Buffer::raw).collect();
        let mut outputs: Vec<*mut sys::PJRT_Buffer> = vec![ptr::null_mut(); self.outputs];
        let context = Context::create(plugin).expect("a context");
        let mut options = sys::PJRT_ExecuteOptions {
            struct_size: size_of::<sys::PJRT_ExecuteOptions>(),
            context: context.raw(),
            ..Default::default()
        };
        let (argument_list, output_list) = (arguments.as_ptr(), outputs.as_mut_ptr());
        let mut event = ptr::null_mut();
        call!(
            plugin,
            PJRT_LoadedExecutable_Execute {
                executable: self.loaded.raw(),
                options: &raw mut options,
                argument_lists: &raw const argument_list,
                num_devices: 1,
                num_args: arguments.len(),
                output_lists: &raw const output_list,
                device_complete_events: &raw mut event,
            }
        )
        .expect("it runs");
        drop(context);
        call!(plugin, PJRT_Event_Destroy { event: event }).expect("an event");
        for &buffer in &outputs {
            call!(plugin, PJRT_Buffer_Destroy { buffer: buffer }).expect("a buffer");
        }
    }

    /// Nanoseconds per execution of one round.
    fn round(&self) -> f64 {
        let start = Instant::now();
        (0..EXECUTIONS).for_each(|_| self.run());
        start.elapsed().as_nanos() as f64 / EXECUTIONS as f64
    }
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
    for (name, program, arguments, dims) in [
        ("f32[]: x + 1, inline", Program::add_one_scalar(), 1, &[][..]),
        ("f32[1024]: a + b, by its threads", Program::add(), 2, &[1024]),
        ("f32[1024]: two results", Program::two_results(), 2, &[1024]),
        ("f32[1024]: (a, b) -> (b, a, a)", Program::passthrough(), 2, &[1024]),
    ] {
        if !wanted.iter().all(|word| name.contains(word.as_str())) {
            continue;
        }
        let lanes = [Lane::new(bare, &program, arguments, dims), Lane::new(plugin(), &program, arguments, dims)];
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for (lane, times) in lanes.iter().zip(&mut times) {
                times.push(lane.round());
            }
        }
        let [bare, ours] = times.map(median);
        println!("{name:34} {bare:12.0} {ours:12.0} {:7.2}", ours / bare);
    }
}
