//! Synthetic traces of executions. Numbers come from `fastrand` and from whole-number arithmetic only, so a seed makes
//! the same trace on any machine.

use std::{collections::BTreeMap, fmt::Write};

use fastrand::Rng;

use crate::spill::launches::LaunchText;

const MIB: u64 = 1 << 20;
/// The limit is one part in so many of the most that exists at once.
const PARTS: u64 = 4;

/// What a synthetic trace of executions imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executions {
    /// So many layers trained one by one.
    Layers(u32),
    /// The same with an evaluation now and then.
    Evaluated(u32),
    /// Random programs.
    Irregular,
}

impl Executions {
    pub(crate) const ALL: [Self; 5] =
        [Self::Layers(8), Self::Layers(16), Self::Layers(48), Self::Evaluated(16), Self::Irregular];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Layers(0..=8) => "layers-8",
            Self::Layers(9..=16) => "layers-16",
            Self::Layers(_) => "layers-48",
            Self::Evaluated(_) => "layers-eval",
            Self::Irregular => "irregular",
        }
    }

    /// A line about it.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Layers(0..=8) => "launches: a decoder of 8 layers with Adam's state, trained layer by layer",
            Self::Layers(9..=16) => "the same with 16 layers",
            Self::Layers(_) => "the same with 48 layers",
            Self::Evaluated(_) => "16 layers, and every fifth step is followed by an evaluation",
            Self::Irregular => "launches: random programs, a few arrays being used most",
        }
    }

    /// The workload called `name`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// The text of a trace, a launch a line, whose limit is a quarter of the most that exists at once.
    pub(crate) fn generate(self, seed: u64) -> String {
        let mut script = Script::default();
        match self {
            Self::Layers(layers) => trained(&mut script, layers, None),
            Self::Evaluated(layers) => trained(&mut script, layers, Some(5)),
            Self::Irregular => irregular(&mut script, &mut Rng::with_seed(seed)),
        }
        let alive: Vec<&str> = script.held.keys().map(String::as_str).collect();
        let mut text = format!("{{\"limit\": {},\n\"alive\": {alive:?},\n\"launches\": [\n", script.peak / PARTS);
        let launches: Vec<String> =
            script.launches.iter().filter_map(|launch| serde_json::to_string(launch).ok()).collect();
        // Writing to a string does not fail.
        _ = writeln!(text, "{}\n]}}", launches.join(",\n"));
        text
    }
}

/// An array of the script.
#[derive(Clone, Debug)]
struct Array {
    name: String,
    size: u64,
}

/// What a launch does with an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Reads,
    /// Reads it, and then nobody has it any more.
    ReadsLast,
    Consumes,
}

/// The trace that is written.
#[derive(Default)]
struct Script {
    launches: Vec<LaunchText>,
    /// The arrays that exist, and their sizes.
    held: BTreeMap<String, u64>,
    peak: u64,
    others: usize,
}

impl Script {
    /// An array that no program made. It exists from its first use on.
    fn other(&mut self, size: u64) -> Array {
        self.others += 1;
        Array { name: format!("#{}", self.others), size }
    }

    /// Launches a program that makes results of these sizes; the first has this origin, the others the next ones.
    fn launch<const COUNT: usize>(
        &mut self,
        program: &str,
        arguments: &[(&Array, Use)],
        origin: u32,
        sizes: [u64; COUNT],
    ) -> [Array; COUNT] {
        let step = self.launches.len() as u32 + 1;
        let mut origins = origin..;
        let results = sizes.map(|size| Array { name: format!("{}@{step}", origins.next().unwrap_or(origin)), size });
        self.hold(arguments.iter().map(|&(array, _)| array));
        arguments.iter().filter(|(_, how)| *how != Use::Reads).for_each(|(array, _)| self.forget(array));
        self.hold(&results);
        let arguments = arguments.iter().map(|(array, how)| (array.name.clone(), array.size, *how == Use::Consumes));
        let made = results.iter().map(|array| (array.name.clone(), array.size));
        let (program, arguments, made) = (program.to_owned(), arguments.collect(), made.collect());
        self.launches.push(LaunchText { step, program, arguments, results: made });
        results
    }

    fn hold<'a>(&mut self, arrays: impl IntoIterator<Item = &'a Array>) {
        self.held.extend(arrays.into_iter().map(|array| (array.name.clone(), array.size)));
        self.peak = self.peak.max(self.held.values().sum());
    }

    fn forget(&mut self, array: &Array) {
        self.held.remove(&array.name);
    }
}

/// 20 steps, with an evaluation after each `evaluate`th. Each layer is launched by itself: forward, back, and then the
/// optimizer, which consumes parameters, moments and gradient.
fn trained(script: &mut Script, layers: u32, evaluate: Option<u32>) {
    const PARAMETERS: u64 = 8 * MIB;
    const ACTIVATION: u64 = 2 * MIB;
    use Use::{Consumes, Reads, ReadsLast};
    let mut layers: Vec<[Array; 3]> = (0..layers).map(|_| std::array::from_fn(|_| script.other(PARAMETERS))).collect();
    for step in 1..=20 {
        let mut kept = Vec::new();
        let mut last = script.other(ACTIVATION);
        for [parameters, ..] in &layers {
            let [output] = script.launch("jit_forward", &[(parameters, Reads), (&last, Reads)], 1, [ACTIVATION]);
            kept.push(std::mem::replace(&mut last, output));
        }
        let [loss, mut gradient] = script.launch("jit_loss", &[(&last, ReadsLast)], 2, [4, ACTIVATION]);
        script.forget(&loss);
        for [parameters, one, two] in layers.iter_mut().rev() {
            let Some(kept) = kept.pop() else { continue };
            let arguments = [(&*parameters, Reads), (&kept, ReadsLast), (&gradient, Consumes)];
            let [slopes, next] = script.launch("jit_backward", &arguments, 4, [PARAMETERS, ACTIVATION]);
            gradient = next;
            let arguments = [&*parameters, &*one, &*two, &slopes].map(|array| (array, Consumes));
            [*parameters, *one, *two] = script.launch("jit_update", &arguments, 6, [PARAMETERS; 3]);
        }
        script.forget(&gradient);
        if evaluate.is_some_and(|every| step % every == 0) {
            let mut last = script.other(ACTIVATION);
            for [parameters, ..] in &layers {
                let arguments = [(parameters, Reads), (&last, ReadsLast)];
                [last] = script.launch("jit_evaluate", &arguments, 9, [ACTIVATION]);
            }
            script.forget(&last);
        }
    }
}

/// 1500 launches of 12 programs on 120 arrays or so.
fn irregular(script: &mut Script, rng: &mut Rng) {
    fn size(rng: &mut Rng) -> u64 {
        let low = 1 << rng.u32(18..23);
        rng.u64(low..2 * low)
    }
    let mut arrays: Vec<Array> = (0..120)
        .map(|_| {
            let size = size(rng);
            script.other(size)
        })
        .collect();
    for _ in 0..1500 {
        let program = rng.u32(0..12);
        let mut arguments = Vec::new();
        for _ in 0..rng.u32(1..5) {
            // The first ones more often.
            let chosen = rng.usize(0..arrays.len()).min(rng.usize(0..arrays.len()));
            let how = *rng
                .choice(&[Use::Reads, Use::Reads, Use::Reads, Use::ReadsLast, Use::Consumes])
                .unwrap_or(&Use::Reads);
            arguments.push((arrays.remove(chosen), how));
        }
        let results = rng.usize(0..3).max(usize::from(arrays.len() < 115));
        let borrowed: Vec<(&Array, Use)> = arguments.iter().map(|(array, how)| (array, *how)).collect();
        let name = format!("jit_{program}");
        match results {
            0 => drop(script.launch(&name, &borrowed, 10 * program, [])),
            1 => arrays.extend(script.launch(&name, &borrowed, 10 * program, [size(rng)])),
            _ => arrays.extend(script.launch(&name, &borrowed, 10 * program, [size(rng), size(rng)])),
        }
        let kept = arguments.into_iter().filter(|(_, how)| *how == Use::Reads).map(|(array, _)| array);
        arrays.splice(0..0, kept);
    }
}
