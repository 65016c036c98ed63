//! What memory did between two instants: `pjrt_arena_track_begin` and `pjrt_arena_track_end`.
//!
//! Any number of tracks may be open, from any threads; each watches every device that there was when it began. What
//! held the memory at the peak is found afterwards, by undoing the events since; if the history is too short for
//! that, the answer says so.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    api::control::donations,
    fork::{self, PerProcess},
    handlers::python::stacks,
    memory::{
        BlockState, Provenance, ScopeId, Scoped,
        history::{Holding, Past, holdings},
    },
    report::{
        snapshot::OriginKind,
        stacks::{Frame, StackId},
    },
    runtime::{
        client,
        device_memory::{DeviceMemory, origins::ORIGINS},
    },
    units::Bytes,
};

/// Tracks at once: a caller that never ends its tracks gets no more.
const MOST: usize = 1024;

/// How many holders are named.
const HOLDERS: usize = 20;

enum Track {
    Open(Vec<(Weak<DeviceMemory>, ScopeId)>),
    /// Ended, and not yet read in full.
    Ended(String),
}

struct Tracks {
    next: u64,
    all: BTreeMap<u64, Track>,
}

static TRACKS: PerProcess<Mutex<Tracks>> = PerProcess::empty();

impl Default for Tracks {
    fn default() -> Self {
        // Those of a child are others than its parent's.
        Self { next: u64::from(fork::generation()) << 32 | 1, all: BTreeMap::new() }
    }
}

/// In a child after fork: its parent's tracks are none of its own. Takes no lock.
pub fn leave_parents() {
    TRACKS.renew();
}

/// Begins a track; its number, or 0 if there are too many.
pub fn begin() -> u64 {
    let clients = client::guard_all();
    clients.iter().for_each(|client| client.allocator.drain());
    let memories = clients.iter().flat_map(|client| client.arenas());
    let mut tracks = TRACKS.lock();
    if tracks.all.len() >= MOST {
        tracks.all.retain(|_, track| matches!(track, Track::Open(_)));
        if tracks.all.len() >= MOST {
            return 0;
        }
    }
    let scopes = memories.map(|memory| (Arc::downgrade(memory), memory.open_scope())).collect();
    let number = tracks.next;
    tracks.next += 1;
    tracks.all.insert(number, Track::Open(scopes));
    number
}

/// Ends the track, if it is open, and says what it saw; the same again until [`forget`].
pub fn end(number: u64) -> String {
    let taken = TRACKS.lock().all.remove(&number);
    let text = match taken {
        None => {
            let inherited = number >> 32 != u64::from(fork::generation());
            let whose = if inherited { " in this process: a child after fork has none of its parent's" } else { "" };
            return json!({ "error": format!("no track has the number {number}{whose}") }).to_string();
        }
        Some(Track::Ended(text)) => text,
        Some(Track::Open(scopes)) => {
            client::guard_all().iter().for_each(|client| client.allocator.drain());
            let seen = scopes.iter().filter_map(|(memory, scope)| {
                let memory = memory.upgrade()?;
                Some(described(&memory, memory.end_scope(*scope)?))
            });
            Value::from(seen.collect::<Vec<_>>()).to_string()
        }
    };
    TRACKS.lock().all.insert(number, Track::Ended(text.clone()));
    text
}

/// Forgets what an ended track saw.
pub fn forget(number: u64) {
    TRACKS.lock().all.remove(&number);
}

fn described(memory: &DeviceMemory, mut scoped: Scoped) -> Value {
    memory.complete(&mut scoped.blocks);
    let past = scoped.after_peak.as_ref().map(|events| {
        let mut past = Past::now(&scoped.blocks, &[], Bytes::ZERO);
        events.iter().rev().for_each(|event| past.undo(event));
        past
    });
    let holders = past.as_ref().map(|past| {
        let in_use = past.blocks.values().filter(|block| block.state != BlockState::Retired);
        let scratch = Provenance { origin: OriginKind::Scratch.origin(), ..Provenance::default() };
        let scratch = (!scoped.scratch.is_zero()).then_some((scratch, scoped.scratch));
        named(&holdings(in_use.map(|block| (block.provenance, block.bytes)).chain(scratch)), None)
    });
    json!({
        "device": memory.name(),
        "start_bytes": scoped.start.get(),
        "end_bytes": scoped.end.get(),
        "peak_bytes": scoped.peak.get(),
        "peak_used_bytes": scoped.peak_used.get(),
        "peak_holders": holders,
        "peak_donations": past.map_or_else(|| json!([]), |past| donations::at_peak(memory, scoped.peak_run, &past)),
        "peak_holders_unknown": scoped.after_peak.is_none().then_some(
            "the history does not go back to the peak; PJRT_ARENA_HISTORY makes it longer"
        ),
    })
}

/// The frames of a stack, the innermost first.
fn frames(stack: StackId) -> Value {
    let frame = |frame: &Frame| json!({ "file": &*frame.file, "line": frame.line, "name": &*frame.name });
    stacks::with_stacks(|stacks| Value::from(stacks.frames_of(stack).map(frame).collect::<Vec<_>>()))
}

/// Holders as JSON, the largest first, the small ones together; with their oldest block's age, if `now` is said.
pub fn named(holders: &[Holding], now: Option<u64>) -> Value {
    let (large, small) = holders.split_at(holders.len().min(HOLDERS));
    let age = |holder: &Holding| {
        let (now, born) = (now?, holder.oldest.nanos()?);
        Some(now.saturating_sub(born) as f64 / 1e9)
    };
    let mut list: Vec<Value> = large
        .iter()
        .map(|holder| {
            let label = ORIGINS.label(holder.origin);
            let (bytes, blocks) = (holder.bytes.get(), holder.blocks);
            let mut told = json!({ "origin": label, "bytes": bytes, "blocks": blocks, "oldest_seconds": age(holder) });
            if ORIGINS.stack(holder.origin) != StackId::NONE {
                told["stack"] = frames(ORIGINS.stack(holder.origin));
            }
            told
        })
        .collect();
    if !small.is_empty() {
        let bytes: Bytes = small.iter().map(|holder| holder.bytes).sum();
        let blocks: u64 = small.iter().map(|holder| holder.blocks).sum();
        let label = format!("{} others", small.len());
        list.push(json!({ "origin": label, "bytes": bytes.get(), "blocks": blocks, "oldest_seconds": null }));
    }
    Value::from(list)
}
