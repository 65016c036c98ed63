//! A small arena with something of everything, and what the schema makes of it.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::{
    device::fake::FakeBacking,
    memory::{
        Arena, BlockId, Execution, Goal, OriginId, PinReason, Provenance, Request, Strategy, Timestamp,
        compaction::Costs,
    },
    report::{
        snapshot::{Device, Origin, OriginKind, Snapshot},
        stacks::{Frame, StackId, Stacks},
    },
    units::Bytes,
};

fn stacks() -> (Stacks, StackId) {
    let mut stacks = Stacks::default();
    let mut stack = StackId::NONE;
    for (line, name) in [(40, "<module>"), (12, "load")] {
        stack = stacks.add(stack, Frame { file: "/home/me/train.py".into(), line, name: name.into() });
    }
    (stacks, stack)
}

fn origins() -> Vec<Origin> {
    let (stacks, stack) = stacks();
    let made_by = stacks.place(stack).map(|place| (stack, place.into()));
    let mut rows: Vec<Origin> = OriginKind::ALL.into_iter().map(Origin::plain).collect();
    let result = |result, shape: &str| Origin {
        kind: OriginKind::Result,
        program: "jit_step".into(),
        result: Some(result),
        shape: shape.into(),
        made_by: None,
    };
    rows.extend([
        result(0, "f32[]"),
        result(1, "f32[1024]"),
        Origin { shape: "bf16[4,4]".into(), made_by, ..Origin::plain(OriginKind::Host) },
    ]);
    rows
}

/// Five blocks of 4 MiB and more came; one went, one moved into its place, one is pinned, one pends; one found no room.
pub(super) fn snapshot() -> Snapshot {
    let device = FakeBacking::new(Bytes::gib(1), Bytes::kib(4));
    let mut arena = Arena::new("fake:0".into(), Strategy::Preallocate, Bytes::mib(64), Box::new(device))
        .unwrap_or_else(|error| panic!("{error}"));
    arena.record_history(1000);
    let take = |origin: u32, step: u32, size: Bytes| {
        let provenance = Provenance { origin: OriginId::new(origin), run: Execution { step, at: Timestamp::UNKNOWN } };
        arena.allocate(Request { size, provenance }).unwrap_or_else(|oom| panic!("{oom}")).id
    };
    let gone = take(9, 0, Bytes::mib(4));
    let moved = take(8, 1, Bytes::mib(4));
    let pinned = take(7, 2, Bytes::mib(8) + Bytes::new(1));
    let pending = take(8, 3, Bytes::mib(4));
    let did = |outcome: crate::error::Result<()>| outcome.unwrap_or_else(|error| panic!("{error}"));
    did(arena.pin_because(pinned, PinReason(2)));
    did(arena.retire(pending));
    did(arena.free(gone));
    let movable = |id: BlockId| id == moved;
    let mut compaction = arena.plan(Goal::Pack, &Costs::COPY, &movable).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(compaction.moves().len(), 1);
    did(compaction.commit());
    drop(compaction);
    let size = Bytes::mib(60);
    let shortage = arena.allocate(size).expect_err("too much");
    let provenance = Provenance { origin: OriginId::new(8), run: Execution { step: 4, at: Timestamp::UNKNOWN } };
    arena.note_failure(shortage, provenance, "Out of memory".to_owned());
    let survey = arena.survey();
    let mut blocks = survey.blocks;
    blocks.sort_by_key(|info| info.block.address);
    Snapshot {
        library: "0.1.0",
        process: 4711,
        command: "train.py".to_owned(),
        written: UNIX_EPOCH + Duration::from_secs(1_790_000_001),
        began: UNIX_EPOCH + Duration::from_secs(1_790_000_000),
        now: survey.at.nanos().unwrap_or(0),
        origins: origins(),
        stacks: stacks().0,
        pin_reasons: vec!["", "one", "two"],
        devices: vec![Device {
            name: arena.name().to_owned(),
            strategy: "preallocate",
            compaction: true,
            stats: survey.stats,
            engine: Bytes::new(5),
            regions: survey.regions,
            blocks,
            scratch: survey.scratch,
            events: survey.events,
        }],
    }
}

/// [`snapshot`] in the schema's own words, but for addresses, times and numbers that depend on them.
pub(super) fn assert_golden(mut value: Value) {
    let base = value["devices"][0]["regions"]["address"][0].as_u64().expect("an address");
    let now = value["now"].as_u64().expect("a time");
    let device = &mut value["devices"][0];
    let times: Vec<u64> = numbers(&device["events"]["time"]);
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]) && times.iter().all(|&time| 0 < time && time <= now));
    let born: Vec<u64> = numbers(&device["blocks"]["born"]);
    assert!(born.iter().all(|born| times.contains(born)), "each was born at an event");
    let freed = &mut device["events"]["other"][7];
    assert_eq!(*freed, times[1], "a free says when its block was born");
    *freed = json!("born");
    let relative = |column: &mut Value| {
        for address in column.as_array_mut().expect("a column") {
            if let Some(far) = address.as_u64().and_then(|address| address.checked_sub(base)) {
                *address = json!(["base", far >> 20]);
            }
        }
    };
    relative(&mut device["regions"]["address"]);
    relative(&mut device["blocks"]["address"]);
    relative(&mut device["events"]["address"]);
    relative(&mut device["events"]["other"]);
    let lasted = device["events"]["step"][9].take();
    assert!(lasted.as_u64().is_some_and(|lasted| lasted < 1_000_000_000), "{lasted}");
    device["blocks"]["born"] = json!([]);
    device["events"]["time"] = json!([]);
    value["now"] = json!(0);
    assert_eq!(value, golden());
}

fn numbers(column: &Value) -> Vec<u64> {
    column.as_array().expect("a column").iter().map(|number| number.as_u64().expect("a number")).collect()
}

fn golden() -> Value {
    let mib = |count: u64| count << 20;
    let at = |mib: u64| json!(["base", mib]);
    json!({
        "schema": "pjrt-arena.snapshot", "version": 1, "library": "0.1.0", "process": 4711, "command": "train.py",
        "written_unix_ns": "1790000001000000000", "began_unix_ns": "1790000000000000000", "now": 0,
        "origins": {
            "kind": [0, 1, 2, 3, 4, 5, 6, 1, 1, 2],
            "program": ["", "", "", "", "", "", "", "jit_step", "jit_step", ""],
            "result": [-1, -1, -1, -1, -1, -1, -1, 0, 1, -1],
            "shape": ["", "", "", "", "", "", "", "f32[]", "f32[1024]", "bf16[4,4]"],
            "label": [
                "unknown", "a program's result", "from host", "copy", "transfer", "programs' scratch", "uninitialized",
                "jit_step output 0 f32[]", "jit_step output 1 f32[1024]",
                "from host bf16[4,4] at train.py:12 (load)",
            ],
            "stack": [-1, -1, -1, -1, -1, -1, -1, -1, -1, 1],
        },
        "frames": {
            "file": ["/home/me/train.py", "/home/me/train.py"],
            "line": [40, 12],
            "name": ["<module>", "load"],
        },
        "stacks": { "caller": [-1, 0], "frame": [0, 1] },
        "pin_reasons": ["", "one", "two"],
        "devices": [{
            "name": "fake:0", "strategy": "preallocate", "compaction": true, "limit": mib(64),
            "stats": {
                "in_use": mib(12) + 1, "peak_in_use": mib(20) + 1, "pending": mib(4), "slack": 255, "reserved": 0,
                "peak_reserved": 0, "free": mib(48) - 256, "pool": mib(64), "peak_pool": mib(64),
                "largest_hole": mib(44) - 256, "pinned": mib(8) + 1, "peak_pinned": mib(8) + 1,
                "allocated_total": mib(20) + 1, "freed_total": mib(4), "allocations": 4, "frees": 1, "compactions": 1,
                "moved": mib(4), "engine": 5,
            },
            "regions": { "address": [at(0)], "bytes": [mib(64)] },
            "blocks": {
                "id": [(1u64 << 32) + 1, (1u64 << 32) + 2, (1u64 << 32) + 3],
                "address": [at(0), at(8), at(16)],
                "bytes": [mib(4), mib(8) + 256, mib(4)],
                "requested": [mib(4), mib(8) + 1, mib(4)],
                "state": [0, 1, 2],
                "origin": [8, 7, 8],
                "step": [1, 2, 3],
                "born": [],
                "pin": [0, 2, 0],
            },
            "events": {
                "time": [],
                "kind": [6, 0, 0, 0, 0, 3, 2, 1, 5, 9, 8],
                "block": [
                    0, 1u64 << 32, (1u64 << 32) + 1, (1u64 << 32) + 2, (1u64 << 32) + 3, (1u64 << 32) + 2,
                    (1u64 << 32) + 3, 1u64 << 32, (1u64 << 32) + 1, 1, 0,
                ],
                "address": [at(0), at(0), at(4), at(8), at(16), at(8), at(16), at(0), at(0), 0, 0],
                "bytes": [
                    mib(64), mib(4), mib(4), mib(8) + 256, mib(4), mib(8) + 256, mib(4), mib(4), mib(4), mib(4), mib(60),
                ],
                "origin": [0, 9, 8, 7, 8, 7, 8, 9, 8, 0, 8],
                "step": [0, 0, 1, 2, 3, 2, 3, 0, 1, null, 4],
                "other": [0, mib(4), mib(4), mib(8) + 1, mib(4), 2, 0, "born", at(4), mib(44) - 256, 0],
                "before": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            },
            "events_lost": 0,
            "failures": [{
                "bytes": mib(60), "origin": 8, "program": "jit_step", "in_use": mib(12) + 1, "free": mib(48) - 256,
                "pending": mib(4), "pool": mib(64), "limit": mib(64), "largest_hole": mib(44) - 256,
                "text": "Out of memory",
            }],
        }],
    })
}
