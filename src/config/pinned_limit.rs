//! How much memory of the host may be pinned for the arrays of one GPU.
//!
//! XLA's own plugin gives each GPU a pool of up to 64 GiB, whatever the machine has (`xla/pjrt/gpu/gpu_helpers.cc`,
//! `GetGpuHostAllocator`, PJRT C API 0.112 and 0.114). Pinned pages can neither be swapped out nor taken back, and a
//! machine that has no others ends processes instead of refusing memory. So the default is XLA's where the machine has
//! it: its GPUs together pin half of the memory at most, the share that Linux gives to files in memory (`tmpfs`), which
//! cannot be taken back either.

use std::fmt;
use std::num::NonZeroU32;

use bytesize::ByteSize;

use crate::{
    config::{
        limit::{Bytes, GRANULE_BYTES, show},
        precedence::Given,
        row::{Setting, Source},
    },
    error::{Error, Result},
};

/// XLA's variable, in whole GiB.
const XLA_VARIABLE: &str = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB";

/// The most by default.
const MOST: Bytes = 64 << 30;

/// How much memory of the host may be pinned for the arrays of one GPU, as it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinnedLimit {
    /// 64 GiB, or the GPU's part of half of the machine's memory, if that is less.
    OfTheMachine,
    /// This many bytes for each GPU.
    Bytes(Bytes),
}

impl PinnedLimit {
    pub(super) fn parse(given: &Given) -> Result<Self> {
        let text = given.text();
        if given.source == Source::Environment(XLA_VARIABLE) {
            let bytes =
                text.parse::<Bytes>().ok().filter(|&count| count > 0).and_then(|count| count.checked_mul(1 << 30));
            return bytes.map(Self::Bytes).ok_or_else(|| given.refuse("a whole number of GiB, at least 1"));
        }
        let bytes = text.parse::<ByteSize>().ok().map(|bytes| bytes.as_u64());
        let bytes = bytes.filter(|&bytes| bytes >= GRANULE_BYTES);
        bytes.map(Self::Bytes).ok_or_else(|| given.refuse(given.allowed))
    }
}

impl fmt::Display for PinnedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfTheMachine => f.write_str("64GiB or less"),
            Self::Bytes(bytes) => f.write_str(&show(*bytes)),
        }
    }
}

impl Setting<PinnedLimit> {
    /// The bytes that may be pinned for each of `gpus` GPUs on a machine of `capacity_bytes`, rounded down to a
    /// multiple of [`GRANULE_BYTES`].
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where the GPUs together would have more than the machine, or each of them less than
    /// [`GRANULE_BYTES`].
    pub fn resolve(&self, capacity_bytes: Bytes, gpus: NonZeroU32) -> Result<Bytes> {
        let most = capacity_bytes / u64::from(gpus.get());
        let bytes = match self.value {
            PinnedLimit::OfTheMachine => MOST.min(most / 2),
            PinnedLimit::Bytes(bytes) => bytes,
        };
        let bytes = bytes / GRANULE_BYTES * GRANULE_BYTES;
        if (GRANULE_BYTES..=most).contains(&bytes) {
            return Ok(bytes);
        }
        Err(Error::invalid_argument(format!(
            "{}={} would let {} be pinned for each of {gpus} GPU(s) of a machine with {}; allowed: {} to {} for each",
            self.source,
            self.value,
            show(bytes),
            show(capacity_bytes),
            show(GRANULE_BYTES),
            show(most / GRANULE_BYTES * GRANULE_BYTES),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: Bytes = 1 << 30;

    fn given(source: Source, text: &str) -> Result<PinnedLimit> {
        PinnedLimit::parse(&Given { source, raw: text.into(), allowed: "bytes per GPU, at least 1MiB (16GiB)" })
    }

    fn resolved(value: PinnedLimit, capacity: Bytes, gpus: u32) -> Result<Bytes> {
        let setting = Setting { value, source: Source::Environment("PJRT_ARENA_PINNED_LIMIT") };
        setting.resolve(capacity, NonZeroU32::new(gpus).unwrap())
    }

    #[test]
    fn texts() {
        let ours = Source::Environment("PJRT_ARENA_PINNED_LIMIT");
        assert_eq!(given(ours, "16GiB"), Ok(PinnedLimit::Bytes(16 * GIB)));
        assert_eq!(given(ours, "1048576"), Ok(PinnedLimit::Bytes(1 << 20)));
        for text in ["1MB", "0", "50%", "much", "-1GiB"] {
            let refused = given(ours, text).unwrap_err();
            assert!(refused.message.contains(text) && refused.message.contains("at least 1MiB"), "{refused}");
        }
        let xla = Source::Environment(XLA_VARIABLE);
        assert_eq!(given(xla, "3"), Ok(PinnedLimit::Bytes(3 * GIB)));
        for text in ["0", "3GiB", "1.5", "99999999999999"] {
            assert!(given(xla, text).unwrap_err().message.contains("a whole number of GiB"), "{text}");
        }
    }

    #[test]
    fn a_machine_keeps_half_of_its_memory_unless_told_otherwise() {
        assert_eq!(resolved(PinnedLimit::OfTheMachine, 2048 * GIB, 8), Ok(64 * GIB));
        assert_eq!(resolved(PinnedLimit::OfTheMachine, 64 * GIB, 1), Ok(32 * GIB));
        assert_eq!(resolved(PinnedLimit::OfTheMachine, 64 * GIB + 5, 4), Ok(8 * GIB));
        assert_eq!(resolved(PinnedLimit::Bytes(60 * GIB + 7), 64 * GIB, 1), Ok(60 * GIB));
        let refused = resolved(PinnedLimit::Bytes(60 * GIB), 64 * GIB, 2).unwrap_err();
        assert_eq!(
            refused.message,
            "PJRT_ARENA_PINNED_LIMIT=60.00GiB would let 60.00GiB be pinned for each of 2 GPU(s) of a machine with 64.00GiB; \
             allowed: 1.00MiB to 32.00GiB for each"
        );
    }
}
