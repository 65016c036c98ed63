//! Communicators: how ranks find each other, and how they part.
//!
//! ```text
//!  ncclCommInitRank(id, rank)    until all ranks are there     ->   a clique, which all ranks share
//!  ncclCommSplit(color, key)     until all ranks of the old    ->   a clique for each color
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    process,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    INVALID_USAGE, SYSTEM_ERROR, of_cuda,
    rendezvous::{Key, Rendezvous},
    wrong_argument, wrong_usage,
};
use crate::{
    clock::{Clock, Line, Point},
    state::{CHANGED, Driver, State},
    status::{Answer, Status},
    stream::Waits,
};

/// A communicator as one rank has it.
#[derive(Debug)]
pub struct Communicator {
    /// Its GPU.
    pub gpu: usize,
    membership: Membership,
    /// The collectives that the rank has asked for.
    pub collectives: u64,
    /// The splits.
    splits: u64,
    /// The rank's last operation, with what came before it.
    pub last: Option<(Point, Clock)>,
    finalized: bool,
}

/// Whether a rank has found the others.
#[derive(Clone, Copy, Debug)]
enum Membership {
    /// It waits for others.
    Pending,
    /// The others cannot be met.
    Failed,
    /// It is one of a clique.
    Member { clique: u64, rank: usize },
}

/// What the ranks of a communicator share.
#[derive(Debug)]
pub struct Clique {
    /// For each rank the handle of its communicator, and its GPU.
    pub ranks: Vec<(u64, usize)>,
    /// By which clocks know the collectives.
    pub line: Line,
    /// Operations that not all ranks have come to.
    pub rendezvous: BTreeMap<Key, Rendezvous>,
    /// For a sender and a receiver: by which clocks know the messages.
    pub channels: BTreeMap<(usize, usize), Channel>,
    /// What `ncclCommGetAsyncError` tells.
    pub error: Status,
}

/// Messages from one rank to one.
#[derive(Debug)]
pub struct Channel {
    /// By which clocks know them.
    pub line: Line,
    /// Sends so far.
    pub sent: u64,
    /// Receives so far.
    pub received: u64,
}

/// What ranks find each other by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BootstrapKey {
    /// A unique id.
    Id(u64),
    /// A split of a clique.
    Split {
        /// Which clique.
        clique: u64,
        /// Which split of it.
        number: u64,
    },
}

/// Ranks that have come to form communicators.
#[derive(Debug, Default)]
pub struct Bootstrap {
    expected: usize,
    candidates: Vec<Candidate>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Its rank in the communicator that is split, or in the one to be.
    rank: usize,
    color: i32,
    key: i32,
    /// The handle of its communicator; none where it takes no part in what comes of a split.
    handle: Option<u64>,
    gpu: usize,
}

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

/// What makes an id one of this process.
fn stamp() -> [u8; 16] {
    static STAMP: OnceLock<[u8; 16]> = OnceLock::new();
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
        Self(bytes)
    }

    /// Its number, if it is of this process.
    fn number(&self) -> Option<u64> {
        let number = self.0[16..24].try_into().ok()?;
        (self.0[..16] == stamp()).then(|| u64::from_le_bytes(number))
    }
}

impl State {
    /// The communicator of a handle.
    pub fn communicator(&self, handle: u64) -> Answer<&Communicator> {
        let unknown = || wrong_argument(format!("{handle:#x} is no communicator, or was destroyed before"));
        self.nccl.communicators.get(&handle).ok_or_else(unknown)
    }

    /// The clique of a communicator, and the rank in it.
    pub fn membership(&self, handle: u64) -> Answer<(u64, usize)> {
        match self.communicator(handle)?.membership {
            Membership::Member { clique, rank } => Ok((clique, rank)),
            _ => Err(wrong_usage(format!("the communicator {handle:#x} is not made: not all ranks have come"))),
        }
    }

    /// As [`Self::membership`], for an operation.
    pub fn membership_to_use(&self, handle: u64) -> Answer<(u64, usize)> {
        if self.communicator(handle)?.finalized {
            return Err(wrong_usage(format!("the communicator {handle:#x} was finalized")));
        }
        self.membership(handle)
    }

    /// How many ranks a clique has.
    pub fn ranks(&self, clique: u64) -> usize {
        self.nccl.cliques.get(&clique).map_or(0, |clique| clique.ranks.len())
    }

    /// One that waits for the other ranks.
    fn new_communicator(&mut self, gpu: usize) -> u64 {
        let handle = self.number() << 8;
        let communicator = Communicator {
            gpu,
            membership: Membership::Pending,
            collectives: 0,
            splits: 0,
            last: None,
            finalized: false,
        };
        self.nccl.communicators.insert(handle, communicator);
        handle
    }

    /// Notes that a rank has come; after the last one makes the cliques.
    fn bootstrap(&mut self, key: BootstrapKey, expected: usize, candidate: Candidate) -> Answer {
        let bootstrap = self.nccl.bootstraps.entry(key).or_default();
        if bootstrap.candidates.is_empty() {
            bootstrap.expected = expected;
        }
        let twice = |other: &Candidate| {
            other.rank == candidate.rank || other.color == candidate.color && other.gpu == candidate.gpu
        };
        let wrong = if bootstrap.expected != expected {
            Some(format!("rank {} asks for {expected} ranks, others for {}", candidate.rank, bootstrap.expected))
        } else {
            bootstrap.candidates.iter().find(|other| twice(other)).map(|other| {
                let (Candidate { rank, gpu, .. }, with, at) = (candidate, other.rank, other.gpu);
                format!("rank {rank} on GPU {gpu} cannot join rank {with} on GPU {at}: each is to have a rank and a GPU alone")
            })
        };
        bootstrap.candidates.push(candidate);
        let complete = bootstrap.candidates.len() == bootstrap.expected;
        if wrong.is_none() && !complete {
            return Ok(());
        }
        let candidates = self.nccl.bootstraps.remove(&key).map(|bootstrap| bootstrap.candidates).unwrap_or_default();
        if let Some(why) = wrong {
            // Whoever waits would do so for ever.
            for handle in candidates.iter().filter_map(|candidate| candidate.handle) {
                self.set_membership(handle, Membership::Failed);
            }
            CHANGED.notify_all();
            return Err(wrong_usage(why));
        }
        let colors: BTreeSet<i32> =
            candidates.iter().filter(|candidate| candidate.handle.is_some()).map(|candidate| candidate.color).collect();
        for color in colors {
            let mut members: Vec<_> = candidates.iter().filter(|candidate| candidate.color == color).collect();
            members.sort_by_key(|candidate| (candidate.key, candidate.rank));
            self.form_clique(
                members.into_iter().filter_map(|candidate| Some((candidate.handle?, candidate.gpu))).collect(),
            );
        }
        CHANGED.notify_all();
        Ok(())
    }

    /// Makes a clique.
    fn form_clique(&mut self, ranks: Vec<(u64, usize)>) {
        let (clique, line) = (self.number(), self.number());
        for (rank, &(handle, _)) in ranks.iter().enumerate() {
            self.set_membership(handle, Membership::Member { clique, rank });
        }
        let (rendezvous, channels) = (BTreeMap::new(), BTreeMap::new());
        let error = super::SUCCESS;
        self.nccl.cliques.insert(clique, Clique { ranks, line, rendezvous, channels, error });
    }

    fn set_membership(&mut self, handle: u64, membership: Membership) {
        if let Some(communicator) = self.nccl.communicators.get_mut(&handle) {
            communicator.membership = membership;
        }
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
    let rank = number_of_rank(rank, count)?;
    let Some(id) = id.number() else {
        eprintln!(
            "fake_cuda: a unique id is of another process; this NCCL plays the GPUs of one process, and meets no other"
        );
        return Err(SYSTEM_ERROR.into());
    };
    let handle = driver.new_communicator(gpu);
    let candidate =
        Candidate { rank, color: 0, key: i32::try_from(rank).unwrap_or(i32::MAX), handle: Some(handle), gpu };
    let done = driver.bootstrap(BootstrapKey::Id(id), count, candidate);
    done.inspect_err(|_| {
        driver.nccl.communicators.remove(&handle);
    })?;
    Ok(handle)
}

/// `ncclCommInitAll`.
pub fn all(driver: &mut Driver, devices: &[i32]) -> Answer<Vec<u64>> {
    let gpus: Vec<_> = devices.iter().map(|&device| driver.gpu(device).map_err(of_cuda)).collect::<Answer<_>>()?;
    if gpus.iter().collect::<BTreeSet<_>>().len() != gpus.len() || gpus.is_empty() {
        return Err(wrong_usage(format!("the GPUs of a communicator are {gpus:?}; each is to be there once")));
    }
    let ranks: Vec<_> = gpus.into_iter().map(|gpu| (driver.new_communicator(gpu), gpu)).collect();
    driver.form_clique(ranks.clone());
    Ok(ranks.into_iter().map(|(handle, _)| handle).collect())
}

/// As [`join`], for `ncclCommSplit`; nothing where the color says that the rank takes no part.
pub fn split(driver: &mut Driver, handle: u64, color: i32, key: i32) -> Answer<Option<u64>> {
    let (clique, rank) = driver.membership_to_use(handle)?;
    if color < -1 {
        return Err(wrong_argument(format!("the color is {color}, not from 0 or NCCL_SPLIT_NOCOLOR, -1")));
    }
    let gpu = driver.communicator(handle)?.gpu;
    let Some(communicator) = driver.nccl.communicators.get_mut(&handle) else { return Ok(None) };
    communicator.splits += 1;
    let occasion = BootstrapKey::Split { clique, number: communicator.splits };
    let new = (color >= 0).then(|| driver.new_communicator(gpu));
    let expected = driver.ranks(clique);
    driver.bootstrap(occasion, expected, Candidate { rank, color, key, handle: new, gpu })?;
    Ok(new)
}

/// Waits until all ranks of new communicators have come.
pub fn wait(driver: &mut Driver, handles: &[u64]) -> Answer {
    let membership = |driver: &Driver, handle| driver.nccl.communicators.get(&handle).map(|known| known.membership);
    for &handle in handles {
        while let Some(Membership::Pending) = membership(driver, handle) {
            CHANGED.wait(driver);
        }
    }
    // The call that did not fit was told what is wrong with it.
    let refused = |&&handle: &&u64| !matches!(membership(driver, handle), Some(Membership::Member { .. }));
    if handles.iter().any(|handle| refused(&handle)) { Err(INVALID_USAGE.into()) } else { Ok(()) }
}

/// The number of a rank that a caller gave.
pub fn number_of_rank(rank: i32, ranks: usize) -> Answer<usize> {
    let wrong = || wrong_argument(format!("rank {rank} is none of {ranks}"));
    usize::try_from(rank).ok().filter(|&rank| rank < ranks).ok_or_else(wrong)
}

/// `ncclCommFinalize`: waits for the rank's operations; after it the communicator can only be destroyed.
pub fn finalize(driver: &mut Driver, handle: u64) -> Answer {
    driver.membership_to_use(handle)?;
    let last = driver.communicator(handle)?.last.as_ref().map(|(point, _)| *point);
    driver.wait_for(last.as_slice());
    if let Some(communicator) = driver.nccl.communicators.get_mut(&handle) {
        communicator.finalized = true;
    }
    Ok(())
}

/// `ncclCommDestroy`: waits as [`finalize`] does.
pub fn destroy(driver: &mut Driver, handle: u64) -> Answer {
    if !driver.communicator(handle)?.finalized {
        finalize(driver, handle)?;
    }
    leave(driver, handle);
    Ok(())
}

/// `ncclCommAbort`: operations that not all ranks have come to end without doing anything, for all ranks.
pub fn abort(driver: &mut Driver, handle: u64) -> Answer {
    if let Membership::Member { clique, .. } = driver.communicator(handle)?.membership {
        driver.cancel_all_of(clique, super::REMOTE_ERROR);
    }
    leave(driver, handle);
    Ok(())
}

/// Drops a rank's communicator, and with the last one what they shared.
fn leave(driver: &mut Driver, handle: u64) {
    let Some(communicator) = driver.nccl.communicators.remove(&handle) else { return };
    driver.nccl.registrations.retain(|_, registration| registration.communicator != handle);
    let Membership::Member { clique: number, .. } = communicator.membership else { return };
    let Some(clique) = driver.nccl.cliques.get(&number) else { return };
    if clique.ranks.iter().any(|(other, _)| driver.nccl.communicators.contains_key(other)) {
        return;
    }
    driver.nccl.cliques.remove(&number);
}

/// `ncclCommGetAsyncError`.
pub fn error(driver: &State, handle: u64) -> Answer<Status> {
    Ok(match driver.communicator(handle)?.membership {
        Membership::Pending => super::IN_PROGRESS,
        Membership::Failed => INVALID_USAGE,
        Membership::Member { clique, .. } => {
            driver.nccl.cliques.get(&clique).map_or(super::SUCCESS, |clique| clique.error)
        }
    })
}
