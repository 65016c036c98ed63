//! Reports for C callers: a snapshot in a file, a summary, and what memory did between two instants.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    api::{
        control::track,
        text::{CText, text_functions},
    },
    config,
    memory::{
        Timestamp,
        history::{holdings, in_use},
    },
    runtime::{
        client,
        device_memory::DeviceMemory,
        report::{self, Drained},
    },
    units::Bytes,
};

text_functions! {
    /// Writes a snapshot of every device to the file `path`, in the format that its end names: `.html`, `.json`,
    /// `.perfetto.json` or `.pickle`. An empty text means that it was written, anything else is one sentence that says
    /// why not. The file is for the user alone (mode 0600); an existing regular file is replaced, a link is refused. It
    /// holds names, shapes, sizes and times, never the contents of an array. Acts at each call: 4 KiB is room for any
    /// sentence.
    pub fn pjrt_arena_snapshot(path: CText<'_>) -> String {
        path.to_os().map_or_else(|| "path is NULL; it must name a file".to_owned(), |path| save(Path::new(path)))
    }

    /// The page that shows a snapshot, with `snapshot` in it: the JSON of a `.json` file of [`pjrt_arena_snapshot`].
    /// Needs no client. What is no JSON object is an empty text.
    pub fn pjrt_arena_snapshot_page(snapshot: CText<'_>) -> String {
        let json = snapshot.to_string_lossy();
        serde_json::from_str::<serde::de::IgnoredAny>(&json)
            .map_or_else(|_| String::new(), |_| crate::report::snapshot::page(&json))
    }

    /// A summary of each device's memory, as JSON: an array with, for each device, bytes now, at the peak, allocated
    /// and freed in all; what is free and how it is divided; the largest holders by origin. Peaks are since the start
    /// or [`crate::api::control::pjrt_arena_reset_peak`], sums since the start.
    pub fn pjrt_arena_summary() -> String {
        summaries()
    }
}

fn save(path: &Path) -> String {
    // A wrong name is an error before anything is gathered.
    let saved = crate::report::snapshot::Format::of(path).and_then(|_| report::take(Drained::Yes).save(path));
    saved.err().map(|error| error.message).unwrap_or_default()
}

fn summaries() -> String {
    let clients = client::guard_all();
    clients.iter().for_each(|client| client.allocator.drain());
    let arenas = clients.iter().flat_map(|client| client.arenas_and_engine());
    let summaries = arenas.map(|(memory, engine_bytes)| summary(memory, engine_bytes));
    Value::from(summaries.collect::<Vec<_>>()).to_string()
}

fn summary(memory: &DeviceMemory, engine_bytes: i64) -> Value {
    let mut blocks = memory.blocks();
    let stats = memory.stats();
    memory.complete(&mut blocks);
    let holders = holdings(in_use(&blocks));
    let now = memory.records_history().then(|| Timestamp::now().nanos()).flatten();
    let row = |current: Bytes, peak: Bytes, allocated: Bytes, freed: Bytes| {
        let [current, peak, allocated, freed] = [current, peak, allocated, freed].map(Bytes::get);
        json!({ "current": current, "peak": peak, "allocated": allocated, "freed": freed })
    };
    let less = |total: Bytes, current: Bytes| total.saturating_sub(current);
    let fragmentation = match stats.free_bytes.get() {
        0 => 0.0,
        free => 1.0 - stats.largest_free_block.get() as f64 / free as f64,
    };
    json!({
        "device": memory.name(),
        "strategy": config::strategy_name(memory.strategy()),
        "limit_bytes": stats.limit.get(),
        "in_use": row(stats.bytes_in_use, stats.peak_bytes_in_use, stats.allocated_total, stats.freed_total),
        "pinned": row(
            stats.pinned_bytes,
            stats.peak_pinned_bytes,
            stats.pinned_total,
            less(stats.pinned_total, stats.pinned_bytes)
        ),
        "reserved": row(
            stats.reserved_bytes,
            stats.peak_reserved_bytes,
            stats.reserved_total,
            less(stats.reserved_total, stats.reserved_bytes)
        ),
        "pool": { "current": stats.pool_bytes.get(), "peak": stats.peak_pool_bytes.get() },
        "moved": {
            "bytes": stats.moved_bytes.get(),
            "blocks": stats.moves,
            "compactions": stats.compactions,
            "migrations": stats.migrations,
        },
        "spilled": memory.tier.as_ref().map(|tier| json!({
            "waiting_bytes": tier.waits().get(),
            "limit_bytes": tier.memory.stats().limit.get(),
            "out_bytes": (tier.record.out.bytes() + tier.record.clean.bytes()).get(),
            "clean_bytes": tier.record.clean.bytes().get(),
            "back_bytes": tier.record.back.bytes().get(),
        })),
        "peak_used_bytes": stats.peak_used_bytes.get(),
        "pending_bytes": stats.pending_bytes.get(),
        "slack_bytes": stats.slack_bytes.get(),
        "free_bytes": stats.free_bytes.get(),
        "largest_hole_bytes": stats.largest_free_block.get(),
        "fragmentation": fragmentation,
        "allocations": stats.allocations_total,
        "frees": stats.frees_total,
        "blocks": stats.live_blocks + stats.pending_blocks,
        "engine_bytes": engine_bytes,
        "holders": track::named(&holders, now),
    })
}

/// Begins to watch every device that there is; the number for [`pjrt_arena_track_end`], or 0 if 1024 tracks are open
/// already. Any number of tracks may overlap, from any threads.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_track_begin() -> u64 {
    std::panic::catch_unwind(track::begin).unwrap_or(0)
}

text_functions! {
    /// Ends a track and returns what it saw, as JSON: an array with, for each device, bytes in use when it began, when
    /// it ended and at the peak between, what held them at the peak, and which arguments, if they were donated, would
    /// have lowered it; or `peak_holders_unknown`, why that is not known. The first call ends it; the text stays until
    /// a call had room for all of it. An unknown number is
    /// `{"error": ...}`.
    pub fn pjrt_arena_track_end(track: u64) with room -> String {
        let text = track::end(track);
        if text.len() < room {
            track::forget(track);
        }
        text
    }
}
