//! Communicators as ranks have them, what the ranks of one share, and how they part.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::rendezvous::Meetings;
use super::{
    Others, of_cuda,
    others::Meeting,
    rendezvous::{Key, Rendezvous},
    wrong_argument, wrong_usage,
};
use crate::{
    KnownParts,
    clock::{Clock, Line, Point},
    state::{Driver, State},
    status::{Answer, Status},
    stream::Waits,
};

/// A communicator as one rank has it.
#[derive(Debug)]
pub struct Communicator {
    /// Its GPU.
    pub gpu: usize,
    /// Whether it is made.
    pub membership: Membership,
    /// The collectives that the rank has asked for.
    pub collectives: u64,
    /// The splits.
    pub splits: u64,
    /// The rank's last operation, with what came before it.
    pub last: Option<(Point, Clock)>,
    finalized: bool,
}

/// Whether a rank has found the others.
#[derive(Clone, Copy, Debug)]
pub enum Membership {
    /// It waits for others.
    Pending,
    /// The others cannot be met, with this code.
    Failed(Status),
    /// It is one of a clique.
    Member {
        /// Which.
        clique: u64,
        /// As which of them.
        rank: usize,
    },
}

/// What the ranks of a communicator share.
#[derive(Debug)]
pub struct Clique {
    /// For each rank the handle of its communicator; none where that is of another process.
    pub ranks: Vec<Option<u64>>,
    /// How those of other processes are met, if there are any.
    pub others: Option<Arc<Others>>,
    /// By which clocks know the collectives.
    pub line: Line,
    /// Operations that not all ranks have come to.
    pub rendezvous: BTreeMap<Key, Rendezvous>,
    /// For a sender and a receiver: by which clocks know the messages.
    pub channels: BTreeMap<(usize, usize), Channel>,
    /// What `ncclCommGetAsyncError` tells.
    pub error: Status,
}

impl Clique {
    /// How many ranks of this process take part in what meets by `key`, and how many of all.
    pub fn taking_part(&self, key: Key) -> (usize, usize) {
        let here = |rank: usize| self.ranks.get(rank).is_some_and(Option::is_some);
        match key {
            Key::Collective(_) => (self.ranks.iter().flatten().count(), self.ranks.len()),
            Key::Message { from, to, .. } => (usize::from(here(from)) + usize::from(here(to)), 2),
        }
    }

    /// How ranks of other processes are met, if some take part.
    pub fn meeting(&self, key: Key) -> Option<Meeting> {
        let (here, all) = self.taking_part(key);
        self.others.as_ref().filter(|_| here < all).map(|others| others.meeting(key, all))
    }
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

/// What the driver knows of communicators.
pub trait Communicators {
    /// The communicator of a handle.
    fn communicator(&self, handle: u64) -> Answer<&Communicator>;

    /// The clique of a communicator, and the rank in it.
    fn membership(&self, handle: u64) -> Answer<(u64, usize)>;

    /// As [`Self::membership`], for an operation.
    fn membership_to_use(&self, handle: u64) -> Answer<(u64, usize)>;

    /// How many ranks a clique has.
    fn ranks(&self, clique: u64) -> usize;

    /// One that waits for the other ranks.
    fn new_communicator(&mut self, gpu: usize) -> u64;

    /// Makes a clique of communicators; those that are none are of other processes, and met by `others`.
    fn form_clique(&mut self, ranks: Vec<Option<u64>>, others: Option<Others>);

    /// Says what has become of a communicator.
    fn set_membership(&mut self, handle: u64, membership: Membership);
}

impl Communicators for State {
    fn communicator(&self, handle: u64) -> Answer<&Communicator> {
        let unknown = || wrong_argument(format!("{handle:#x} is no communicator, or was destroyed before"));
        self.parts.known().nccl.communicators.get(&handle).ok_or_else(unknown)
    }

    fn membership(&self, handle: u64) -> Answer<(u64, usize)> {
        match self.communicator(handle)?.membership {
            Membership::Member { clique, rank } => Ok((clique, rank)),
            _ => Err(wrong_usage(format!("the communicator {handle:#x} is not made: not all ranks have come"))),
        }
    }

    fn membership_to_use(&self, handle: u64) -> Answer<(u64, usize)> {
        if self.communicator(handle)?.finalized {
            return Err(wrong_usage(format!("the communicator {handle:#x} was finalized")));
        }
        self.membership(handle)
    }

    fn ranks(&self, clique: u64) -> usize {
        self.parts.known().nccl.cliques.get(&clique).map_or(0, |clique| clique.ranks.len())
    }

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
        self.parts.known_mut().nccl.communicators.insert(handle, communicator);
        handle
    }

    fn form_clique(&mut self, ranks: Vec<Option<u64>>, others: Option<Others>) {
        let (number, line) = (self.number(), self.number());
        for (rank, handle) in ranks.iter().enumerate() {
            if let Some(handle) = *handle {
                self.set_membership(handle, Membership::Member { clique: number, rank });
            }
        }
        let (rendezvous, channels) = (BTreeMap::new(), BTreeMap::new());
        let clique = Clique { ranks, others: others.map(Arc::new), line, rendezvous, channels, error: super::SUCCESS };
        self.parts.known_mut().nccl.cliques.insert(number, clique);
    }

    fn set_membership(&mut self, handle: u64, membership: Membership) {
        if let Some(communicator) = self.parts.known_mut().nccl.communicators.get_mut(&handle) {
            communicator.membership = membership;
        }
    }
}

/// `ncclCommInitAll`.
pub fn all(driver: &mut Driver, devices: &[i32]) -> Answer<Vec<u64>> {
    let gpus: Vec<_> = devices.iter().map(|&device| driver.gpu(device).map_err(of_cuda)).collect::<Answer<_>>()?;
    if gpus.iter().collect::<BTreeSet<_>>().len() != gpus.len() || gpus.is_empty() {
        return Err(wrong_usage(format!("the GPUs of a communicator are {gpus:?}; each is to be there once")));
    }
    let handles: Vec<_> = gpus.into_iter().map(|gpu| driver.new_communicator(gpu)).collect();
    driver.form_clique(handles.iter().copied().map(Some).collect(), None);
    Ok(handles)
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
    if let Some(communicator) = driver.parts.known_mut().nccl.communicators.get_mut(&handle) {
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
    let Some(communicator) = driver.parts.known_mut().nccl.communicators.remove(&handle) else { return };
    driver.parts.known_mut().nccl.registrations.retain(|_, registration| registration.communicator != handle);
    let Membership::Member { clique: number, .. } = communicator.membership else { return };
    let Some(clique) = driver.parts.known().nccl.cliques.get(&number) else { return };
    if clique.ranks.iter().flatten().any(|other| driver.parts.known().nccl.communicators.contains_key(other)) {
        return;
    }
    driver.parts.known_mut().nccl.cliques.remove(&number);
}

/// `ncclCommGetAsyncError`.
pub fn error(driver: &State, handle: u64) -> Answer<Status> {
    Ok(match driver.communicator(handle)?.membership {
        Membership::Pending => super::IN_PROGRESS,
        Membership::Failed(code) => code,
        Membership::Member { clique, .. } => {
            driver.parts.known().nccl.cliques.get(&clique).map_or(super::SUCCESS, |clique| clique.error)
        }
    })
}
