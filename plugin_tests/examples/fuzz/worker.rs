//! One process that reads inputs: the corpus of each target, and then damage to it, until the time is over.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::FileExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fastrand::Rng;
use plugin_tests::counting::peak_of;
use serde::{Deserialize, Serialize};

use crate::{
    coverage::{self, Seen},
    mutate::Entry,
    targets::{TARGETS, Target},
};

/// The budget of a program is 128; tables and what is written take the rest.
const PER_BYTE: usize = 512;
/// And so much for any input.
const FREE: usize = 8 << 20;
/// Inputs longer than this are cut.
const LONGEST_INPUT: usize = 1 << 18;
/// Inputs that join the corpus of a target are at most so many, and so long.
const MOST_JOINED: usize = 4000;
const LONGEST_JOINED: usize = 1 << 14;
/// Readers have options; an input is read with those of a number below this.
pub(crate) const CHOICES: u64 = 64;
/// A worker ends after so many findings.
const MOST_FINDINGS: u64 = 20;

/// What a worker tells of a target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) inputs: u64,
    pub(crate) accepted: u64,
    /// The most that one input took.
    pub(crate) longest: Duration,
    pub(crate) memory: usize,
    /// Inputs that damage was done to in the end.
    pub(crate) corpus: usize,
    pub(crate) findings: u64,
}

/// What a worker tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) tallies: Vec<Tally>,
    /// Each edge's address, and whether it was reached.
    pub(crate) edges: Vec<(usize, bool)>,
}

/// The input that is being read, in a file: for whoever finds that the process hangs or has died.
pub(crate) struct Reading(File);

/// How many inputs were read, of which target this one is, and its length: 24 bytes before it.
const HEAD: usize = 24;

impl Reading {
    fn create(path: &Path) -> io::Result<Self> {
        File::options().create(true).truncate(true).write(true).open(path).map(Self)
    }

    fn note(&self, count: u64, target: usize, input: &[u8], buffer: &mut Vec<u8>) {
        buffer.clear();
        [count, target as u64, input.len() as u64].iter().for_each(|number| buffer.extend(number.to_le_bytes()));
        buffer.extend(input);
        self.0.write_all_at(buffer, 0).expect("the input is noted before it is read");
    }

    /// The number of the input that a worker reads, its target and its bytes.
    pub(crate) fn of(path: &Path) -> Option<(u64, &'static str, Vec<u8>)> {
        let bytes = fs::read(path).ok()?;
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let mut numbers = head.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let mut next = || numbers.next().expect("three numbers");
        let (count, target, length) = (next(), next(), next());
        let target = TARGETS.get(usize::try_from(target).ok()?)?;
        Some((count, target.name, rest.get(..usize::try_from(length).ok()?)?.to_vec()))
    }
}

/// Writes a finding to the folder; its path.
pub(crate) fn save(folder: &Path, target: &str, input: &[u8]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let file = folder.join(format!("{target}-{:016x}", hasher.finish()));
    if let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(&file, input)) {
        eprintln!("{} cannot be written: {error}", file.display());
    }
    file
}

/// How a read ended.
pub(crate) struct Outcome {
    /// Whether the input was accepted; an error is what is wrong with its reader.
    pub(crate) accepted: Result<bool, String>,
    pub(crate) took: Duration,
    pub(crate) memory: usize,
}

/// Reads an input. What the reader may choose is one of [`CHOICES`] by number, so that a saved input repeats.
pub(crate) fn read(target: &Target, input: &[u8], choice: u64) -> Outcome {
    let mut rng = Rng::with_seed(choice);
    coverage::clear();
    let start = Instant::now();
    let (read, memory) = peak_of(|| catch_unwind(AssertUnwindSafe(|| (target.read)(input, &mut rng))));
    let took = start.elapsed();
    let bound = PER_BYTE * input.len() + FREE;
    let accepted = match read {
        Err(_) => Err("a panic".to_owned()),
        Ok(_) if memory > bound => Err(format!("{memory} bytes for an input of {}; at most {bound}", input.len())),
        Ok(accepted) => Ok(accepted),
    };
    Outcome { accepted, took, memory }
}

/// A target's corpus, and what is known of it.
struct Corpus {
    target: usize,
    entries: Vec<Entry>,
    seen: Seen,
    tally: Tally,
}

impl Corpus {
    fn pick(&self, rng: &mut Rng) -> &Entry {
        let mut any = || &self.entries[rng.usize(0..self.entries.len())];
        let (one, other) = (any(), any());
        // Small inputs are read faster, and damage hits more of what matters in them.
        if one.bytes.len() <= other.bytes.len() { one } else { other }
    }

    /// Reads an input; whether it reaches something new.
    fn read(&mut self, input: &[u8], choice: u64, folder: &Path, seed: u64) -> bool {
        let target = &TARGETS[self.target];
        let mut outcome = read(target, input, choice);
        let new = self.seen.add();
        if outcome.took > self.tally.longest {
            // Twice more: the shortest of them is the input's, and the others the machine's.
            for _ in 0..2 {
                outcome.took = outcome.took.min(read(target, input, choice).took);
            }
        }
        let tally = &mut self.tally;
        tally.longest = tally.longest.max(outcome.took);
        tally.memory = tally.memory.max(outcome.memory);
        tally.inputs += 1;
        match outcome.accepted {
            Ok(accepted) => tally.accepted += u64::from(accepted),
            Err(what) => {
                tally.findings += 1;
                let file = save(folder, target.name, input);
                eprintln!("{}, seed {seed}, input {}: {what}: {}", target.name, tally.inputs, file.display());
            }
        }
        new
    }

    fn join(&mut self, input: &[u8]) {
        self.entries.push(Entry::new(input));
    }
}

/// Reads inputs for so long, of those targets whose name holds `only`.
pub(crate) fn run(seed: u64, time: Duration, only: &str, folder: &Path) -> Told {
    let reading = Reading::create(&folder.join(format!("{seed}.reading"))).expect("a file of the folder of findings");
    let (mut buffer, mut count, mut rng) = (Vec::new(), 0, Rng::with_seed(seed));
    let deadline = Instant::now() + time;
    let wanted = |target: &usize| TARGETS[*target].name.contains(only);
    let mut corpora: Vec<Corpus> = (0..TARGETS.len())
        .filter(wanted)
        .map(|target| Corpus { target, entries: Vec::new(), seen: Seen::new(), tally: Tally::default() })
        .collect();
    let mut note = |target, input: &[u8]| {
        count += 1;
        reading.note(count, target, input, &mut buffer);
    };
    for corpus in &mut corpora {
        // The smallest first: of those that reach the same, it is the one that stays.
        let mut seeds = (TARGETS[corpus.target].corpus)();
        seeds.sort_by_key(Vec::len);
        for input in seeds {
            note(corpus.target, &input);
            let new = (0..CHOICES).filter(|&choice| corpus.read(&input, choice, folder, seed)).count();
            if new > 0 || coverage::edges() == 0 {
                corpus.join(&input);
            }
        }
        assert!(!corpus.entries.is_empty(), "{} has no corpus", TARGETS[corpus.target].name);
        (corpus.tally.inputs, corpus.tally.accepted) = (0, 0);
    }
    let mut input = Vec::new();
    while Instant::now() < deadline && corpora.iter().all(|corpus| corpus.tally.findings < MOST_FINDINGS) {
        for corpus in &mut corpora {
            for _ in 0..TARGETS[corpus.target].share {
                corpus.pick(&mut rng).damaged(corpus.pick(&mut rng), &mut rng, &mut input);
                input.truncate(LONGEST_INPUT);
                note(corpus.target, &input);
                let new = corpus.read(&input, rng.u64(0..CHOICES), folder, seed);
                if new && input.len() <= LONGEST_JOINED && corpus.entries.len() < MOST_JOINED {
                    corpus.join(&input);
                }
            }
        }
    }
    let mut tallies = vec![Tally::default(); TARGETS.len()];
    let mut reached = vec![false; coverage::edges()];
    for corpus in corpora {
        reached.iter_mut().zip(corpus.seen.reached()).for_each(|(reached, by)| *reached |= by);
        tallies[corpus.target] = Tally { corpus: corpus.entries.len(), ..corpus.tally };
    }
    Told { tallies, edges: coverage::addresses().into_iter().zip(reached).collect() }
}
