//! Where a block came from: its origin, the execution that made it, and when. Numbers that the arena keeps and does
//! not interpret.
//!
//! ```text
//!  Provenance { origin: OriginId, run: Execution { step, at: Timestamp } }      16 bytes a block
//!             |                     |         `- nanoseconds since the process began to look at the clock
//!             |                     `- number of the program's run on the device
//!             `- a row of a table that the caller keeps: what the block is, in words
//! ```

use std::{sync::LazyLock, time::SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::units::Bytes;

/// A row of the caller's table of origins. The arena only hands it on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId(u32);

/// An instant, in nanoseconds since [`began`]; or unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// One run of a program on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// Its number, from 1 on, modulo 2^32; 0 for what no program made.
    pub step: u32,
    /// When it began.
    pub at: Timestamp,
}

/// Where a block came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// What the block is.
    pub origin: OriginId,
    /// The run that made it.
    pub run: Execution,
}

/// Why a block is pinned: a row of the caller's table. Row 0 says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinReason(pub u8);

/// What to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub size: Bytes,
    /// For whom.
    pub provenance: Provenance,
}

impl From<Bytes> for Request {
    /// Without provenance.
    fn from(size: Bytes) -> Self {
        Self { size, provenance: Provenance::default() }
    }
}

impl OriginId {
    /// The caller did not say where the block came from.
    pub const UNKNOWN: Self = Self(0);

    /// The row with this number.
    pub const fn new(row: u32) -> Self {
        Self(row)
    }

    /// The row's number.
    pub const fn row(self) -> u32 {
        self.0
    }
}

impl Provenance {
    /// Updated by what is known later: the origin always, the execution if it is another.
    pub fn updated(self, later: Self) -> Self {
        Self { origin: later.origin, run: if self.run.step == later.run.step { self.run } else { later.run } }
    }
}

struct Epoch {
    /// What the monotonic clock showed.
    nanos: u64,
    wall: SystemTime,
}

static EPOCH: LazyLock<Epoch> = LazyLock::new(|| Epoch { nanos: read(ClockId::Monotonic), wall: SystemTime::now() });

/// Nanoseconds on `clock`. [`std::time::Instant`] reads the same one, but takes half as long again to tell how long ago
/// something was.
#[inline]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    // Both count from the machine's start, so neither is negative; 2^64 nanoseconds are 584 years.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What all timestamps are counted from: the first reading of the clock in this process.
pub fn began() -> SystemTime {
    EPOCH.wall
}

impl Timestamp {
    /// Not known.
    pub const UNKNOWN: Self = Self(0);

    /// The instant so many nanoseconds after [`began`]; zero counts as unknown.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Now, to the nanosecond. It costs 20 ns.
    #[inline]
    pub fn now() -> Self {
        Self::on(ClockId::Monotonic)
    }

    /// Now, or up to one tick of the kernel (1 to 4 ms) earlier, for 3 ns where [`Self::now`] takes 20: what each
    /// execution can bear.
    #[inline]
    pub fn about_now() -> Self {
        Self::on(ClockId::MonotonicCoarse)
    }

    /// Both clocks run at one rate.
    #[inline]
    fn on(clock: ClockId) -> Self {
        let began = EPOCH.nanos;
        Self(read(clock).saturating_sub(began).max(1))
    }

    /// Nanoseconds since [`began`]; `None` if unknown.
    pub fn nanos(self) -> Option<u64> {
        (self != Self::UNKNOWN).then_some(self.0)
    }

    /// As [`Self::nanos`], with 0 for unknown.
    pub(super) const fn raw(self) -> u64 {
        self.0
    }
}
