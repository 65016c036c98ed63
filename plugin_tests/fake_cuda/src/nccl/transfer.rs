//! Moves the bytes of ranks that have met.

use std::ptr;

use super::{Kind, Reduction, Task, reduction};

/// What one rank brings.
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
}

/// How much is reduced at a time: a multiple of the size of each type.
const PIECE: u64 = 1 << 16;

impl Transfer {
    /// All parts have come.
    pub fn new(task: Task, mut parts: Vec<Part>) -> Self {
        parts.sort_by_key(|part| part.place);
        Self { task, parts }
    }

    /// Does it, while all ranks are in their operations.
    pub fn run(&self) {
        let bytes = self.task.count * self.task.element.bytes();
        let all = || self.parts.iter().zip((0..).map(|rank| rank * bytes));
        match self.task.kind {
            Kind::AllReduce(reduction) => {
                let to: Vec<_> = self.parts.iter().map(|part| part.receive).collect();
                self.reduce(reduction, 0, bytes, &to);
            }
            Kind::ReduceScatter(reduction) => {
                all().for_each(|(part, at)| self.reduce(reduction, at, bytes, &[part.receive]));
            }
            Kind::Reduce { reduction, root } => {
                let to: Vec<_> = self.parts.iter().skip(root).take(1).map(|part| part.receive).collect();
                self.reduce(reduction, 0, bytes, &to);
            }
            Kind::AllGather => {
                for to in &self.parts {
                    all().for_each(|(from, at)| copy(to.receive + at, from.send, bytes));
                }
            }
            Kind::AllToAll => {
                for (to, mine) in all() {
                    all().for_each(|(from, at)| copy(to.receive + at, from.send + mine, bytes));
                }
            }
            Kind::Broadcast { root } => {
                for from in self.parts.iter().skip(root).take(1) {
                    self.parts.iter().for_each(|to| copy(to.receive, from.send, bytes));
                }
            }
            Kind::Message => {
                if let [from, to] = self.parts.as_slice() {
                    copy(to.receive, from.send, bytes);
                }
            }
        }
    }

    /// Reduces `bytes` at `offset` of what each rank sends, piece by piece: a receive buffer may be the send buffer.
    fn reduce(&self, reduction: Reduction, offset: u64, bytes: u64, to: &[u64]) {
        let mut at = 0;
        while at < bytes {
            let mut piece = vec![0; PIECE.min(bytes - at) as usize];
            let mut more = piece.clone();
            for (index, part) in self.parts.iter().enumerate() {
                let from = part.send + offset + at;
                if index == 0 {
                    read(from, &mut piece);
                } else {
                    read(from, &mut more);
                    reduction::fold(self.task.element, reduction, &mut piece, &more);
                }
            }
            reduction::finish(self.task.element, reduction, &mut piece, self.parts.len());
            to.iter().for_each(|to| write(to + at, &piece));
            at += piece.len() as u64;
        }
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
