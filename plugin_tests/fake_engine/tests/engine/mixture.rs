//! pjrt-arena on the fake engine while the GPU is behind: any mixture of runs, runs that fail, donations, copies and
//! drops.

use plugin_tests::{Buffer, Client, Code, Loaded, Program, Result, counters::wait_until_empty};

use crate::common::{Driver, client};

const STEPS: usize = 400;
/// Arrays that are kept at a time.
const MOST: usize = 8;

/// An array that holds one value everywhere, and how many.
struct Array {
    buffer: Buffer,
    value: f32,
    count: usize,
}

impl Array {
    fn put(client: &Client, value: f32, count: usize) -> Result<Self> {
        let buffer = client.put(&vec![value; count], &[count as i64])?;
        Ok(Self { buffer, value, count })
    }

    fn check(&self, step: usize) {
        let values = self.buffer.read::<f32>().unwrap();
        let wrong = values.iter().position(|&value| value != self.value);
        assert_eq!(wrong.map(|at| (at, values[at])), None, "step {step}: {} of {}", self.value, self.count);
    }
}

/// Programs on arrays of one size.
struct Programs {
    count: usize,
    add: Loaded,
    donate: Option<Loaded>,
}

/// What one mixture, or several, came to.
#[derive(Debug, Default)]
struct Counts {
    copies: usize,
    /// What found no memory.
    refused: usize,
}

impl Counts {
    /// What was made, if anything was. `packs` says that arrays move. Where they do not, they may be spread over all
    /// memory, so that none of it can go to the engine, which needs some for a copy of what is still written; or the
    /// engine has some, and the hole that fits best lacks it. The error has these `words` then.
    #[track_caller]
    fn made<T>(&mut self, outcome: Result<T>, packs: bool, words: &str) -> Option<T> {
        match outcome {
            Ok(made) => Some(made),
            Err(failure) if !packs => {
                failure.expect(Code::RESOURCE_EXHAUSTED, &[words]);
                self.refused += 1;
                None
            }
            Err(failure) => panic!("{failure:?}"),
        }
    }
}

/// The words of an array of the arena's that found no memory.
const NO_MEMORY: &str = "Out of memory while trying to allocate";

/// One mixture.
fn mix(seed: u64, packs: bool, counts: &mut Counts) {
    let client = client();
    let mut random = fastrand::Rng::with_seed(seed);
    let compile = |program| client.compile(&program).unwrap();
    let programs = [
        Programs { count: 1 << 18, add: compile(Program::add_one_1m()), donate: None },
        Programs { count: 1 << 10, add: compile(Program::add_one()), donate: Some(compile(Program::donate())) },
    ];
    let mut arrays: Vec<Array> = Vec::new();
    for step in 0..STEPS {
        while arrays.len() >= MOST {
            arrays.swap_remove(random.usize(..arrays.len()));
        }
        let Programs { count, add, donate } = random.choice(&programs).unwrap();
        let fitting = (0..arrays.len()).filter(|&at| arrays[at].count == *count);
        let Some(at) = random.choice(fitting.collect::<Vec<_>>()).filter(|_| random.u8(..8) > 0) else {
            arrays.extend(counts.made(Array::put(&client, random.u8(..).into(), *count), packs, NO_MEMORY));
            continue;
        };
        let next = |array: &Array, buffer| Array { buffer, value: array.value + 1.0, count: array.count };
        match random.u8(..10) {
            0..4 => {
                let buffer = counts.made(add.run1(&[&arrays[at].buffer]), packs, NO_MEMORY);
                arrays.extend(buffer.map(|buffer| next(&arrays[at], buffer)));
            }
            4 => drop(arrays.swap_remove(at)),
            5 => arrays.swap_remove(at).check(step),
            6 => {
                let Array { buffer, value, count } = &arrays[at];
                let copy = buffer.copy_to_memory(client.device().default_memory());
                if let Some(buffer) = counts.made(copy, packs, "arrays of the engine's own") {
                    counts.copies += 1;
                    arrays.push(Array { buffer, value: *value, count: *count });
                }
            }
            7 if donate.is_some() => {
                let array = arrays.swap_remove(at);
                let buffer = donate.as_ref().unwrap().run1(&[&array.buffer]).unwrap();
                arrays.push(next(&array, buffer));
            }
            _ => {
                // Refused, not launched at all, or launched and then given up.
                match random.choice(["", "fake_cuda_kernel:1:999", "cuEventRecord:1:999"]).unwrap() {
                    "" => arrays[at].buffer.delete().unwrap(),
                    fault => Driver::get().configure("fail", fault),
                }
                let array = arrays.swap_remove(at);
                let program = donate.as_ref().filter(|_| random.bool()).unwrap_or(add);
                // What the engine or the arena does before may take the fault, and the run go well.
                if let Ok(result) = program.run1(&[&array.buffer])
                    && result.ready().wait().is_ok()
                {
                    next(&array, result).check(step);
                }
            }
        }
    }
    arrays.iter().for_each(|array| array.check(STEPS));
    drop(arrays);
    // The engine's copies were in its pool, which gives back what the host has seen to be free: a run that it waits for
    // shows it.
    let one = Array::put(&client, 1.0, 1 << 10).unwrap();
    assert_eq!(programs[1].add.run1(&[&one.buffer]).unwrap().read::<f32>().unwrap()[0], 2.0);
    drop(one);
    wait_until_empty();
    let all: Vec<Array> = (0..11).map(|at| Array::put(&client, at as f32, 1 << 18).unwrap()).collect();
    all.iter().for_each(|array| array.check(STEPS));
}

/// As many arrays as are kept, and a little more: who needs memory often waits for runs, or for what failed.
const LIMIT: (&str, &str) = ("PJRT_ARENA_LIMIT", "12MiB");

macro_rules! mixtures {
    ($($name:ident: $strategy:literal, $era:literal;)*) => {
        $(
            #[test]
            fn $name() {
                on_the_arena!(
                    [
                        LIMIT,
                        ("PJRT_ARENA_STRATEGY", $strategy),
                        ("FAKE_ENGINE_ERA", $era),
                        ("FAKE_CUDA_LATENCY_US", "300")
                    ],
                    || {
                        let mut counts = Counts::default();
                        (0..4).for_each(|seed| mix(seed, $strategy == "tpu", &mut counts));
                        assert!(
                            counts.copies > 4 * STEPS / 20 && counts.refused < 4 * STEPS / 100,
                            "{counts:?}"
                        );
                    }
                );
            }
        )*
    };
}

mixtures! {
    any_mixture_under_preallocate: "preallocate", "114";
    any_mixture_under_growing: "growing", "114";
    any_mixture_under_platform: "platform", "114";
    any_mixture_under_tpu: "tpu", "114";
    any_mixture_under_tpu_of_an_older_engine: "tpu", "112";
}
