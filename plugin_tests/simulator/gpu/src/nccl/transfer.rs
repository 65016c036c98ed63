//! Moves the bytes of ranks that have met.

use std::{io, ptr};

use super::{
    Kind, Reduction, Task,
    others::{Meeting, Visits},
    reduction,
};

/// What one rank of this process brings.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its rank; of a message 0 is the sender, and 1 the receiver.
    pub place: usize,
    /// What it sends, if it does.
    pub send: u64,
    /// Where it receives, if it does.
    pub receive: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Transfer {
    task: Task,
    /// In their order.
    parts: Vec<Part>,
    /// Where ranks of other processes are met, if some take part.
    meeting: Option<Meeting>,
}

/// Why ranks of other processes were not met.
#[derive(Debug)]
pub enum Refusal {
    /// They do not come.
    Nobody(io::Error),
    /// They came for something else.
    Other(String),
}

/// How much is reduced at a time: a multiple of the size of each type.
const PIECE: u64 = 1 << 16;

impl Transfer {
    /// All parts of this process have come.
    pub fn new(task: Task, mut parts: Vec<Part>, meeting: Option<Meeting>) -> Self {
        parts.sort_by_key(|part| part.place);
        Self { task, parts, meeting }
    }

    /// Brings what this process has to the others, if there are any.
    pub fn begin(&self) -> Result<Option<Visits>, Refusal> {
        let Some(meeting) = &self.meeting else { return Ok(None) };
        let sent =
            |part: &Part| if self.task.kind == Kind::Message && part.place == 1 { 0 } else { self.sent(part.place) };
        let brought: Vec<_> = self
            .parts
            .iter()
            .map(|part| {
                let mut bytes = vec![0; sent(part) as usize];
                read(part.send, &mut bytes);
                (part.place, Brought { task: self.task.to_string(), bytes }.encode())
            })
            .collect();
        meeting.bring(&brought).map(Some).map_err(Refusal::Nobody)
    }

    /// Does it, while all ranks are in their operations.
    pub fn finish(&self, visits: Option<Visits>) -> Result<(), Refusal> {
        let Some(visits) = visits else {
            let from: Vec<_> = self.parts.iter().map(|part| part.send).collect();
            self.run(&from);
            return Ok(());
        };
        let heard = visits.wait().map_err(Refusal::Nobody)?;
        let all: Vec<_> = heard.into_iter().map(Brought::decode).collect();
        let mine = self.task.to_string();
        if let Some((rank, other)) = all.iter().enumerate().find(|(_, other)| other.task != mine) {
            let first = self.parts.first().map_or(0, |part| part.place);
            return Err(Refusal::Other(format!("is {mine} for rank {first}, and {} for rank {rank}", other.task)));
        }
        // What ranks of this process send lies in what was heard too: its copy does as well.
        let from: Vec<_> = all.iter().map(|brought| brought.bytes.as_ptr().expose_provenance() as u64).collect();
        self.run(&from);
        Ok(())
    }

    fn sent(&self, rank: usize) -> u64 {
        let ranks = self.meeting.as_ref().map_or(self.parts.len(), Meeting::ranks);
        self.task.bytes(rank, ranks).map_or(0, |(sent, _)| sent)
    }

    /// Moves what each rank sends, from where it lies, to the ranks of this process.
    fn run(&self, from: &[u64]) {
        let bytes = self.task.count * self.task.element.bytes();
        let at = |rank: usize| rank as u64 * bytes;
        let to = || self.parts.iter().map(|part| (part.place, part.receive));
        match self.task.kind {
            Kind::AllReduce(reduction) => {
                let to: Vec<_> = to().map(|(_, receive)| receive).collect();
                self.reduce(reduction, from, 0, bytes, &to);
            }
            Kind::ReduceScatter(reduction) => {
                to().for_each(|(rank, to)| self.reduce(reduction, from, at(rank), bytes, &[to]));
            }
            Kind::Reduce { reduction, root } => {
                let to = to().filter(|(rank, _)| *rank == root);
                to.for_each(|(_, to)| self.reduce(reduction, from, 0, bytes, &[to]));
            }
            Kind::AllGather => {
                for (_, to) in to() {
                    from.iter().enumerate().for_each(|(other, from)| copy(to + at(other), *from, bytes));
                }
            }
            Kind::AllToAll => {
                for (rank, to) in to() {
                    from.iter().enumerate().for_each(|(other, from)| copy(to + at(other), from + at(rank), bytes));
                }
            }
            Kind::Broadcast { root } => {
                from.iter().skip(root).take(1).for_each(|from| to().for_each(|(_, to)| copy(to, *from, bytes)));
            }
            Kind::Message => {
                let from = from.first().copied().unwrap_or_default();
                to().filter(|(place, _)| *place == 1).for_each(|(_, to)| copy(to, from, bytes));
            }
        }
    }

    /// Reduces `bytes` at `offset` of what each rank sends, piece by piece: a receive buffer may be the send buffer.
    fn reduce(&self, reduction: Reduction, all: &[u64], offset: u64, bytes: u64, to: &[u64]) {
        let mut at = 0;
        while at < bytes {
            let mut piece = vec![0; PIECE.min(bytes - at) as usize];
            let mut more = piece.clone();
            for (index, send) in all.iter().enumerate() {
                let from = send + offset + at;
                if index == 0 {
                    read(from, &mut piece);
                } else {
                    read(from, &mut more);
                    reduction::fold(self.task.element, reduction, &mut piece, &more);
                }
            }
            reduction::finish(self.task.element, reduction, &mut piece, all.len());
            to.iter().for_each(|to| write(to + at, &piece));
            at += piece.len() as u64;
        }
    }
}

/// What a rank brings to other processes.
struct Brought {
    /// What it asks for.
    task: String,
    /// What it sends.
    bytes: Vec<u8>,
}

impl Brought {
    fn encode(self) -> Vec<u8> {
        [self.task.as_bytes(), &[0], &self.bytes].concat()
    }

    fn decode(mut encoded: Vec<u8>) -> Self {
        let end = encoded.iter().position(|&byte| byte == 0).unwrap_or(encoded.len());
        let bytes = encoded.split_off((end + 1).min(encoded.len()));
        Self { task: String::from_utf8_lossy(encoded.get(..end).unwrap_or_default()).into_owned(), bytes }
    }
}

fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

fn read(from: u64, into: &mut [u8]) {
    // SAFETY: the rank's ranges were found when its operation was put into the stream, and were there when it came; its
    // stream says that they are in use, which keeps their pages until the operation ends. `into` is ours.
    unsafe { ptr::copy_nonoverlapping(pointer(from).cast_const(), into.as_mut_ptr(), into.len()) };
}

fn write(to: u64, from: &[u8]) {
    // SAFETY: as in `read`, and the rank's operation may write there.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), pointer(to), from.len()) };
}

fn copy(to: u64, from: u64, bytes: u64) {
    // A rank that sends and receives nothing may have null for both.
    if to != from && bytes > 0 {
        // SAFETY: as in `read` and `write`; the two may overlap.
        unsafe { ptr::copy(pointer(from).cast_const(), pointer(to), bytes as usize) };
    }
}
