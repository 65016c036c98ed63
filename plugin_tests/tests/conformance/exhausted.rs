//! The whole text of exhausted memory: its numbers are of the instant of the failure and of the whole call, and its
//! hint lets the same calls through.

use std::thread;

use pjrt_arena::units::Bytes;
use plugin_tests::{
    Buffer, Client, Code, Device, ElementType, Failure, Gate, Program, RunOptions, Value, gate, in_child, plugin,
};
use serde_json::Value as Json;

use crate::{DIMS, MIB, N, eventually, ramp, settles_at, ticket};

pub(crate) const STRATEGIES: [&str; 4] = ["preallocate", "growing", "platform", "tpu"];

/// Bytes of one array of most programs.
pub(crate) const ARRAY: i64 = 4 * N as i64;
/// The same of [`Program::many_results`], and how many there are.
const SMALL: i64 = 64;
const RESULTS: i64 = 300;

/// A client whose devices have so many bytes each.
pub(crate) fn client(strategy: &str, devices: i64, limit: i64, more: &[(&str, &str)]) -> Client {
    let limit = limit.to_string();
    let options = [("strategy", strategy), ("limit", &*limit)].into_iter().chain(more.iter().copied());
    let options: Vec<_> = options.map(|(name, value)| (name, Value::from(value))).collect();
    Client::create(devices, &options).unwrap()
}

/// Bytes as texts tell them.
pub(crate) fn size(bytes: i64) -> String {
    Bytes::new(bytes as u64).to_string()
}

pub(crate) fn filled(client: &Client, bytes: i64) -> Buffer {
    filled_on(client, client.device(), bytes)
}

fn filled_on(client: &Client, device: Device, bytes: i64) -> Buffer {
    Buffer::uninitialized_in(client, device.default_memory(), ElementType::U8, &[bytes]).unwrap()
}

/// What an array takes at least, by strategy: a page has one owner under `platform`.
fn unit(strategy: &str) -> i64 {
    if strategy == "platform" { 4096 } else { 256 }
}

/// All that the library counts of devices, but what a call changes that leaves nothing: peaks, and how much was tried.
pub(crate) fn books() -> Json {
    fn prune(value: &mut Json) {
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !name.starts_with("peak") && name != "allocations" && !name.contains("seconds"));
            fields.values_mut().for_each(prune);
        }
    }
    let mut devices = plugin().json("pjrt_arena_counters")["devices"].take();
    devices.as_array_mut().unwrap().iter_mut().for_each(prune);
    devices
}

/// A size as a text tells it, and by how much rounding may have changed it.
fn read(text: &str) -> (f64, f64) {
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap();
    let (number, unit) = text.split_at(digits);
    let power = ["B", "KiB", "MiB", "GiB"].iter().position(|name| *name == unit).unwrap();
    let (factor, decimals) = (1024f64.powi(power as i32), number.split_once('.').map_or(0, |(_, rest)| rest.len()));
    let rounded = if decimals == 0 { 0.0 } else { factor * 0.51 / 10f64.powi(decimals as i32) };
    (number.parse::<f64>().unwrap() * factor, rounded)
}

/// The text of an error, read.
pub(crate) struct Told {
    pub(crate) text: String,
    /// Sizes, blocks and origins of those that hold the memory, in their order.
    pub(crate) holders: Vec<(String, i64, String)>,
}

impl Told {
    /// Of an outcome that must be exhausted memory. The parts of the pool must sum to it, and the holders to what is in
    /// use.
    #[track_caller]
    pub(crate) fn of<T>(outcome: plugin_tests::Result<T>) -> Self {
        let Failure { code, message: text } = outcome.map(drop).unwrap_err();
        assert_eq!(code, Code::RESOURCE_EXHAUSTED, "{text}");
        let holders = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("  held by ").or_else(|| line.strip_prefix("          "))?;
            let (bytes, rest) = rest.split_once(" in ")?;
            let (blocks, origin) = rest.split_once(' ')?;
            let origin = origin.strip_prefix("block(s): ").unwrap_or(origin);
            Some((bytes.to_owned(), blocks.parse().unwrap(), origin.to_owned()))
        });
        let told = Self { holders: holders.collect(), text: text.clone() };
        let parts = ["in use", "pending", "slack", "free"].map(|name| told.part(name));
        let scratch = told.text.contains(" + programs' scratch ").then(|| told.part("programs' scratch"));
        told.sums_to(told.part("pool"), parts.into_iter().chain(scratch));
        told.sums_to(told.part("in use"), told.holders.iter().map(|(bytes, ..)| &**bytes));
        told
    }

    #[track_caller]
    fn sums_to<'a>(&self, sum: &str, parts: impl Iterator<Item = &'a str>) {
        let (sum, rounded) = read(sum);
        let (parts, by) = parts.map(read).fold((0.0, rounded), |(sum, by), (part, its)| (sum + part, by + its));
        assert!((sum - parts).abs() <= by, "{parts} are not {sum}: {}", self.text);
    }

    /// One of the numbers of the second line, such as `in use`.
    #[track_caller]
    pub(crate) fn part(&self, name: &str) -> &str {
        let mut parts = self.line("  limit ").split([',', '=', '+']).map(str::trim);
        let found = parts.find_map(|part| part.strip_prefix(name));
        found.unwrap_or_else(|| panic!("no {name} in {}", self.text)).trim()
    }

    /// What follows `start` in the line that begins so.
    #[track_caller]
    pub(crate) fn line(&self, start: &str) -> &str {
        let found = self.text.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("no line begins with {start:?} in {}", self.text))
    }

    #[track_caller]
    pub(crate) fn has(&self, parts: &[&str]) {
        parts.iter().for_each(|part| assert!(self.text.contains(part), "{part:?} is missing in {}", self.text));
    }

    /// The limit that would have been enough, in bytes.
    #[track_caller]
    pub(crate) fn limit(&self) -> i64 {
        let (limit, _) = self.line("  hint: PJRT_ARENA_LIMIT=").split_once("MiB would have been enough").unwrap();
        limit.parse::<i64>().unwrap() * MIB
    }

    /// The limit of the hint lets `calls` through, and a MiB less does not.
    #[track_caller]
    pub(crate) fn is_the_least(&self, calls: impl Fn(i64) -> plugin_tests::Result<()>) {
        let enough = self.limit();
        assert_eq!(calls(enough), Ok(()), "after {}", self.text);
        // That was refused already.
        if self.line("  limit ").starts_with(&format!("{},", size(enough - MIB))) {
            return;
        }
        let refused = calls(enough - MIB).map_err(|failure| failure.code);
        assert_eq!(refused, Err(Code::RESOURCE_EXHAUSTED), "with a MiB less than in {}", self.text);
    }
}

/// The first value of each result.
pub(crate) fn first_values(results: &[Buffer]) -> Vec<f32> {
    results.iter().map(|result| result.read::<f32>().unwrap()[0]).collect()
}

#[test]
fn c31_arena_a_call_that_has_a_part_of_its_results_is_told_to_the_byte() {
    in_child!(&[], || {
        // It takes long to compile.
        let program = Client::one().compile(&Program::many_results()).unwrap().executable().serialize().unwrap();
        for strategy in STRATEGIES {
            // So many results find room that what the call had is told in bytes, or what it still wanted.
            for results in [8, RESULTS - 8] {
                let (limit, unit) = (2 * MIB, unit(strategy));
                let filler = limit - unit - results * unit;
                let calls = |limit: i64| {
                    let client = client(strategy, 1, limit, &[]);
                    let program = client.deserialize(&program).unwrap();
                    let x = client.put(&[1f32; 16], &[16]).unwrap();
                    let filler = filled(&client, filler);
                    let before = books();
                    let outcome = program.run(&[&x]).map(|results| first_values(&results));
                    if outcome.is_err() {
                        eventually("all is given back", || books() == before);
                        // The next attempt finds the same.
                        let again = program.run(&[&x]).map(|results| first_values(&results));
                        assert_eq!(again, outcome, "{strategy}");
                        eventually("all is given back", || books() == before);
                        drop((x, filler));
                        settles_at(&client, 0);
                        drop(filled(&client, limit));
                    } else {
                        assert_eq!(outcome, Ok((1..=RESULTS).map(|value| value as f32).collect()));
                    }
                    outcome.map(drop)
                };
                let told = Told::of(calls(limit));
                told.has(&[&format!("allocate 64B (64 bytes) on cpu:0 [arena, {strategy}].\n  limit 2.00MiB")]);
                let failed = told.line("  wanted for many_results output ").strip_suffix(" f32[16]").unwrap();
                let had: i64 = failed.parse().unwrap();
                assert!((had - results).abs() < 8, "{strategy}: {}", told.text);
                let (took, wants) = (size(had * SMALL), size((RESULTS - 1 - had) * SMALL));
                told.has(&[&format!("\n  of a call that had {took} and wanted {wants} more\n")]);
                assert_eq!(told.part("in use"), size(filler + SMALL + had * SMALL), "{}", told.text);
                assert_eq!(told.part("pending"), "0B");
                let holders: Vec<_> = told.holders.iter().map(|(bytes, blocks, _)| (&**bytes, *blocks)).collect();
                let (filler, others) = (size(filler), size((had - 3) * SMALL));
                let each = [(&*filler, 1), ("64B", 1), ("64B", 1), ("64B", 1), ("64B", 1), (&*others, had - 3)];
                assert_eq!(holders, each, "{}", told.text);
                told.is_the_least(calls);
            }
        }
    });
}

#[test]
fn c31_arena_every_byte_in_use_has_a_holder_that_is_named() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            let filler = MIB - 2 * ARRAY;
            let client = client(strategy, 1, MIB, &[]);
            let program = client.compile(&Program::two_results()).unwrap();
            let x = client.put(&ramp(1.0), &DIMS).unwrap();
            let _filler = filled(&client, filler);
            let before = books();
            let told = Told::of(program.run(&[&x, &x]));
            let named = [
                (size(filler), 1, format!("uninitialized u8[{filler}]")),
                (size(ARRAY), 1, "two_results output 0 f32[1024]".to_owned()),
                (size(ARRAY), 1, "from host f32[1024]".to_owned()),
            ];
            let mut holders = told.holders.clone();
            holders.sort_by(|one, other| other.2.cmp(&one.2));
            assert_eq!(holders, named, "{}", told.text);
            told.has(&[
                "allocate 4.0KiB (4096 bytes)",
                "pool 1.00MiB = in use 1.00MiB + pending 0B + slack 0B + free 0B\n",
                "\n  largest hole 0B, largest request that would fit 0B (0 bytes)\n",
                "\n  wanted for two_results output 1 f32[1024]\n  of a call that had 4.0KiB and wanted 0B more\n",
            ]);
            assert_eq!(told.limit(), 2 * MIB);
            eventually("all is given back", || books() == before);
        }
    });
}

/// `x` behind a gate, and `u` added to it. The name makes it a program that calls Python, beside which nobody waits long.
const CALLS_PYTHON: &str = "module @xla_ffi_python_cpu_callback {
  func.func public @main(%x: tensor<1024xf32>, %t: tensor<i32>, %u: tensor<1024xf32>) -> tensor<1024xf32> {
    %g = stablehlo.custom_call @pjrt_arena_test_gate(%x, %t)
      {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
      : (tensor<1024xf32>, tensor<i32>) -> tensor<1024xf32>
    %y = stablehlo.add %g, %u : tensor<1024xf32>
    return %y : tensor<1024xf32>
  }
}";

#[test]
fn c31_arena_a_call_is_told_to_wait_only_where_that_makes_room_for_all_of_it() {
    in_child!(&[], || {
        gate::prepare();
        for strategy in STRATEGIES {
            let client = client(strategy, 1, MIB, &[]);
            let two = client.compile(&Program::two_results()).unwrap();
            let calls = client.compile(&Program::text(CALLS_PYTHON)).unwrap();
            let [a, x, u] = [0.0, 1.0, 2.0].map(|start| client.put(&ramp(start), &DIMS).unwrap());
            let gate = Gate::closed();
            let ticket = ticket(&client, &gate);
            thread::scope(|scope| {
                // Whatever fails here, it opens when it goes.
                let gate = gate;
                // It returns when the program is over.
                let running = scope.spawn(|| first_values(&calls.run(&[&x, &ticket, &u]).unwrap()));
                gate.wait_reached();
                // Less is left than an array takes.
                let scratch = client.stats().unwrap().bytes_reserved.unwrap();
                let filler = filled(&client, MIB - 4 * ARRAY - scratch);
                let limit = "  hint: PJRT_ARENA_LIMIT=2MiB would have been enough; ";
                // A program runs, but gives nothing back.
                let nothing = Told::of(two.run(&[&a, &a]));
                assert_eq!(nothing.part("pending"), "0B");
                nothing.line(limit);
                // One array comes back, and two are wanted.
                x.delete().unwrap();
                let one = Told::of(two.run(&[&a, &a]));
                assert_eq!(one.part("pending"), size(ARRAY));
                one.line(limit);
                u.delete().unwrap();
                let both = Told::of(two.run(&[&a, &a]));
                assert_eq!(both.part("pending"), size(2 * ARRAY));
                both.has(&["output 0 f32[1024]\n  of a call that had 0B and wanted 4.0KiB more\n"]);
                assert_eq!(
                    both.line("  hint: "),
                    "8.0KiB come back when programs under way end; wait for them (jax.block_until_ready) and try again"
                );
                gate.open();
                assert_eq!(running.join().unwrap(), [3.0]);
                let kept = two.run(&[&a, &a]).unwrap();
                // Nothing runs any more.
                let over = Told::of(two.run(&[&a, &a]));
                assert_eq!(over.part("pending"), "0B");
                over.line("  hint: PJRT_ARENA_LIMIT=");
                drop((kept, filler));
            });
        }
    });
}

#[test]
fn c31_arena_of_two_devices_the_short_one_is_told_of() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            let calls = |limit: i64| {
                let client = client(strategy, 2, limit, &[]);
                let [first, second] = client.addressable_devices().try_into().unwrap();
                let program = client.compile(&Program::two_results().replicated(2)).unwrap();
                let [a, b] = [first, second].map(|device| client.put_on(device, &ramp(1.0), &DIMS).unwrap());
                let _filler = filled_on(&client, second, MIB - 2 * ARRAY);
                let before = books();
                let outcome = program.execute(&[&[&a, &a], &[&b, &b]], RunOptions::default());
                if outcome.is_err() {
                    eventually("all is given back", || books() == before);
                }
                outcome.map(|run| run.outputs.iter().for_each(|results| assert_eq!(first_values(results), [2.0, 1.0])))
            };
            let told = Told::of(calls(MIB));
            let filler = format!("uninitialized u8[{}]", MIB - 2 * ARRAY);
            told.has(&[
                &format!("on cpu:1 [arena, {strategy}]"),
                &filler,
                "\n  wanted for two_results output 1 f32[1024]\n  of a call that had 4.0KiB and wanted 0B more\n",
                " for 2 devices",
            ]);
            // What the first device holds, and what the call had there, is not counted.
            assert_eq!(told.holders.iter().map(|(_, blocks, _)| blocks).sum::<i64>(), 3, "{}", told.text);
            told.is_the_least(calls);
        }
    });
}

#[test]
fn c31_arena_a_limit_is_advised_for_both_devices() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            let calls = |limit: i64| {
                let client = client(strategy, 2, limit, &[]);
                let [first, second] = client.addressable_devices().try_into().unwrap();
                let program = client.compile(&Program::add_one_4m().replicated(2)).unwrap();
                let put = |device| client.put_on(device, &vec![1f32; MIB as usize], &[MIB]).unwrap();
                let (a, b) = (put(first), put(second));
                let _filler = filled_on(&client, first, 2 * MIB);
                // A result, of the first program on its device, as the call is that fails on the other one.
                let alone = client.compile(&Program::add_one_4m().on_device(1)).unwrap();
                let _result = alone.run1(&[&b])?;
                let run = program.execute(&[&[&a], &[&b]], RunOptions::default())?;
                run.outputs.iter().for_each(|results| assert_eq!(first_values(results), [2.0]));
                Ok(())
            };
            // The first device is short, and the second by more.
            let told = Told::of(calls(9 * MIB));
            told.has(&["on cpu:0 [arena", "in use 6.00MiB", "wanted for add_one_4m output 0 f32[1048576]\n  held by"]);
            assert!(told.limit() >= 12 * MIB, "{}", told.text);
            told.is_the_least(calls);
        }
    });
}

#[test]
fn c31_arena_scratch_that_finds_no_room_is_told_with_all_of_its_call() {
    in_child!(&[], || {
        let client = client("tpu", 1, MIB, &[]);
        let program = client.compile(&Program::temp_heavy()).unwrap();
        let (scratch, array) = (program.executable().sizes().unwrap().temp, 256 << 10);
        assert!(scratch >= array, "{scratch}");
        let x = client.put(&vec![0f32; 1 << 16], &[256, 256]).unwrap();
        let left = 100 << 10;
        let filler = filled(&client, MIB - array - left);
        let before = books();
        let told = Told::of(program.run(&[&x]));
        let short = |bytes: i64| pjrt_arena::units::short(Bytes::new(bytes as u64));
        let (wanted, free) = (short(scratch), short(left));
        told.has(&[
            &format!(
                "Error loading program 'temp_heavy': Attempting to reserve {wanted} at the bottom of memory. That was not \
                 possible. There are {free} free, 0B reserved, and {free} reservable. (cpu:0) [arena, tpu]\n  limit 1.00MiB"
            ),
            &format!("in use {} + pending 0B + slack 0B + free {}\n", size(MIB - left), size(left)),
            "\n  wanted for programs' scratch\n  of a call that had 0B and wanted 256.0KiB more\n",
        ]);
        assert_eq!((told.holders.len(), told.limit()), (2, 2 * MIB), "{}", told.text);
        eventually("all is given back", || books() == before);
        drop(filler);
        // It has its scratch, and finds no room for its result.
        let left = scratch + (100 << 10);
        let filler = filled(&client, MIB - array - left);
        let told = Told::of(program.run(&[&x]));
        told.has(&[
            "allocate 256.0KiB (262144 bytes) on cpu:0 [arena, tpu]",
            &format!(" + slack 0B + programs' scratch {} + free {}\n", size(scratch), size(left - scratch)),
            &format!("output 0 f32[256,256]\n  of a call that had {} and wanted 0B more\n", size(scratch)),
        ]);
        assert_eq!((told.holders.len(), told.limit()), (2, 2 * MIB), "scratch is in use by nobody: {}", told.text);
        drop((x, filler));
        settles_at(&client, 0);
        drop(filled(&client, MIB));
    });
}

/// A product of 4 MiB between two small ones.
const LARGE_SCRATCH: &str = "module @large_scratch {
  func.func public @main(%x: tensor<1024x2xf32>) -> tensor<1024x2xf32> {
    %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1]
      : (tensor<1024x2xf32>, tensor<1024x2xf32>) -> tensor<1024x1024xf32>
    %z = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0]
      : (tensor<1024x1024xf32>, tensor<1024x2xf32>) -> tensor<1024x2xf32>
    return %z : tensor<1024x2xf32>
  }
}";

#[test]
fn c31_arena_the_limit_that_is_advised_for_scratch_is_the_least() {
    in_child!(&[], || {
        let calls = |limit: i64| {
            let client = client("tpu", 1, limit, &[]);
            let program = client.compile(&Program::text(LARGE_SCRATCH)).unwrap();
            let scratch = program.executable().sizes().unwrap().temp;
            assert!((4 * MIB..5 * MIB).contains(&scratch), "{scratch}");
            let x = client.put(&[1f32; 2048], &[1024, 2]).unwrap();
            let _filler = filled(&client, MIB);
            let run = program.run(&[&x])?;
            assert_eq!(first_values(&run), [2048.0]);
            Ok(())
        };
        let told = Told::of(calls(2 * MIB));
        assert!(told.limit() >= 6 * MIB, "{}", told.text);
        told.is_the_least(calls);
    });
}
