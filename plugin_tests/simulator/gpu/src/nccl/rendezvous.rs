//! Where ranks meet: the same collective of all ranks, or a send and its receive.
//!
//! ```text
//!               rank 0 calls     rank 1 calls        rank 1's stream comes      rank 0's stream comes
//!  called            1                2 -> the clocks are joined
//!  arrived                                                   1, and waits             2 -> moves the bytes; both end
//! ```
//!
//! Each process has a rendezvous of its own ranks. Where others take part, the last one to come brings what its process
//! has to the hub.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use parking_lot::MutexGuard;

use super::{
    Task, UNHANDLED_CUDA_ERROR,
    transfer::{Part as Share, Refusal, Transfer},
    wrong_usage,
};
use crate::{
    KnownParts,
    clock::{Clock, Point},
    operation::Order,
    parts::{Part, Turn},
    state::{CHANGED, Driver, State},
    status::{self, Answer, Status, misuse},
};

/// What meets what: counted by each rank on its own, in the order of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A communicator's collectives, from 1.
    Collective(u64),
    /// A message.
    Message {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// From 1.
        number: u64,
    },
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective(number) => write!(f, "collective {number} of a communicator"),
            Self::Message { from, to, number } => write!(f, "message {number} from rank {from} to rank {to}"),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Rendezvous {
    task: Task,
    /// The rank that was the first to call.
    first: usize,
    expected: usize,
    called: usize,
    arrived: usize,
    parts: Vec<Share>,
    /// What came before those that have called.
    clock: Clock,
    clocks: usize,
    /// Set at the end.
    end: Arc<OnceLock<()>>,
}

/// One rank's part in a rendezvous.
#[derive(Debug)]
pub struct Step {
    /// Which rendezvous.
    pub key: Key,
    end: Arc<OnceLock<()>>,
}

/// A rank's operation in a stream: all that one group asks for.
#[derive(Debug)]
pub struct Launch {
    /// The ranks.
    pub clique: u64,
    /// What it takes part in; it ends when all of that has ended.
    pub steps: Vec<Step>,
}

/// What the driver knows of collectives under way.
pub trait Meetings {
    /// A rank asks for an operation. What it asks for must be what the others asked for.
    fn call(&mut self, clique: u64, key: Key, rank: usize, task: Task, part: Share) -> Answer<Step>;

    /// The operation of a rank that has called is in its stream, after what `clock` has seen.
    fn issued(&mut self, clique: u64, key: Key, sends: bool, clock: &Clock);

    /// A rank's stream has come to a rendezvous; gives what to do if it is the last one.
    fn arrive(&mut self, clique: u64, step: &Step) -> Option<Transfer>;

    /// Ends a rendezvous without doing anything, unless all have come.
    fn cancel(&mut self, clique: u64, key: Key, error: Status);

    /// Notes that ranks of other processes did not meet those of this one as they should.
    fn refused(&mut self, clique: u64, step: &Step, refusal: Refusal);

    /// Ends all rendezvous of a clique.
    fn cancel_all_of(&mut self, clique: u64, error: Status);

    /// Ends all rendezvous: nobody will come any more.
    fn cancel_all(&mut self);
}

impl Meetings for State {
    fn call(&mut self, clique: u64, key: Key, rank: usize, task: Task, part: Share) -> Answer<Step> {
        let shared = self.parts.known_mut().nccl.cliques.get_mut(&clique).ok_or(UNHANDLED_CUDA_ERROR)?;
        let (expected, _) = shared.taking_part(key);
        let new = || Rendezvous {
            task,
            first: rank,
            expected,
            called: 0,
            arrived: 0,
            parts: Vec::new(),
            clock: Clock::default(),
            clocks: 0,
            end: Arc::default(),
        };
        let rendezvous = shared.rendezvous.entry(key).or_insert_with(new);
        rendezvous.called += 1;
        rendezvous.parts.push(part);
        let (theirs, first, end) = (rendezvous.task, rendezvous.first, Arc::clone(&rendezvous.end));
        if theirs != task {
            shared.error = super::INVALID_USAGE;
            let _ = end.set(());
        }
        if end.get().is_some() && rendezvous.called == expected {
            shared.rendezvous.remove(&key);
        }
        if theirs != task {
            CHANGED.notify_all();
            return Err(wrong_usage(format!("{key} is {task} for rank {rank}, and {theirs} for rank {first}")));
        }
        Ok(Step { key, end })
    }

    fn issued(&mut self, clique: u64, key: Key, sends: bool, clock: &Clock) {
        let Some(shared) = self.parts.known_mut().nccl.cliques.get_mut(&clique) else { return };
        let line = shared.line;
        let Some(rendezvous) = shared.rendezvous.get_mut(&key) else { return };
        match key {
            Key::Collective(number) => {
                rendezvous.clock.join(clock);
                rendezvous.clocks += 1;
                if rendezvous.clocks == rendezvous.expected {
                    self.races.deferred.tell(Point { line, number }, rendezvous.clock.clone());
                }
            }
            Key::Message { from, to, number } if sends => {
                if let Some(channel) = shared.channels.get(&(from, to)) {
                    self.races.deferred.tell(Point { line: channel.line, number }, clock.clone());
                }
            }
            Key::Message { .. } => {}
        }
    }

    fn arrive(&mut self, clique: u64, step: &Step) -> Option<Transfer> {
        if step.end.get().is_some() {
            return None;
        }
        let shared = self.parts.known_mut().nccl.cliques.get_mut(&clique)?;
        let rendezvous = shared.rendezvous.get_mut(&step.key)?;
        rendezvous.arrived += 1;
        if rendezvous.arrived < rendezvous.expected {
            return None;
        }
        let Rendezvous { task, parts, .. } = shared.rendezvous.remove(&step.key)?;
        Some(Transfer::new(task, parts, shared.meeting(step.key)))
    }

    fn cancel(&mut self, clique: u64, key: Key, error: Status) {
        let Some(shared) = self.parts.known_mut().nccl.cliques.get_mut(&clique) else { return };
        let Some(rendezvous) = shared.rendezvous.get_mut(&key) else { return };
        shared.error = error;
        let _ = rendezvous.end.set(());
        if rendezvous.called == rendezvous.expected {
            shared.rendezvous.remove(&key);
        }
        if let Some(meeting) = shared.meeting(key) {
            meeting.fail();
        }
        CHANGED.notify_all();
    }

    fn refused(&mut self, clique: u64, step: &Step, refusal: Refusal) {
        let (error, sentence) = match refusal {
            Refusal::Nobody(why) => {
                self.trace(|| format!("{} met no other process: {why}", step.key));
                (super::REMOTE_ERROR, None)
            }
            Refusal::Other(why) => (super::INVALID_USAGE, Some(format!("{} {why}", step.key))),
        };
        if let Some(shared) = self.parts.known_mut().nccl.cliques.get_mut(&clique) {
            shared.error = error;
        }
        sentence.into_iter().for_each(|sentence| self.violation(sentence));
    }

    fn cancel_all_of(&mut self, clique: u64, error: Status) {
        let Some(shared) = self.parts.known_mut().nccl.cliques.get_mut(&clique) else { return };
        shared.error = error;
        if let Some(others) = &shared.others {
            others.give_up();
        }
        for key in shared.rendezvous.keys().copied().collect::<Vec<_>>() {
            self.cancel(clique, key, error);
        }
    }

    fn cancel_all(&mut self) {
        for clique in self.parts.known().nccl.cliques.keys().copied().collect::<Vec<_>>() {
            self.cancel_all_of(clique, super::REMOTE_ERROR);
        }
    }
}

impl Part for Launch {
    fn run(&self, driver: &mut Driver, _turn: Turn<'_>) {
        let mut begun = Vec::new();
        for step in &self.steps {
            let Some(transfer) = driver.arrive(self.clique, step) else { continue };
            // What is brought to other processes is brought for all steps before any is waited for: theirs may be in
            // another order.
            let visit = MutexGuard::unlocked(driver, || transfer.begin());
            begun.push((step, transfer, visit));
        }
        for (step, transfer, visit) in begun {
            let done = MutexGuard::unlocked(driver, || visit.and_then(|visit| transfer.finish(visit)));
            if let Err(refusal) = done {
                driver.refused(self.clique, step, refusal);
            }
            let _ = step.end.set(());
            CHANGED.notify_all();
        }
        while self.steps.iter().any(|step| step.end.get().is_none()) {
            CHANGED.wait(driver);
        }
    }

    /// The others must not wait for it.
    fn skip(&self, driver: &mut Driver) {
        self.steps.iter().for_each(|step| driver.cancel(self.clique, step.key, UNHANDLED_CUDA_ERROR));
    }

    fn is_node(&self) -> bool {
        false
    }

    fn order(self: Arc<Self>, _driver: &Driver, _gpu: usize) -> Answer<Order> {
        Err(misuse(status::STREAM_CAPTURE_UNSUPPORTED, "a collective is no node of a graph here"))
    }
}
