//! How ranks find each other.
//!
//! ```text
//!  ncclCommInitRank(id, rank)    until all ranks are there     ->   a clique, which all ranks share
//!  ncclCommSplit(color, key)     until all ranks of the old    ->   a clique for each color
//! ```
//!
//! Each rank notes that it has come, and tells the hub of the id. Ranks of one process need no hub: the last to come
//! finds all others noted. Where ranks are of several processes, the hub's answer adds those that are not of this one.

use std::{
    collections::BTreeMap,
    fmt, io, process,
    sync::OnceLock,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use super::communicator::Communicators;
use super::{
    INVALID_USAGE, Others, SYSTEM_ERROR,
    communicator::{Membership, number_of_rank},
    hub::{self, Hub},
    of_cuda, wrong_argument, wrong_usage,
};
use crate::{
    KnownParts,
    state::{self, CHANGED, Driver, State},
    status::{Answer, Status},
};

/// What makes a process different from all others.
type Stamp = [u8; 16];

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// The part of it that tells ids apart.
type Number = [u8; 24];

/// What ranks find each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A unique id.
    Id(Number),
    /// A split of a clique.
    Split {
        /// Which clique.
        clique: u64,
        /// Which split of it.
        number: u64,
    },
}

/// Ranks that have come to form communicators.
#[derive(Debug)]
pub struct Bootstrap {
    expected: usize,
    candidates: Vec<Candidate>,
    venue: Option<Venue>,
}

/// Where ranks of other processes come to.
#[derive(Clone, Debug)]
struct Venue {
    hub: Hub,
    name: Vec<u8>,
}

/// One of the ranks.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Its rank in the communicator that is split, or in the one to be.
    rank: usize,
    color: i32,
    key: i32,
    gpu: usize,
    process: Stamp,
    /// The handle of its communicator, if that is of this process and takes part in what comes of a split.
    handle: Option<u64>,
}

/// What makes this process different from others.
fn stamp() -> Stamp {
    static STAMP: OnceLock<Stamp> = OnceLock::new();
    *STAMP.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut stamp = [0; 16];
        stamp[..4].copy_from_slice(&process::id().to_le_bytes());
        stamp[4..].copy_from_slice(&now.as_nanos().to_le_bytes()[..12]);
        stamp
    })
}

impl UniqueId {
    /// One of this process.
    fn new(number: u64) -> Self {
        let mut bytes = [0; 128];
        bytes[..16].copy_from_slice(&stamp());
        bytes[16..24].copy_from_slice(&number.to_le_bytes());
        bytes[24..26].copy_from_slice(&Hub::here().map_or(0, Hub::port).to_le_bytes());
        Self(bytes)
    }

    fn number(&self) -> Number {
        let mut number = [0; 24];
        number.copy_from_slice(&self.0[..24]);
        number
    }

    /// Where ranks of other processes are met, if they can be.
    fn venue(&self) -> Option<Venue> {
        let hub = Hub::at(u16::from_le_bytes([self.0[24], self.0[25]]))?;
        Some(Venue { hub, name: self.number().to_vec() })
    }
}

impl Candidate {
    /// As the hub is told.
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.color, self.key, i32::try_from(self.gpu).unwrap_or(i32::MAX)];
        let numbers = numbers.into_iter().flat_map(i32::to_le_bytes);
        self.process.into_iter().chain(numbers).collect()
    }

    fn decode(rank: usize, bytes: &[u8]) -> Option<Self> {
        let (process, rest) = bytes.split_first_chunk()?;
        let [color, key, gpu] = rest.as_chunks().0 else { return None };
        let [color, key, gpu] = [color, key, gpu].map(|bytes| i32::from_le_bytes(*bytes));
        Some(Self { rank, color, key, gpu: usize::try_from(gpu).ok()?, process: *process, handle: None })
    }

    /// Whether both cannot be: they are one rank, or use one GPU for one communicator.
    fn clashes(&self, other: &Self) -> bool {
        let same_gpu = self.process == other.process && self.gpu == other.gpu;
        self.rank == other.rank || self.takes_part() && self.color == other.color && same_gpu
    }

    fn takes_part(&self) -> bool {
        self.color >= 0
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on GPU {}", self.rank, self.gpu)
    }
}

/// How the driver brings ranks together.
trait Bootstraps {
    /// Notes that a rank of this process has come, and tells the others; after the last one makes the cliques.
    fn come(&mut self, key: Key, expected: usize, candidate: Candidate, venue: Option<Venue>) -> Answer;

    /// All ranks have come, says the hub: these.
    fn all_have_come(&mut self, key: Key, all: &[Vec<u8>]);

    /// Whoever waits would do so for ever.
    fn disband(&mut self, key: Key, code: Status);

    fn form_if_complete(&mut self, key: Key) -> bool;
}

impl Bootstraps for State {
    fn come(&mut self, key: Key, expected: usize, candidate: Candidate, venue: Option<Venue>) -> Answer {
        let new = || Bootstrap { expected, candidates: Vec::new(), venue: venue.clone() };
        let bootstrap = self.parts.known_mut().nccl.bootstraps.entry(key).or_insert_with(new);
        let wrong = if bootstrap.expected == expected {
            let other = bootstrap.candidates.iter().find(|other| other.clashes(&candidate));
            other.map(|other| format!("{candidate} cannot join {other}: each is to have a rank and a GPU alone"))
        } else {
            Some(format!("rank {} asks for {expected} ranks, others for {}", candidate.rank, bootstrap.expected))
        };
        bootstrap.candidates.push(candidate);
        if let Some(why) = wrong {
            self.disband(key, INVALID_USAGE);
            return Err(wrong_usage(why));
        }
        let complete = self.form_if_complete(key);
        if let Some(venue) = venue.filter(|_| !complete) {
            tell(key, venue, expected, candidate);
        }
        Ok(())
    }

    fn all_have_come(&mut self, key: Key, all: &[Vec<u8>]) {
        // Where all are of this process, the last one has made the cliques.
        let Some(bootstrap) = self.parts.known_mut().nccl.bootstraps.get_mut(&key) else { return };
        for (rank, bytes) in all.iter().enumerate() {
            let known = bootstrap.candidates.iter().any(|candidate| candidate.rank == rank);
            if let Some(candidate) = Candidate::decode(rank, bytes).filter(|_| !known) {
                bootstrap.candidates.push(candidate);
            }
        }
        self.form_if_complete(key);
    }

    fn disband(&mut self, key: Key, code: Status) {
        let Some(bootstrap) = self.parts.known_mut().nccl.bootstraps.remove(&key) else { return };
        for handle in bootstrap.candidates.iter().filter_map(|candidate| candidate.handle) {
            self.set_membership(handle, Membership::Failed(code));
        }
        bootstrap.end();
        CHANGED.notify_all();
    }

    fn form_if_complete(&mut self, key: Key) -> bool {
        if self
            .parts
            .known()
            .nccl
            .bootstraps
            .get(&key)
            .is_none_or(|bootstrap| bootstrap.candidates.len() < bootstrap.expected)
        {
            return false;
        }
        let Some(bootstrap) = self.parts.known_mut().nccl.bootstraps.remove(&key) else { return false };
        let mut colors: BTreeMap<i32, Vec<&Candidate>> = BTreeMap::new();
        for candidate in bootstrap.candidates.iter().filter(|candidate| candidate.takes_part()) {
            colors.entry(candidate.color).or_default().push(candidate);
        }
        for (color, mut members) in colors {
            members.sort_by_key(|candidate| (candidate.key, candidate.rank));
            let ranks: Vec<_> = members.iter().map(|candidate| candidate.handle).collect();
            let several = ranks.iter().any(Option::is_none);
            if ranks.iter().any(Option::is_some) {
                let venue = bootstrap.venue.as_ref().filter(|_| several);
                let name = |venue: &Venue| [venue.name.as_slice(), &color.to_le_bytes()].concat();
                self.form_clique(ranks, venue.map(|venue| Others::new(venue.hub, name(venue))));
            }
        }
        let all_here = bootstrap.candidates.iter().all(|candidate| candidate.process == stamp());
        if all_here {
            bootstrap.end();
        }
        CHANGED.notify_all();
        true
    }
}

impl Bootstrap {
    /// Nobody waits at the hub any more.
    fn end(&self) {
        if let Some(venue) = &self.venue {
            venue.hub.fail(&venue.name);
        }
    }
}

/// Tells the hub of a rank, and waits for its answer on a thread of its own.
fn tell(key: Key, venue: Venue, expected: usize, candidate: Candidate) {
    let wait = move || {
        let all = venue.hub.bring(&venue.name, expected, &(candidate.rank, candidate.encode()));
        let all = all.and_then(|stream| hub::wait(&stream));
        let mut driver = state::lock();
        match all {
            Ok(all) => driver.all_have_come(key, &all),
            Err(_) => driver.disband(key, SYSTEM_ERROR),
        }
    };
    let spawned: io::Result<_> = thread::Builder::new().name("fake NCCL bootstrap".into()).spawn(wait);
    if let Err(why) = spawned {
        eprintln!("fake_cuda: {key:?} meets no other process: {why}");
    }
}

/// `ncclGetUniqueId`.
pub fn unique_id(driver: &mut State) -> UniqueId {
    UniqueId::new(driver.number())
}

/// Says that a rank is there, without waiting for the others; gives its communicator's handle.
pub fn join(driver: &mut Driver, ranks: i32, id: &UniqueId, rank: i32) -> Answer<u64> {
    let gpu = driver.working().map_err(of_cuda)?;
    let count = usize::try_from(ranks).ok().filter(|&ranks| ranks > 0);
    let count = count.ok_or_else(|| wrong_argument(format!("a communicator of {ranks} ranks; it has one at least")))?;
    let key = rank;
    let rank = number_of_rank(rank, count)?;
    let handle = driver.new_communicator(gpu);
    let candidate = Candidate { rank, color: 0, key, gpu, process: stamp(), handle: Some(handle) };
    driver.come(Key::Id(id.number()), count, candidate, id.venue()).inspect_err(|_| {
        driver.parts.known_mut().nccl.communicators.remove(&handle);
    })?;
    Ok(handle)
}

/// As [`join`], for `ncclCommSplit`; nothing where the color says that the rank takes no part.
pub fn split(driver: &mut Driver, handle: u64, color: i32, key: i32) -> Answer<Option<u64>> {
    let (clique, rank) = driver.membership_to_use(handle)?;
    if color < -1 {
        return Err(wrong_argument(format!("the color is {color}, not from 0 or NCCL_SPLIT_NOCOLOR, -1")));
    }
    let gpu = driver.communicator(handle)?.gpu;
    let Some(communicator) = driver.parts.known_mut().nccl.communicators.get_mut(&handle) else { return Ok(None) };
    communicator.splits += 1;
    let number = communicator.splits;
    let others = driver.parts.known().nccl.cliques.get(&clique).and_then(|shared| shared.others.clone());
    let venue = others.map(|others| Venue { hub: others.hub(), name: others.name_of(("split", number)) });
    let new = (color >= 0).then(|| driver.new_communicator(gpu));
    let expected = driver.ranks(clique);
    let candidate = Candidate { rank, color, key, gpu, process: stamp(), handle: new };
    driver.come(Key::Split { clique, number }, expected, candidate, venue)?;
    Ok(new)
}

/// Waits until all ranks of new communicators have come.
pub fn wait(driver: &mut Driver, handles: &[u64]) -> Answer {
    let membership =
        |driver: &Driver, handle| driver.parts.known().nccl.communicators.get(&handle).map(|known| known.membership);
    for &handle in handles {
        while let Some(Membership::Pending) = membership(driver, handle) {
            CHANGED.wait(driver);
        }
    }
    // The call that did not fit was told what is wrong with it.
    let refused = handles.iter().find_map(|&handle| match membership(driver, handle) {
        Some(Membership::Failed(code)) => Some(code),
        Some(_) => None,
        None => Some(INVALID_USAGE),
    });
    refused.map_or(Ok(()), |code| Err(code.into()))
}
