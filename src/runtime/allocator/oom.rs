//! The out-of-memory error: what was wanted, what was tried, what holds the memory, and what would have helped.
//!
//! All numbers, holders and lines are of one instant, that of the failure. The error has a hint only if following it
//! was computed to make room for the whole call, its other results and other devices included: nothing moves for that.
//! The failure is noted in the arena's history, and written as a report where the user wants one.

use std::{
    cell::RefCell,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    config::Compact,
    device::host,
    error::Error,
    memory::{
        CallPart, Donation, Execution, Exhaustion, Hint, Holder, Needs, OomDetails, OutOfMemory,
        history::{holdings, in_use},
    },
    runtime::{
        allocator::{
            compaction,
            core::Allocator,
            group,
            reclaim::{NoRoom, SearchEnd},
            spill,
        },
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

/// What a call needs of one memory, none of which it has any more.
pub struct Needed {
    /// The memory.
    pub memory: Arc<DeviceMemory>,
    /// What it needs there.
    pub needs: Needs,
    /// The call's own number there: what it had is forgotten.
    pub run: Execution,
}

/// What the call would need if arguments were donated.
pub struct WithDonation {
    /// The arguments.
    pub donation: Donation,
    /// What it would need then.
    pub needed: Vec<Needed>,
}

/// The error for what found no room, in a call that has given back what it had and needs all that is `needed`, or less
/// `with_donation`. Remembers it, and writes the report, unless a signal ended the wait.
#[cold]
pub fn exhausted(
    allocator: &Allocator,
    memory: &DeviceMemory,
    shortage: NoRoom,
    needed: &[Needed],
    with_donation: Option<WithDonation>,
) -> Error {
    let NoRoom { found: Exhaustion { mut numbers, mut blocks }, provenance, call, end } = shortage;
    if let SearchEnd::Interrupted(after) = end {
        return cancelled(after, &numbers.to_string());
    }
    memory.complete(&mut blocks);
    let mut holders = holdings(in_use(&blocks));
    let rest = holders.split_off(holders.len().min(HOLDERS));
    let more = call.needs.sum().and_then(|sum| sum.checked_sub(call.had.bytes)?.checked_sub(numbers.requested));
    let details = OomDetails {
        wanted: ORIGINS.label(provenance.origin),
        call: more
            .map(|wanted| CallPart { had: call.had.bytes, wanted })
            .filter(|part| !(part.had.is_zero() && part.wanted.is_zero())),
        tried: if let SearchEnd::InVain(tried) = end { tried } else { None },
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
        hint: hint(allocator, memory, &numbers, needed, with_donation),
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

/// What would have made room for all that is `needed`, of which this `memory` had no room for some.
fn hint(
    allocator: &Allocator,
    memory: &DeviceMemory,
    numbers: &OutOfMemory,
    needed: &[Needed],
    with_donation: Option<WithDonation>,
) -> Option<Hint> {
    allocator.drain();
    let fits = |one: &Needed| one.memory.would_fit(&one.needs, &|_| false, None);
    // The device may refuse again what the limit allows.
    if numbers.refusal.is_none() && needed.iter().all(fits) {
        let pending: Bytes = needed.iter().map(|one| one.memory.pending()).sum();
        return (!pending.is_zero()).then_some(Hint::Wait { pending });
    }
    if numbers.refusal.is_none()
        && let Some(WithDonation { donation, needed }) = with_donation
        && needed.iter().all(fits)
    {
        return Some(Hint::Donate(donation));
    }
    // Where arrays are spilled, others would lie there if they moved.
    let would_open = |one: &Needed| compaction::would_open(&one.memory, (&one.needs, one.run));
    if allocator.compaction == Compact::Off
        && memory.tier.is_none()
        && let Some(moved) = needed.iter().map(would_open).collect::<Option<Vec<_>>>()
        && let bytes = moved.into_iter().sum::<Bytes>()
        && !bytes.is_zero()
    {
        return Some(Hint::Compact { bytes });
    }
    // A higher limit does not help where the device refuses; in a group it is all members' together, and arrays that
    // are spilled come back to less room than they have now.
    if numbers.refusal.is_some() || memory.group.is_some() || memory.tier.is_some() {
        return None;
    }
    limit_hint(allocator, memory, needed)
}

/// The least limit under which all would have fitted.
fn limit_hint(allocator: &Allocator, memory: &DeviceMemory, needed: &[Needed]) -> Option<Hint> {
    let is_own = |memory: &DeviceMemory| allocator.memories.iter().any(|own| std::ptr::eq(&**own, memory));
    let setting = if is_own(memory) { "PJRT_ARENA_LIMIT" } else { "PJRT_ARENA_PINNED_LIMIT" };
    let (owner, capacity, devices) = match &memory.shared {
        Some(shared) => {
            let free = shared.pool.free_on_device().ok()?;
            ("GPU", shared.most.min(memory.limit() + share(memory) + free), 1)
        }
        None => ("machine", host::capacity().ok()?, u32::try_from(allocator.memories.len()).ok()?),
    };
    let most = Bytes::new(capacity.get() / u64::from(devices.max(1)));
    let mut enough = Bytes::ZERO;
    for one in needed {
        let limit = match is_own(&one.memory) == is_own(memory) {
            true => compaction::least_limit(&one.memory, (&one.needs, one.run), most, allocator.compacts())?,
            // Another setting's: this one alone would not have helped.
            false if one.memory.would_fit(&one.needs, &|_| false, None) => continue,
            false => return None,
        };
        // The engine's fixed share grows with the limit.
        let (limit, own) = (u128::from(limit.get()), u128::from(one.memory.limit().get().max(1)));
        let whole = limit * u128::from((one.memory.limit() + share(&one.memory)).get()) / own;
        enough = enough.max(Bytes::new(u64::try_from(whole).ok()?).checked_round_up(Bytes::mib(1))?);
    }
    (enough <= most && !enough.is_zero()).then_some(Hint::Limit { setting, enough, memory: capacity, owner, devices })
}

/// The engine's fixed share beside the arena's limit.
fn share(memory: &DeviceMemory) -> Bytes {
    memory.shared.as_ref().and_then(|shared| shared.budget.share()).unwrap_or(Bytes::ZERO)
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
