//! The report of a request that found no room.

use std::{fmt, sync::Arc};

use crate::{
    error::{Code, Error},
    memory::backing::Strategy,
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
    /// What the limit still allowed to be taken from the device.
    pub growth: Bytes,
    /// The arena's limit.
    pub limit: Bytes,
    /// Whether it was for a program's scratch.
    pub is_scratch: bool,
    /// What is known beyond the numbers.
    pub story: Option<Box<OomDetails>>,
    /// What the device said, where it refused memory that the limit allows; or that a panic has interrupted the arena.
    pub refusal: Option<Box<Error>>,
}

/// What a request was for, what was tried, and what holds the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomDetails {
    /// What was to be allocated, in words.
    pub wanted: String,
    /// What the call had and wanted beside that, where it is one of several.
    pub call: Option<CallPart>,
    /// What compaction did, where it was on.
    pub tried: Option<Tried>,
    /// What a compaction could not move, where there was one; the largest sum first.
    pub pinned: Vec<Pinned>,
    /// What holds most of the memory in use; the largest first.
    pub holders: Vec<Holder>,
    /// Blocks in use of others than `holders`.
    pub others: u64,
    /// Their sizes asked for, summed: with those of `holders` all that is in use.
    pub other_bytes: Bytes,
    /// What programs' scratch has for good beside the limit, which is the arrays' alone then; nothing as a rule.
    pub share: Bytes,
    /// What would have helped.
    pub hint: Option<Hint>,
}

/// The other parts of a call, in the memory that had no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPart {
    /// What it had already: in use, or reserved.
    pub had: Bytes,
    /// What it was still to be given.
    pub wanted: Bytes,
}

/// What compaction did for a request that failed all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The largest hole before.
    pub hole_before: Bytes,
    /// Blocks moved.
    pub blocks: u64,
    /// Their sizes asked for, summed.
    pub bytes: Bytes,
}

/// Blocks of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The origin, in words.
    pub label: String,
    /// Their sizes asked for, summed.
    pub bytes: Bytes,
    /// How many.
    pub blocks: u64,
}

/// What would have made room for the whole call. Each was computed to work before it is said
/// ([`super::Arena::would_fit`] and its like).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Memory comes back when programs that are under way end.
    Wait {
        /// How much.
        pending: Bytes,
    },
    /// Compaction is off, and would have opened a hole.
    Compact {
        /// What would have moved.
        bytes: Bytes,
    },
    /// There is more memory than the limit allows.
    Limit {
        /// The variable that sets it.
        setting: &'static str,
        /// A limit of each device that would have been enough.
        enough: Bytes,
        /// What its owner has.
        memory: Bytes,
        /// Whose it is: the machine's, or a GPU's.
        owner: &'static str,
        /// Devices that share it.
        devices: u32,
    },
    /// The program that found no room keeps arguments that nobody uses after it.
    Donate(Donation),
}

/// Arguments of a program whose memory its results could have had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Donation {
    /// The program's name.
    pub program: String,
    /// The arguments' numbers, in ascending order.
    pub arguments: Vec<usize>,
    /// What they take.
    pub bytes: Bytes,
    /// So many launches were looked at, and after none of them was one of the arguments used again.
    pub launches: u64,
}

impl fmt::Display for Donation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, arguments, bytes, launches } = self;
        f.write_str("donating argument")?;
        write_numbers(arguments, f)?;
        write!(
            f,
            " of {program} (donate_argnums) would have saved {bytes} at this point; {} not used again in {launches} of \
             {launches} launches",
            if arguments.len() == 1 { "it was" } else { "they were" }
        )
    }
}

/// Writes ascending numbers behind a noun, which they put in the plural: ` 3`, `s 0 to 11 and 14`.
fn write_numbers(numbers: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let runs: Vec<&[usize]> = numbers.chunk_by(|one, next| one + 1 == *next).collect();
    // Two are a list: "0 and 1".
    let parts = runs.iter().flat_map(|run| match run {
        [first, .., last] if run.len() > 2 => vec![format!("{first} to {last}")],
        few => few.iter().map(usize::to_string).collect(),
    });
    let parts: Vec<String> = parts.collect();
    f.write_str(if numbers.len() > 1 { "s " } else { " " })?;
    match parts.split_last() {
        Some((last, [])) => f.write_str(last),
        Some((last, before)) => write!(f, "{} and {last}", before.join(", ")),
        None => Ok(()),
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait { pending } => write!(
                f,
                "{pending} come back when programs under way end; wait for them (jax.block_until_ready) and try again"
            ),
            Self::Compact { bytes } => {
                write!(f, "PJRT_ARENA_COMPACT=on would have made room, by moving {bytes} of arrays")
            }
            Self::Limit { setting, enough, memory, owner, devices } => {
                let mib = enough.get() >> 20;
                write!(f, "{setting}={mib}MiB would have been enough; the {owner} has {memory}")?;
                if *devices > 1 { write!(f, " for {devices} devices") } else { Ok(()) }
            }
            Self::Donate(donation) => donation.fmt(f),
        }
    }
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
        if self.is_scratch {
            self.write_for_scratch(f)?;
        } else {
            if self.strategy == Strategy::Tpu {
                self.write_as_a_tpu(f)?;
            }
            let (requested, bytes) = (self.requested, self.requested.get());
            writeln!(
                f,
                "Out of memory while trying to allocate {requested} ({bytes} bytes) on {} [arena, {}].",
                self.arena, self.strategy
            )?;
        }
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
        write!(f, "\n  largest hole {hole}")?;
        // A refusal tells nothing about how much less would have been granted.
        if self.refusal.is_none() {
            write!(f, ", largest request that would fit {largest} ({} bytes)", largest.get())?;
        }
        match &self.refusal {
            Some(refusal) if self.is_broken() => write!(f, "\n  {}", refusal.message),
            Some(refusal) => write!(f, "\n  the device refused more memory: {}", refusal.message),
            None if self.requested > self.limit => write!(f, "\n  the request is larger than the limit"),
            None if self.free + self.growth >= self.requested => write!(f, "\n  enough is free, but not in one piece"),
            None => Ok(()),
        }?;
        self.story.as_ref().map_or(Ok(()), |story| self.write_story(story, f))
    }
}

impl std::error::Error for OutOfMemory {}

impl OutOfMemory {
    /// As in [`super::Stats::pool_bytes`].
    pub fn pool(&self) -> Bytes {
        self.in_use + self.pending + self.slack + self.reserved + self.free
    }

    /// The code of the error: INTERNAL where a panic has interrupted the arena.
    pub fn code(&self) -> Code {
        if self.is_broken() { Code::Internal } else { Code::ResourceExhausted }
    }

    /// Whether a panic has interrupted the arena: only then is the refusal no device's.
    fn is_broken(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.code == Code::FailedPrecondition)
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

    /// The TPU runtime's words (XLA, `docs/errors/error_0101.md`).
    fn write_for_scratch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [self.requested, self.free, self.reserved, self.free + self.reserved];
        let [wanted, free, reserved, reservable] = numbers.map(short);
        writeln!(
            f,
            "Attempting to reserve {wanted} at the bottom of memory. That was not possible. There are {free} free, \
             {reserved} reserved, and {reservable} reservable. ({}) [arena, {}]",
            self.arena, self.strategy
        )
    }

    fn write_story(&self, story: &OomDetails, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !story.share.is_zero() {
            write!(f, "\n  programs' scratch has {} beside the limit for good (gpu_scratch)", story.share)?;
        }
        write!(f, "\n  wanted for {}", story.wanted)?;
        if let Some(CallPart { had, wanted }) = story.call {
            write!(f, "\n  of a call that had {had} and wanted {wanted} more")?;
        }
        if let Some(Tried { hole_before, blocks, bytes }) = story.tried {
            match blocks {
                0 => write!(f, "\n  compaction moved nothing")?,
                _ => write!(
                    f,
                    "\n  compaction moved {bytes} in {blocks} block(s): largest hole {hole_before} before, {} after",
                    self.largest_hole
                )?,
            }
        }
        for pinned in &story.pinned {
            write!(f, "\n  could not move {} in {} block(s): {}", pinned.bytes, pinned.blocks, pinned.why)?;
        }
        for (number, holder) in story.holders.iter().enumerate() {
            let title = if number == 0 { "held by" } else { "       " };
            write!(f, "\n  {title} {} in {} block(s): {}", holder.bytes, holder.blocks, holder.label)?;
        }
        if story.others > 0 {
            write!(f, "\n          {} in {} other block(s)", story.other_bytes, story.others)?;
        }
        story.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n  hint: {hint}"))
    }
}

impl From<OutOfMemory> for Error {
    fn from(oom: OutOfMemory) -> Self {
        Self::new(oom.code(), oom.to_string())
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
            growth: Bytes::mib(1),
            limit: Bytes::gib(10),
            is_scratch: false,
            story: None,
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
        assert!(text.contains("largest hole 3.00GiB, largest request that would fit 4.00GiB"), "{text}");
        let refusal = Some(Box::new(Error::new(Code::ResourceExhausted, "4.00GiB more would pass the limit")));
        let refused = OutOfMemory { refusal, ..oom.clone() }.to_string();
        assert!(
            refused.ends_with(
                "  largest hole 3.00GiB\n  the device refused more memory: 4.00GiB more would pass the limit"
            ),
            "{refused}"
        );
        let tpu = OutOfMemory { strategy: Strategy::Tpu, ..oom.clone() }.to_string();
        assert!(
            tpu.starts_with(
                "Attempting to allocate 6.00G. That was not possible. There are 7.00G free. Due to fragmentation, the \
                 largest contiguous region of free memory is 3.00G.; (cpu:0)\nOut of memory while trying"
            ),
            "{tpu}"
        );
        let story = OomDetails {
            wanted: "jit_step output 3 f32[1610612736]".to_owned(),
            call: Some(CallPart { had: Bytes::gib(1), wanted: Bytes::mib(3) }),
            tried: Some(Tried { hole_before: Bytes::gib(2), blocks: 2, bytes: Bytes::mib(7) }),
            pinned: vec![Pinned { why: "external references", blocks: 3, bytes: Bytes::mib(5) }],
            holders: vec![
                Holder { label: "jit_step output 1 f32[1024]".to_owned(), bytes: Bytes::gib(1), blocks: 9 },
                Holder { label: "from host u8[7]".to_owned(), bytes: Bytes::mib(512), blocks: 1 },
            ],
            others: 4,
            other_bytes: Bytes::mib(512),
            share: Bytes::ZERO,
            hint: Some(Hint::Wait { pending: Bytes::mib(1) }),
        };
        let told = OutOfMemory { story: Some(Box::new(story.clone())), ..oom.clone() }.to_string();
        assert_eq!(
            told.strip_prefix(&text),
            Some(
                "\n  wanted for jit_step output 3 f32[1610612736]\
                 \n  of a call that had 1.00GiB and wanted 3.00MiB more\
                 \n  compaction moved 7.00MiB in 2 block(s): largest hole 2.00GiB before, 3.00GiB after\
                 \n  could not move 5.00MiB in 3 block(s): external references\
                 \n  held by 1.00GiB in 9 block(s): jit_step output 1 f32[1024]\
                 \n          512.00MiB in 1 block(s): from host u8[7]\
                 \n          512.00MiB in 4 other block(s)\
                 \n  hint: 1.00MiB come back when programs under way end; wait for them (jax.block_until_ready) and try \
                 again"
            ),
            "{told}"
        );
        let tried = Some(Tried { hole_before: Bytes::gib(3), blocks: 0, bytes: Bytes::ZERO });
        let idle = OutOfMemory { story: Some(Box::new(OomDetails { tried, ..story })), ..oom.clone() }.to_string();
        assert!(idle.contains("\n  compaction moved nothing\n"), "{idle}");
        let (enough, memory) = (Bytes::gib(12), Bytes::gib(64));
        let limit = |devices| {
            Hint::Limit { setting: "PJRT_ARENA_LIMIT", enough, memory, owner: "machine", devices }.to_string()
        };
        assert_eq!(limit(1), "PJRT_ARENA_LIMIT=12288MiB would have been enough; the machine has 64.00GiB");
        assert_eq!(
            limit(2),
            "PJRT_ARENA_LIMIT=12288MiB would have been enough; the machine has 64.00GiB for 2 devices"
        );
        let compact = Hint::Compact { bytes: Bytes::mib(3) }.to_string();
        assert_eq!(compact, "PJRT_ARENA_COMPACT=on would have made room, by moving 3.00MiB of arrays");
        let refused = OutOfMemory { refusal: Some(Box::new(Error::internal("no pages"))), ..oom };
        assert!(refused.to_string().ends_with("refused more memory: no pages"));
        assert_eq!(Error::from(refused).code, Code::ResourceExhausted);
    }

    #[test]
    fn donations_name_arguments_as_people_do() {
        let told = |arguments: &[usize]| {
            let (program, arguments) = ("jit_step".to_owned(), arguments.to_vec());
            Hint::Donate(Donation { program, arguments, bytes: Bytes::mib(1229), launches: 50 }).to_string()
        };
        assert_eq!(
            told(&[0, 1, 2, 3, 4]),
            "donating arguments 0 to 4 of jit_step (donate_argnums) would have saved 1.20GiB at this point; they were \
             not used again in 50 of 50 launches"
        );
        assert_eq!(
            told(&[7]),
            "donating argument 7 of jit_step (donate_argnums) would have saved 1.20GiB at this point; it was not used \
             again in 50 of 50 launches"
        );
        for (arguments, text) in [
            (&[0, 1][..], "arguments 0 and 1 of"),
            (&[0, 2], "arguments 0 and 2 of"),
            (&[0, 1, 2, 5], "arguments 0 to 2 and 5 of"),
            (&[1, 3, 4, 6, 7, 8], "arguments 1, 3, 4 and 6 to 8 of"),
        ] {
            assert!(told(arguments).contains(text), "{}", told(arguments));
        }
    }

    #[test]
    fn sums_take_every_part_once() {
        let oom = OutOfMemory {
            arena: "tpu:0".into(),
            strategy: Strategy::Tpu,
            requested: Bytes::mib(16),
            in_use: Bytes::mib(1),
            pending: Bytes::mib(2),
            slack: Bytes::mib(4),
            free: Bytes::mib(16),
            largest_hole: Bytes::mib(8),
            largest_request: Bytes::mib(8),
            reserved: Bytes::mib(32),
            growth: Bytes::ZERO,
            limit: Bytes::mib(55),
            is_scratch: false,
            story: Some(Box::new(OomDetails {
                share: Bytes::mib(64),
                wanted: "x".to_owned(),
                ..OomDetails::default()
            })),
            refusal: None,
        };
        assert_eq!((oom.pool(), oom.in_prospect()), (Bytes::mib(55), Bytes::mib(54)));
        let text = oom.to_string();
        assert!(text.contains("Due to fragmentation"), "just as much is free: {text}");
        assert!(
            text.contains("programs' scratch 32.00MiB") && text.contains("has 64.00MiB beside the limit"),
            "{text}"
        );
        let scratch = OutOfMemory { is_scratch: true, story: None, ..oom.clone() }.to_string();
        assert!(
            scratch.starts_with(
                "Attempting to reserve 16.00M at the bottom of memory. That was not possible. There are 16.00M free, \
                 32.00M reserved, and 48.00M reservable. (tpu:0) [arena, tpu]\n  limit 55.00MiB, pool 55.00MiB = in use"
            ),
            "{scratch}"
        );
        let text = OutOfMemory { requested: Bytes::mib(17), story: None, ..oom }.to_string();
        assert!(!text.contains("fragmentation") && !text.contains("in one piece"), "less is free: {text}");
        assert!(!text.contains("beside the limit"), "{text}");
    }
}
