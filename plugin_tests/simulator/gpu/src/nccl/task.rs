//! What a rank asks for: the kind of operation with its count and type, and which of the rank's bytes it uses.

use std::fmt;

use super::{Reduction, Type};

/// An operation that ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each gets the reduction of all.
    AllReduce(Reduction),
    /// Each gets what all have, in the order of ranks.
    AllGather,
    /// Each gets its part of the reduction of all.
    ReduceScatter(Reduction),
    /// Each gets what the root has.
    Broadcast {
        /// A rank.
        root: usize,
    },
    /// The root gets the reduction of all.
    Reduce {
        /// Which.
        reduction: Reduction,
        /// A rank.
        root: usize,
    },
    /// Each gets from each the part that is for it.
    AllToAll,
    /// One rank sends to one.
    Message,
}

/// What all ranks that meet must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// See [`Kind`].
    pub kind: Kind,
    /// How many elements, as NCCL counts them: of what a rank gives to, or gets from, one other.
    pub count: u64,
    /// Their type.
    pub element: Type,
}

impl Task {
    /// How many bytes a rank of `ranks` sends and receives; nothing where they do not fit into a number. A message has
    /// a side for each, and both count as both here.
    pub fn bytes(&self, rank: usize, ranks: usize) -> Option<(u64, u64)> {
        let one = self.count.checked_mul(self.element.bytes())?;
        let all = one.checked_mul(ranks as u64)?;
        let at = |root: usize| if rank == root { one } else { 0 };
        Some(match self.kind {
            Kind::AllReduce(_) | Kind::Message => (one, one),
            Kind::AllGather => (one, all),
            Kind::ReduceScatter(_) => (all, one),
            Kind::Broadcast { root } => (at(root), one),
            Kind::Reduce { root, .. } => (one, at(root)),
            Kind::AllToAll => (all, all),
        })
    }

    /// Where in the receive buffer NCCL lets the send buffer of a rank lie, if they overlap: how far behind its begin,
    /// or with a minus before it.
    pub fn in_place(&self, rank: usize) -> Option<i64> {
        let part = i64::try_from(self.count * self.element.bytes() * rank as u64).ok();
        match self.kind {
            Kind::AllReduce(_) | Kind::Broadcast { .. } | Kind::Reduce { .. } => Some(0),
            Kind::AllGather => part,
            Kind::ReduceScatter(_) => part.map(|part| -part),
            Kind::AllToAll | Kind::Message => None,
        }
    }

    /// The name of the function that asks for it; for a message the sender's.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::AllReduce(_) => "ncclAllReduce",
            Kind::AllGather => "ncclAllGather",
            Kind::ReduceScatter(_) => "ncclReduceScatter",
            Kind::Broadcast { .. } => "ncclBroadcast",
            Kind::Reduce { .. } => "ncclReduce",
            Kind::AllToAll => "ncclAlltoAll",
            Kind::Message => "ncclSend",
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, element } = self;
        match kind {
            Kind::Message => write!(f, "a message of {count} {element:?}"),
            Kind::AllReduce(reduction) | Kind::ReduceScatter(reduction) => {
                write!(f, "{} of {count} {element:?} by {reduction:?}", self.name())
            }
            Kind::Broadcast { root } => write!(f, "{} of {count} {element:?} from rank {root}", self.name()),
            Kind::Reduce { reduction, root } => {
                write!(f, "{} of {count} {element:?} by {reduction:?} to rank {root}", self.name())
            }
            Kind::AllGather | Kind::AllToAll => write!(f, "{} of {count} {element:?}", self.name()),
        }
    }
}
