//! The report of a request that found no room.

use std::{fmt, sync::Arc};

use super::Strategy;
use crate::{
    error::{Code, Error},
    units::{Bytes, short},
};

/// A request found no room. All numbers are of the instant of the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The arena's name.
    pub arena: Arc<str>,
    /// The arena's strategy.
    pub strategy: Strategy,
    /// The size asked for.
    pub requested: Bytes,
    /// As in [`super::Stats::bytes_in_use`].
    pub in_use: Bytes,
    /// As in [`super::Stats::pending_bytes`].
    pub pending: Bytes,
    /// As in [`super::Stats::slack_bytes`].
    pub slack: Bytes,
    /// As in [`super::Stats::free_bytes`].
    pub free: Bytes,
    /// As in [`super::Stats::largest_free_block`].
    pub largest_hole: Bytes,
    /// As in [`super::Stats::largest_request`].
    pub largest_request: Bytes,
    /// As in [`super::Stats::reserved_bytes`].
    pub reserved: Bytes,
    /// The arena's limit.
    pub limit: Bytes,
    /// What a compaction could not move, where there was one; the largest sum first.
    pub pinned: Box<[Pinned]>,
    /// What the device said, where it refused memory that the limit allows.
    pub refusal: Option<Box<Error>>,
}

/// Blocks that could not move, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The reason, in words.
    pub why: &'static str,
    /// How many.
    pub blocks: u64,
    /// Their sizes asked for, summed.
    pub bytes: Bytes,
}

impl fmt::Display for OutOfMemory {
    /// The first line begins with XLA's own words (`tf_allocator_adapter.cc`), which users and scripts search for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.strategy == Strategy::Tpu {
            self.write_as_a_tpu(f)?;
        }
        let (requested, bytes) = (self.requested, self.requested.get());
        writeln!(
            f,
            "Out of memory while trying to allocate {requested} ({bytes} bytes) on {} [arena, {}].",
            self.arena, self.strategy
        )?;
        write!(
            f,
            "  limit {}, pool {} = in use {} + pending {} + slack {}",
            self.limit,
            self.pool(),
            self.in_use,
            self.pending,
            self.slack
        )?;
        if !self.reserved.is_zero() {
            write!(f, " + programs' scratch {}", self.reserved)?;
        }
        write!(f, " + free {}", self.free)?;
        let (hole, largest) = (self.largest_hole, self.largest_request);
        write!(f, "\n  largest hole {hole}, largest request that would fit {largest} ({} bytes)", largest.get())?;
        match &self.refusal {
            Some(refusal) => write!(f, "\n  the device refused more memory: {}", refusal.message),
            None if self.requested > self.limit => write!(f, "\n  the request is larger than the limit"),
            None if self.within_reach() >= self.requested => write!(f, "\n  enough is free, but not in one piece"),
            None => Ok(()),
        }?;
        self.pinned.iter().try_for_each(|pinned| {
            write!(f, "\n  could not move {} in {} block(s): {}", pinned.bytes, pinned.blocks, pinned.why)
        })
    }
}

impl std::error::Error for OutOfMemory {}

impl OutOfMemory {
    /// As in [`super::Stats::pool_bytes`].
    pub fn pool(&self) -> Bytes {
        self.in_use + self.pending + self.slack + self.reserved + self.free
    }

    /// What may be free, at most, once nothing is under way any more: the slack of retired blocks comes with them.
    pub fn in_prospect(&self) -> Bytes {
        self.free + self.pending + self.slack + self.reserved
    }

    /// The TPU runtime's own sentence, which its users and their scripts know (google/trax#431).
    fn write_as_a_tpu(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, free, hole) = (short(self.requested), short(self.free), short(self.largest_hole));
        write!(f, "Attempting to allocate {asked}. That was not possible. There are {free} free.")?;
        if self.free >= self.requested {
            write!(f, " Due to fragmentation, the largest contiguous region of free memory is {hole}.")?;
        }
        writeln!(f, "; ({})", self.arena)
    }

    /// What is free, and what the limit still leaves to grow.
    fn within_reach(&self) -> Bytes {
        Bytes::new(self.limit.get().saturating_sub((self.in_use + self.pending + self.slack + self.reserved).get()))
    }
}

impl From<OutOfMemory> for Error {
    fn from(oom: OutOfMemory) -> Self {
        Self::new(Code::ResourceExhausted, oom.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_begins_as_xlas_does_and_carries_the_numbers() {
        let oom = OutOfMemory {
            arena: "cpu:0".into(),
            strategy: Strategy::Growing,
            requested: Bytes::gib(6),
            in_use: Bytes::gib(2),
            pending: Bytes::mib(1),
            slack: Bytes::new(100),
            free: Bytes::gib(7),
            largest_hole: Bytes::gib(3),
            largest_request: Bytes::gib(4),
            reserved: Bytes::ZERO,
            limit: Bytes::gib(10),
            pinned: Box::default(),
            refusal: None,
        };
        let text = oom.to_string();
        assert!(text.starts_with("Out of memory while trying to allocate 6.00GiB (6442450944 bytes)"), "{text}");
        for part in
            ["cpu:0", "growing", "limit 10.00GiB", "in use 2.00GiB", "pending 1.00MiB", "slack 100B", "hole 3.00GiB"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.ends_with("enough is free, but not in one piece"), "{text}");
        let pinned = Box::new([Pinned { why: "external references", blocks: 3, bytes: Bytes::mib(5) }]);
        let tpu = OutOfMemory { strategy: Strategy::Tpu, pinned, ..oom.clone() }.to_string();
        assert!(
            tpu.starts_with(
                "Attempting to allocate 6.00G. That was not possible. There are 7.00G free. Due to fragmentation, the \
                 largest contiguous region of free memory is 3.00G.; (cpu:0)\nOut of memory while trying"
            ),
            "{tpu}"
        );
        assert!(tpu.ends_with("could not move 5.00MiB in 3 block(s): external references"), "{tpu}");
        let refused = OutOfMemory { refusal: Some(Box::new(Error::internal("no pages"))), ..oom };
        assert!(refused.to_string().ends_with("refused more memory: no pages"));
        assert_eq!(Error::from(refused).code, Code::ResourceExhausted);
    }
}
