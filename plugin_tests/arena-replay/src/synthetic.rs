//! Synthetic traces: workloads that no recording at hand shows, made from a seed.
//!
//! Sizes are those that JAX would ask for; what stands where in time follows how JAX runs programs: a program's results
//! are taken before its arguments are freed, scratch lives for one program, and scalars outlive what made them. Numbers
//! come from `fastrand` and from whole-number arithmetic only, so a seed makes the same trace on any machine.

use std::{collections::VecDeque, fmt::Write};

use fastrand::Rng;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What a synthetic trace imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Serving,
    Jitted,
    Batches,
    Finetune,
    RandomSmall,
    RandomLarge,
    RandomMixed,
}

impl Workload {
    pub(crate) const ALL: [Self; 7] = [
        Self::Serving,
        Self::Jitted,
        Self::Batches,
        Self::Finetune,
        Self::RandomSmall,
        Self::RandomLarge,
        Self::RandomMixed,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Jitted => "jitted",
            Self::Batches => "batches",
            Self::Finetune => "finetune",
            Self::RandomSmall => "random-small",
            Self::RandomLarge => "random-large",
            Self::RandomMixed => "random-mixed",
        }
    }

    /// A line about it.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Serving => "a language model answers: weights, growing caches, activations, kept scalars",
            Self::Jitted => "jax issue 9064: many programs leave small results, then one needs a big array",
            Self::Batches => "training whose batch size changes every few steps",
            Self::Finetune => "low-rank fine tuning on sequences of any length, layers gathered on demand",
            Self::RandomSmall => "random sizes from 256 bytes to 64 KiB, each doubling equally often",
            Self::RandomLarge => "the same from 1 to 64 MiB",
            Self::RandomMixed => "the same from 256 bytes to 256 MiB",
        }
    }

    /// The workload called `name`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// The text of a trace. Everything is freed at its end.
    pub(crate) fn generate(self, seed: u64) -> String {
        let mut script = Script::default();
        let rng = &mut Rng::with_seed(seed);
        _ = writeln!(script.text, "# arena-replay --generate {} --seed {seed}", self.name());
        match self {
            Self::Serving => serving(&mut script, rng),
            Self::Jitted => jitted(&mut script, rng),
            Self::Batches => batches(&mut script, rng),
            Self::Finetune => finetune(&mut script, rng),
            Self::RandomSmall => random(&mut script, rng, 8..16, 64 * MIB, 100_000),
            Self::RandomLarge => random(&mut script, rng, 20..26, 8 << 30, 20_000),
            Self::RandomMixed => random(&mut script, rng, 8..28, 8 << 30, 20_000),
        }
        script.text
    }
}

/// A block of the script.
#[derive(Clone, Copy, Debug)]
struct Block {
    id: u32,
    size: u64,
}

/// The trace that is written.
#[derive(Default)]
struct Script {
    text: String,
    next: u32,
    live: u64,
    peak: u64,
}

impl Script {
    fn take(&mut self, size: u64) -> Block {
        let id = self.next;
        self.next += 1;
        self.live += size;
        self.peak = self.peak.max(self.live);
        // Writing to a string does not fail.
        _ = writeln!(self.text, "a {id} {size}");
        Block { id, size }
    }

    fn free(&mut self, block: Block) {
        self.live -= block.size;
        _ = writeln!(self.text, "f {}", block.id);
    }

    fn take_all(&mut self, sizes: impl IntoIterator<Item = u64>) -> Vec<Block> {
        sizes.into_iter().map(|size| self.take(size)).collect()
    }

    fn free_all(&mut self, blocks: impl IntoIterator<Item = Block>) {
        blocks.into_iter().for_each(|block| self.free(block));
    }

    /// A program's scratch: taken one after the other, freed in the opposite order.
    fn stack(&mut self, sizes: impl IntoIterator<Item = u64>) {
        let blocks = self.take_all(sizes);
        self.free_all(blocks.into_iter().rev());
    }
}

/// A size of which each doubling within `2^exponents` is equally likely, and each size within a doubling.
fn log_uniform(rng: &mut Rng, exponents: std::ops::Range<u32>) -> u64 {
    let low = 1 << rng.u32(exponents);
    rng.u64(low..2 * low)
}

/// Scalars that stay: the newest `most` of them.
struct Kept {
    blocks: VecDeque<Block>,
    most: usize,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self { blocks: VecDeque::new(), most }
    }

    fn push(&mut self, script: &mut Script, size: u64) {
        self.blocks.push_back(script.take(size));
        if self.blocks.len() > self.most
            && let Some(oldest) = self.blocks.pop_front()
        {
            script.free(oldest);
        }
    }
}

fn random(script: &mut Script, rng: &mut Rng, exponents: std::ops::Range<u32>, target: u64, blocks: u32) {
    let mut live = Vec::new();
    while script.next < blocks {
        // Above the target every step frees, below it two of three take: the sum stays near the target.
        if script.live < target && rng.u32(0..3) != 0 {
            let size = log_uniform(rng, exponents.clone());
            live.push(script.take(size));
        } else if !live.is_empty() {
            let block = live.swap_remove(rng.usize(0..live.len()));
            script.free(block);
        }
    }
    script.free_all(live);
}

/// A model of 7 billion parameters in 16 bits, whose caches are eight arrays a request.
fn serving(script: &mut Script, rng: &mut Rng) {
    const CACHES: usize = 8;
    const TOKEN: u64 = 16 * KIB;
    struct Request {
        caches: Vec<Block>,
        tokens: u64,
        room: u64,
        end: u64,
    }
    let layer = [32 * MIB, 32 * MIB, 32 * MIB, 32 * MIB, 86 * MIB, 86 * MIB, 86 * MIB, 8 * KIB, 8 * KIB];
    let weights = script.take_all([250 * MIB, 250 * MIB].into_iter().chain((0..32).flat_map(|_| layer)));
    let mut scalars = Kept::new(64);
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..1200 {
        if requests.len() < 12 && rng.u32(0..4) == 0 {
            let tokens = log_uniform(rng, 6..11);
            let room = tokens.next_multiple_of(128);
            let caches = script.take_all([room * TOKEN; CACHES]);
            // The prompt at once: activations of all its tokens.
            script.stack([8 * KIB * tokens, 22 * KIB * tokens, 8 * KIB * tokens]);
            requests.push(Request { caches, tokens, room, end: tokens + log_uniform(rng, 5..10) });
        }
        if requests.is_empty() {
            continue;
        }
        for request in &mut requests {
            request.tokens += 8;
            if request.tokens > request.room {
                // The larger caches are a program's results, so they are there before the smaller ones go.
                request.room = (request.room * 2).min(request.end.next_multiple_of(128) + 128);
                let grown = script.take_all([request.room * TOKEN; CACHES]);
                script.free_all(std::mem::replace(&mut request.caches, grown));
            }
        }
        let batch = requests.len() as u64;
        let widest = requests.iter().map(|request| request.tokens).max().unwrap_or(0);
        script.stack([batch * 8 * KIB, batch * 32 * 4 * widest, batch * 22 * KIB, batch * 128_000]);
        scalars.push(script, 4 * batch);
        scalars.push(script, rng.u64(1..5) * KIB);
        let (done, going) = requests.into_iter().partition::<Vec<_>, _>(|request| request.tokens >= request.end);
        requests = going;
        done.into_iter().for_each(|request| script.free_all(request.caches));
    }
    requests.into_iter().for_each(|request| script.free_all(request.caches));
    script.free_all(scalars.blocks);
    script.free_all(weights);
}

/// Many programs with large temporary arrays, each leaving a small result; the last array needs all that they freed.
fn jitted(script: &mut Script, rng: &mut Rng) {
    let mut results = Vec::new();
    for _ in 0..600 {
        let count = rng.usize(1..4);
        let arrays: Vec<u64> = (0..count).map(|_| log_uniform(rng, 22..28)).collect();
        let arrays = script.take_all(arrays);
        let sizes: Vec<u64> = (0..rng.u32(1..4)).map(|_| log_uniform(rng, 8..19)).collect();
        results.extend(script.take_all(sizes));
        script.free_all(arrays);
        // Some results are of use only for a while.
        if rng.u32(0..3) == 0 {
            let block = results.swap_remove(rng.usize(0..results.len()));
            script.free(block);
        }
    }
    let big = script.take((script.peak - script.live) / KIB * KIB);
    script.free(big);
    script.free_all(results);
}

/// 24 layers, activations by the batch, and an optimizer whose new state is there before the old one goes.
fn batches(script: &mut Script, rng: &mut Rng) {
    const LAYERS: usize = 24;
    const LAYER: [u64; 6] = [12 * MIB, 4 * MIB, 16 * MIB, 16 * MIB, 16 * KIB, 4 * KIB];
    let parameters = script.take_all((0..LAYERS).flat_map(|_| LAYER));
    let mut moments = script.take_all((0..2 * LAYERS).flat_map(|_| LAYER));
    let mut losses = Kept::new(50);
    let mut batch = 8;
    for step in 0..60 {
        if step % 3 == 0 {
            batch = *rng.choice(&[8, 12, 16, 24, 32, 48]).unwrap_or(&8);
        }
        let row = 256 * KIB * batch;
        let mut activations = Vec::new();
        for _ in 0..LAYERS {
            let kept = script.take_all([row, 3 * row, 4 * row]);
            script.stack([batch * 2 * MIB, row]);
            activations.push(kept);
        }
        script.stack([batch * 3 * MIB, batch * 3 * MIB]);
        let mut gradients = Vec::new();
        while let Some(kept) = activations.pop() {
            script.stack([4 * row, row, batch * 2 * MIB]);
            gradients.extend(script.take_all(LAYER));
            script.free_all(kept.into_iter().rev());
        }
        // The parameters are donated and stay where they are.
        for moment in &mut moments {
            let new = script.take(moment.size);
            script.free(std::mem::replace(moment, new));
        }
        script.free_all(gradients);
        losses.push(script, 4);
        losses.push(script, rng.u64(1..9) * KIB);
    }
    script.free_all(losses.blocks);
    script.free_all(moments);
    script.free_all(parameters);
}

/// 28 frozen layers in 4 bits, made wide when used; small trained matrices beside them; recomputed activations.
fn finetune(script: &mut Script, rng: &mut Rng) {
    const LAYERS: usize = 28;
    let frozen = script.take_all((0..LAYERS).flat_map(|_| [24 * MIB, 24 * MIB, 72 * MIB, 3 * MIB]));
    let adapters = script.take_all((0..LAYERS * 8).map(|_| 128 * KIB));
    let mut state = script.take_all((0..LAYERS * 16).map(|_| 256 * KIB));
    let mut kept = Kept::new(40);
    for step in 0..40 {
        let tokens = log_uniform(rng, 7..12) / 64 * 64;
        let row = tokens * 8 * KIB;
        let mut checkpoints = Vec::new();
        for _ in 0..LAYERS {
            let wide = script.take_all([96 * MIB, 96 * MIB, 288 * MIB]);
            checkpoints.push(script.take(row));
            script.stack([3 * row, tokens * tokens * 4, 3 * row]);
            script.free_all(wide);
        }
        let logits = script.take(tokens * 64_000);
        script.stack([tokens * 128_000]);
        script.free(logits);
        let mut gradients = Vec::new();
        while let Some(checkpoint) = checkpoints.pop() {
            let wide = script.take_all([96 * MIB, 96 * MIB, 288 * MIB]);
            let recomputed = script.take_all([3 * row, row, 3 * row]);
            gradients.extend(script.take_all([256 * KIB; 8]));
            script.stack([tokens * tokens * 4]);
            script.free_all(recomputed.into_iter().rev());
            script.free(checkpoint);
            script.free_all(wide);
        }
        for moment in &mut state {
            let new = script.take(moment.size);
            script.free(std::mem::replace(moment, new));
        }
        script.free_all(gradients);
        kept.push(script, 4);
        // Samples are kept for the log: of any length.
        if step % 4 == 0 {
            kept.push(script, log_uniform(rng, 12..20));
        }
    }
    script.free_all(kept.blocks);
    script.free_all(state);
    script.free_all(adapters);
    script.free_all(frozen);
}

#[cfg(test)]
mod tests {
    use pjrt_arena::{memory::Strategy, units::Bytes};

    use super::*;
    use crate::{
        policy::ArenaPolicy,
        replay::replay,
        trace::{Event, Trace},
    };

    fn trace(workload: Workload, seed: u64) -> Trace {
        let text = workload.generate(seed);
        Trace::parse(workload.name(), workload.name(), text.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn workloads_free_what_they_take_and_replay_in_twice_their_peak() {
        for workload in Workload::ALL {
            let trace = trace(workload, 0);
            println!("{:<14} {:>7} blocks, peak {}", trace.name, trace.blocks, trace.peak);
            assert_eq!(trace.events.len(), 2 * trace.blocks, "{}", trace.name);
            let capacity = Bytes::new(2 * trace.peak.get());
            let mut arena = ArenaPolicy::new(Strategy::Preallocate, capacity).expect("an arena");
            assert_eq!(replay(&trace, &mut arena, None).failed, 0, "{}", trace.name);
        }
    }

    /// Figures are told with a workload's name and seed, so a seed must go on to mean the same trace.
    #[test]
    fn a_seed_means_the_same_trace_for_ever() {
        let found = Workload::ALL.map(|workload| {
            let trace = trace(workload, 0);
            (workload.name(), trace.blocks, trace.peak.get())
        });
        let expected = [
            ("serving", 13_246, 16_144_482_304),
            ("jitted", 2_405, 661_425_664),
            ("batches", 38_112, 6_343_386_368),
            ("finetune", 43_474, 5_444_007_424),
            ("random-small", 100_000, 67_899_136),
            ("random-large", 20_000, 8_656_465_408),
            ("random-mixed", 20_000, 8_856_613_120),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn seeds_differ() {
        for workload in Workload::ALL {
            let sizes = |seed| {
                let take = |event: &Event| matches!(event, Event::Take(_)).then_some(*event);
                trace(workload, seed).events.iter().filter_map(take).collect::<Vec<_>>()
            };
            assert_ne!(sizes(1), sizes(2), "{}", workload.name());
        }
    }

    #[test]
    fn the_last_array_of_jitted_needs_all_that_its_programs_freed() {
        let trace = trace(Workload::Jitted, 0);
        let largest = trace.events.iter().map(|event| if let Event::Take(size) = event { *size } else { Bytes::ZERO });
        assert!(largest.max().is_some_and(|largest| largest.get() > trace.peak.get() * 4 / 5));
    }
}
