//! The out-of-memory error: what was wanted, what was tried, what holds the memory, and what would have helped.
//!
//! The error has a hint only if it is true at this instant under the present settings: the planner is asked, and
//! nothing moves. The failure is noted in the arena's history, and written as a report where the user wants one.

use std::{
    cell::RefCell,
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    config::Compact,
    device::host,
    error::Error,
    memory::{Hint, Holder, OomDetails, OutOfMemory, history::holdings},
    runtime::{
        allocator::{compaction, core::Allocator, group, reclaim::NoRoom, spill},
        device_memory::{DeviceMemory, origins::ORIGINS},
        in_flight::deadline::cancelled,
    },
    units::Bytes,
};

/// How many holders the text names.
const HOLDERS: usize = 5;

/// The least time between two reports: a program that tries again and again does not write all the time.
const BETWEEN_REPORTS: Duration = Duration::from_secs(10);

/// What is known of an error of exhausted memory, for listeners beside the caller (`api/control/on_oom.rs`).
#[derive(Clone, Debug)]
pub struct Exhausted {
    /// The device, as the library names it.
    pub device: String,
    /// What found no room.
    pub requested: Bytes,
    /// What it was for, in words.
    pub origin: String,
    /// The error's text.
    pub text: String,
}

thread_local! {
    /// The last one that this thread met.
    static LAST: RefCell<Option<Exhausted>> = const { RefCell::new(None) };
}

/// What is known of the last error of exhausted memory that this thread met; the second time nothing.
pub fn take_last() -> Option<Exhausted> {
    // A thread that is about to end has none.
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Remembers, for [`take_last`], that so many bytes for `origin` found no room.
pub fn remember(memory: &DeviceMemory, requested: Bytes, origin: String, text: &str) {
    let last = Exhausted { device: memory.name().to_owned(), requested, origin, text: text.to_owned() };
    let _ = LAST.try_with(|place| place.replace(Some(last)));
}

/// The error for an array that found no room. Remembers it, and writes the report, unless a signal ended the wait.
#[cold]
pub fn exhausted(allocator: &Allocator, memory: &DeviceMemory, shortage: NoRoom) -> Error {
    let NoRoom { mut numbers, provenance, tried, interrupted, .. } = shortage;
    if let Some(after) = interrupted {
        return cancelled(after, &numbers.to_string());
    }
    let mut blocks = memory.blocks();
    memory.complete(&mut blocks);
    let mut holders = holdings(blocks.iter().map(|info| (info.provenance, info.held)));
    let rest = holders.split_off(holders.len().min(HOLDERS));
    let details = OomDetails {
        wanted: ORIGINS.label(provenance.origin),
        tried,
        // What divides the memory matters only where that is the cause.
        pinned: match numbers.free >= numbers.requested && allocator.compacts() {
            true => compaction::pinned(memory),
            false => Vec::new(),
        },
        holders: holders
            .iter()
            .map(|sum| Holder { label: ORIGINS.label(sum.origin), bytes: sum.bytes, blocks: sum.blocks })
            .collect(),
        others: rest.iter().map(|sum| sum.blocks).sum(),
        other_bytes: rest.iter().map(|sum| sum.bytes).sum(),
        share: share(memory),
        hint: hint(allocator, memory, &numbers),
    };
    numbers.story = Some(Box::new(details));
    let (code, mut text) = (numbers.code(), numbers.to_string());
    if let Some(tier) = &memory.tier {
        text.push_str(&spill::tier_details(memory, tier));
    }
    if let Some(part) = &memory.group {
        text.push_str(&group::details(part));
    }
    remember(memory, numbers.requested, ORIGINS.label(provenance.origin), &text);
    memory.note_failure(*numbers, provenance, text.clone());
    if let Some(path) = allocator.settings.oom_report.value.path() {
        report(allocator, path);
    }
    Error::new(code, text)
}

/// What would have made room.
fn hint(allocator: &Allocator, memory: &DeviceMemory, numbers: &OutOfMemory) -> Option<Hint> {
    let size = numbers.requested;
    if numbers.refusal.is_none() && memory.fits_after_pending(size) {
        return Some(Hint::Wait { pending: numbers.pending });
    }
    if allocator.compaction == Compact::Off
        && let Some(bytes) = compaction::would_open(memory, size)
    {
        return Some(Hint::Compact { bytes });
    }
    // A higher limit does not help where the device refuses.
    if numbers.refusal.is_some() {
        return None;
    }
    // The engine's fixed share grows with the limit.
    let limit = numbers.limit + share(memory);
    let size = u128::from(size.get()) * u128::from(limit.get()) / u128::from(numbers.limit.get().max(1));
    let enough = enough(limit, Bytes::new(u64::try_from(size).ok()?))?;
    let (owner, capacity, devices) = match &memory.shared {
        Some(shared) => {
            let free = shared.pool.free_on_device().ok()?;
            ("GPU", shared.most.min(limit + free), 1)
        }
        None => ("machine", host::capacity().ok()?, u32::try_from(allocator.memories.len()).ok()?),
    };
    let is_own = allocator.memories.iter().any(|own| std::ptr::eq(&**own, memory));
    let setting = if is_own { "PJRT_ARENA_LIMIT" } else { "PJRT_ARENA_PINNED_LIMIT" };
    let fits = enough.get().checked_mul(devices.into())? <= capacity.get();
    fits.then_some(Hint::Limit { setting, enough, memory: capacity, owner, devices })
}

/// The engine's fixed share beside the arena's limit.
fn share(memory: &DeviceMemory) -> Bytes {
    memory.shared.as_ref().and_then(|shared| shared.budget.share()).unwrap_or(Bytes::ZERO)
}

/// A limit under which the same run finds `size` bytes more at the end of its pool: small blocks take part in a larger
/// pool, up to 1/128 of it.
fn enough(limit: Bytes, size: Bytes) -> Option<Bytes> {
    let sum = limit.checked_add(size)?;
    sum.checked_add(Bytes::new(sum.get() / 64))?.checked_round_up(Bytes::mib(1))
}

/// Has a report written to `path`, unless one was written a moment ago.
fn report(allocator: &Allocator, path: &Path) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    {
        let mut last = LAST.lock();
        if last.is_some_and(|last| last.elapsed() < BETWEEN_REPORTS) {
            return;
        }
        *last = Some(Instant::now());
    }
    (allocator.on_exhausted)(path);
}
