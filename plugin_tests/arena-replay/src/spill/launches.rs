//! Traces of executions: reading them, and what can be said of them without a policy.
//!
//! ```text
//!  {"limit": 4194304, "alive": ["7@17"], "launches": [
//!    {"step": 17, "program": "jit_step",
//!     "arguments": [["7@12", 4096, true], ["#3", 1024, false]], "results": [["7@17", 4096]]}
//!  ]}                  |           |       `- an array that no program made
//!                      |           `- the program consumes it
//!                      `- what origin 7 of the launch of step 12 made
//! ```

use pjrt_arena::{
    memory::{OriginId, next_use::UseKey},
    units::Bytes,
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::trace::rounded;

/// All arguments and results of a trace may take so many bytes, so that no sum of what is moved exceeds 64 bits.
const MOST: Bytes = Bytes::gib(1 << 30);

/// A launch as it is written.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct LaunchText {
    pub(super) step: u32,
    pub(super) program: String,
    /// Name, bytes, and whether the program consumes it.
    pub(super) arguments: Vec<(String, u64, bool)>,
    pub(super) results: Vec<(String, u64)>,
}

/// A trace as it is written.
#[derive(Deserialize)]
struct Recording {
    limit: u64,
    launches: Vec<LaunchText>,
    #[serde(default)]
    alive: Vec<String>,
}

/// What a file holds: a recording, or something with a recording within.
#[derive(Deserialize)]
struct File {
    spill: Option<Recording>,
    limit: Option<u64>,
    launches: Option<Vec<LaunchText>>,
    #[serde(default)]
    alive: Vec<String>,
}

/// An array of a trace. Launches are told by their index in the trace.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) key: UseKey,
    /// In whole units.
    pub(super) bytes: Bytes,
    /// Alive at the end of the trace.
    alive: bool,
    /// The launch that consumes it.
    consumed: Option<usize>,
    /// The launch that makes it, or else the first that uses it; `None` if none does.
    pub(super) born: Option<usize>,
    /// The launches that it is an argument of, ascending.
    pub(super) uses: Vec<usize>,
}

/// A launch of a trace. Arrays are told by their index in the trace.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) step: u32,
    pub(super) program: u64,
    /// What the launch is known by to the past; more than the arguments where those do not exist.
    pub(super) keys: Vec<UseKey>,
    /// Each once.
    pub(super) arguments: Vec<usize>,
    pub(super) results: Vec<usize>,
    /// What the results need beyond the blocks of consumed arguments of their sizes.
    pub(super) need: Bytes,
    /// What the launch needs on the device: its arguments and the need of its results.
    pub(super) room: Bytes,
    /// Arrays that are gone after it.
    pub(super) gone: Vec<usize>,
}

impl Launch {
    fn arguments(&self, arrays: &[Array]) -> Bytes {
        self.arguments.iter().map(|&array| arrays[array].bytes).sum()
    }

    /// What the results need beyond what the launch, which is the one at this place, consumes: a result takes the block
    /// of a consumed argument of its size.
    fn need(&self, at: usize, arrays: &[Array]) -> Bytes {
        let consumed = self.arguments.iter().map(|&array| &arrays[array]).filter(|array| array.consumed == Some(at));
        let mut blocks: Vec<Bytes> = consumed.map(|array| array.bytes).collect();
        let needs = self.results.iter().map(|&array| arrays[array].bytes).filter(|bytes| {
            let block = blocks.iter().position(|block| block == bytes);
            block.map(|block| blocks.swap_remove(block)).is_none()
        });
        needs.sum()
    }
}

/// A trace of executions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launches {
    pub(super) name: String,
    /// What the device had.
    pub(super) limit: Bytes,
    pub(super) launches: Vec<Launch>,
    pub(super) arrays: Vec<Array>,
    /// The most bytes that existed at once.
    pub(super) peak: Bytes,
}

impl Launches {
    /// Reads `text`, which came from `source`. O(arguments and results).
    ///
    /// # Errors
    /// Names the source, the line or the launch, and the array, and says what is allowed.
    pub(crate) fn parse(name: &str, source: &str, text: &[u8]) -> Result<Self, String> {
        const ALLOWED: &str = "allowed is an object of JSON with `limit`, `launches` and `alive`, or one that has it as \
                               `spill`; arguments are [NAME, BYTES, CONSUMED], and results [NAME, BYTES]";
        let file: File = serde_json::from_slice(text).map_err(|error| format!("{source}: {error}; {ALLOWED}"))?;
        let recording = match (file.spill, file.limit, file.launches) {
            (Some(recording), _, _) => recording,
            (None, Some(limit), Some(launches)) => Recording { limit, launches, alive: file.alive },
            (None, None, _) => return Err(format!("{source}: no `limit`; {ALLOWED}")),
            (None, _, None) => return Err(format!("{source}: no `launches`; {ALLOWED}")),
        };
        let mut reader = Reader::default();
        (reader.trace.name, reader.trace.limit) = (name.to_owned(), Bytes::new(recording.limit));
        for launch in &recording.launches {
            reader.launch(launch).map_err(|why| format!("{source}: step {}: {why}", launch.step))?;
        }
        for name in &recording.alive {
            reader.alive(name).map_err(|why| format!("{source}: alive `{name}`: {why}"))?;
        }
        reader.trace.derive();
        Ok(reader.trace)
    }

    /// The trace without the launches that need more than `capacity` and without what they would have made, and how
    /// many those are. Whether a launch fits is the same for every policy, because all else may be in the tier.
    pub(super) fn fitting(&self, capacity: Bytes) -> (Self, u64) {
        let mut fitting = self.clone();
        let mut missing = vec![false; self.arrays.len()];
        let mut failed = 0;
        for (at, launch) in fitting.launches.iter_mut().enumerate() {
            launch.arguments.retain(|&array| !missing[array]);
            if launch.arguments(&self.arrays) + launch.need(at, &self.arrays) > capacity {
                failed += 1;
                launch.arguments.clear();
                launch.results.drain(..).for_each(|array| missing[array] = true);
            }
        }
        fitting.derive();
        (fitting, failed)
    }

    /// Fills in what follows from arguments and results.
    fn derive(&mut self) {
        for array in &mut self.arrays {
            array.born = None;
            array.uses.clear();
        }
        for (at, launch) in self.launches.iter_mut().enumerate() {
            for &array in &launch.arguments {
                self.arrays[array].born.get_or_insert(at);
                self.arrays[array].uses.push(at);
            }
            launch.results.iter().for_each(|&array| self.arrays[array].born = Some(at));
            launch.gone.clear();
            launch.need = launch.need(at, &self.arrays);
            launch.room = launch.arguments(&self.arrays) + launch.need;
        }
        for (number, array) in self.arrays.iter().enumerate() {
            let (Some(born), false) = (array.born, array.alive && array.consumed.is_none()) else { continue };
            let last = array.consumed.unwrap_or(array.uses.last().copied().unwrap_or(born));
            self.launches[last].gone.push(number);
        }
        let size = |arrays: &[usize]| arrays.iter().map(|&array| self.arrays[array].bytes).sum::<Bytes>();
        let mut existing = Bytes::ZERO;
        self.peak = Bytes::ZERO;
        for (at, launch) in self.launches.iter().enumerate() {
            let arrived = launch.arguments.iter().filter(|&&array| self.arrays[array].born == Some(at));
            existing += arrived.map(|&array| self.arrays[array].bytes).sum();
            self.peak = self.peak.max(existing + launch.need);
            existing = existing + size(&launch.results) - size(&launch.gone);
        }
    }
}

#[derive(Default)]
struct Reader {
    trace: Launches,
    /// The arrays of each key, in the order of the trace. What one origin of one launch made has one key, and a number
    /// is given to another array when the first one is gone.
    named: FxHashMap<UseKey, Vec<usize>>,
    /// The last launch that each array was an argument of.
    used: Vec<usize>,
    programs: FxHashMap<String, u64>,
    traffic: Bytes,
}

impl Reader {
    fn launch(&mut self, text: &LaunchText) -> Result<(), String> {
        let at = self.trace.launches.len();
        let before = self.trace.launches.last().map_or(0, |launch| launch.step);
        if text.step <= before {
            return Err(format!("it comes after step {before}; allowed are steps from 1 on that ascend"));
        }
        let count = self.programs.len() as u64;
        let program = *self.programs.entry(text.program.clone()).or_insert(count);
        let (mut keys, mut arguments, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (name, bytes, consumed) in &text.arguments {
            let wrong = |why| format!("argument `{name}`: {why}");
            let (key, bytes) = (key(name).map_err(wrong)?, self.size(*bytes).map_err(wrong)?);
            let array = self.argument(at, text.step, key, bytes).map_err(wrong)?;
            keys.push(key);
            if self.used[array] != at {
                self.used[array] = at;
                arguments.push(array);
            }
            if *consumed {
                self.trace.arrays[array].consumed = Some(at);
            }
        }
        for (name, bytes) in &text.results {
            let wrong = |why| format!("result `{name}`: {why}");
            let (key, bytes) = (key(name).map_err(wrong)?, self.size(*bytes).map_err(wrong)?);
            if !matches!(key, UseKey::Made(_, step) if step == text.step) {
                return Err(wrong(format!("allowed are names ORIGIN@{}", text.step)));
            }
            results.push(self.array(key, bytes));
        }
        let (need, room, gone) = (Bytes::ZERO, Bytes::ZERO, Vec::new());
        self.trace.launches.push(Launch { step: text.step, program, keys, arguments, results, need, room, gone });
        Ok(())
    }

    /// The array that the launch at this place means. Of several with one name, it is one that is not yet an argument.
    fn argument(&mut self, at: usize, step: u32, key: UseKey, bytes: Bytes) -> Result<usize, String> {
        let named = self.named.get(&key).map_or(&[][..], Vec::as_slice);
        let is_there = |array: usize| self.trace.arrays[array].consumed.is_none_or(|launch| launch == at);
        let there = named.iter().copied().filter(|&array| is_there(array));
        let mut fitting = there.clone().filter(|&array| self.trace.arrays[array].bytes == bytes);
        let unused = fitting.clone().find(|&array| self.used[array] != at);
        if let Some(array) = unused.or_else(|| fitting.next()) {
            return Ok(array);
        }
        let UseKey::Made(_, made) = key else { return Ok(self.array(key, bytes)) };
        let first = named.first().map(|&array| &self.trace.arrays[array]);
        match (first, there.map(|array| self.trace.arrays[array].bytes.get()).next()) {
            (None, _) if made < step => Ok(self.array(key, bytes)),
            (None, _) => Err(format!("allowed are results of steps before {step}")),
            (Some(_), Some(other)) => Err(format!("it has {other} bytes, rounded up to 256; allowed is the same size")),
            (Some(array), None) => {
                let by = array.consumed.map_or(0, |launch| self.trace.launches[launch].step);
                Err(format!("step {by} consumed it; allowed are arrays that exist"))
            }
        }
    }

    fn array(&mut self, key: UseKey, bytes: Bytes) -> usize {
        let array = self.trace.arrays.len();
        self.trace.arrays.push(Array { key, bytes, alive: false, consumed: None, born: None, uses: Vec::new() });
        self.used.push(usize::MAX);
        self.named.entry(key).or_default().push(array);
        array
    }

    /// Bytes in whole units.
    fn size(&mut self, bytes: u64) -> Result<Bytes, String> {
        let bytes = rounded(Bytes::new(bytes)).filter(|&bytes| bytes <= MOST);
        let traffic = bytes.and_then(|bytes| self.traffic.checked_add(bytes)).filter(|&all| all <= MOST);
        let (Some(bytes), Some(traffic)) = (bytes, traffic) else {
            return Err(format!(
                "the arrays up to here exceed {MOST}, the most that all arguments and results may take"
            ));
        };
        self.traffic = traffic;
        Ok(bytes)
    }

    /// Notes what exists at the end; a name that no launch uses says nothing.
    fn alive(&mut self, name: &str) -> Result<(), String> {
        let key = key(name)?;
        let named = self.named.get(&key).map_or(&[][..], Vec::as_slice);
        // Of the arrays that had one number, only the last can exist.
        let named = if matches!(key, UseKey::Other(_)) { &named[named.len().saturating_sub(1)..] } else { named };
        named.iter().for_each(|&array| self.trace.arrays[array].alive = true);
        let consumed: Option<Vec<usize>> = named.iter().map(|&array| self.trace.arrays[array].consumed).collect();
        match (key, consumed.and_then(|all| all.last().copied())) {
            (UseKey::Made(..), Some(launch)) => {
                let step = self.trace.launches[launch].step;
                Err(format!("step {step} consumed it; allowed are arrays that exist at the end"))
            }
            _ => Ok(()),
        }
    }
}

/// What the name of an array stands for.
fn key(name: &str) -> Result<UseKey, String> {
    let made = || {
        let (origin, step) = name.split_once('@')?;
        Some(UseKey::Made(OriginId::new(origin.parse().ok()?), step.parse().ok().filter(|&step| step != 0)?))
    };
    let other = || name.strip_prefix('#')?.parse().ok().map(UseKey::Other);
    made().or_else(other).ok_or_else(|| {
        "allowed are names ORIGIN@STEP, such as 7@12, with steps from 1 on, and #NUMBER, such as #3".to_owned()
    })
}
