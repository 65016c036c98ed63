//! The JSON of a snapshot: schema `pjrt-arena.snapshot`, version 1.
//!
//! Tables of many rows are objects of columns, arrays of one length, so that 200,000 events stay small and are read
//! fast. Numbers stay below 2^53. Readers pass over keys that they do not know; a key that goes or changes its meaning
//! raises the version.

use serde::Serialize;

use crate::{
    memory::{
        BlockState, Stats, Timestamp,
        history::{Event, EventKind, Events, FailedRequest, block_number},
    },
    report::{
        snapshot::model::{Device, Origin, Snapshot, unix_nanos},
        stacks::{StackId, Stacks},
    },
};

/// 2^53 - 1: what JSON's readers keep exact.
const MOST: u64 = (1 << 53) - 1;

#[derive(Serialize)]
struct Root<'a> {
    schema: &'static str,
    version: u32,
    library: &'a str,
    process: u32,
    command: &'a str,
    /// As a text, because it is beyond 2^53.
    written_unix_ns: String,
    began_unix_ns: String,
    now: u64,
    origins: Origins<'a>,
    frames: Frames<'a>,
    stacks: Calls,
    pin_reasons: &'a [&'static str],
    devices: Vec<OneDevice<'a>>,
}

#[derive(Default, Serialize)]
struct Origins<'a> {
    kind: Vec<u8>,
    program: Vec<&'a str>,
    result: Vec<i64>,
    shape: Vec<&'a str>,
    label: Vec<String>,
    stack: Vec<i64>,
}

#[derive(Default, Serialize)]
struct Frames<'a> {
    file: Vec<&'a str>,
    line: Vec<u32>,
    name: Vec<&'a str>,
}

#[derive(Default, Serialize)]
struct Calls {
    caller: Vec<i64>,
    frame: Vec<u32>,
}

#[derive(Serialize)]
struct OneDevice<'a> {
    name: &'a str,
    strategy: &'a str,
    compaction: bool,
    limit: u64,
    stats: Numbers,
    regions: Regions,
    blocks: Blocks,
    events: EventColumns,
    events_lost: u64,
    failures: Vec<OneFailure<'a>>,
}

#[derive(Serialize)]
struct Numbers {
    in_use: u64,
    peak_in_use: u64,
    pending: u64,
    slack: u64,
    reserved: u64,
    peak_reserved: u64,
    free: u64,
    pool: u64,
    peak_pool: u64,
    largest_hole: u64,
    pinned: u64,
    peak_pinned: u64,
    allocated_total: u64,
    freed_total: u64,
    allocations: u64,
    frees: u64,
    compactions: u64,
    moved: u64,
    engine: u64,
}

#[derive(Default, Serialize)]
struct Regions {
    address: Vec<u64>,
    bytes: Vec<u64>,
}

#[derive(Default, Serialize)]
struct Blocks {
    id: Vec<u64>,
    address: Vec<u64>,
    bytes: Vec<u64>,
    requested: Vec<u64>,
    state: Vec<u8>,
    origin: Vec<u32>,
    step: Vec<u32>,
    born: Vec<i64>,
    pin: Vec<u8>,
}

#[derive(Default, Serialize)]
struct EventColumns {
    time: Vec<u64>,
    kind: Vec<u8>,
    block: Vec<u64>,
    address: Vec<u64>,
    bytes: Vec<u64>,
    origin: Vec<u32>,
    step: Vec<u32>,
    other: Vec<i64>,
    /// The state of the block before the event, as in `blocks`: what undoing brings back.
    before: Vec<u8>,
}

#[derive(Serialize)]
struct OneFailure<'a> {
    bytes: u64,
    origin: u32,
    program: &'a str,
    in_use: u64,
    free: u64,
    pending: u64,
    pool: u64,
    limit: u64,
    largest_hole: u64,
    text: &'a str,
}

/// The number of a block's state.
fn state(state: BlockState) -> u8 {
    match state {
        BlockState::Live => 0,
        BlockState::Pinned => 1,
        BlockState::Retired => 2,
    }
}

/// The number of what is kept for scratch, which is no block.
const SCRATCH: u8 = 3;

fn born(moment: Timestamp) -> i64 {
    moment.nanos().map_or(-1, |nanos| nanos.min(MOST) as i64)
}

/// The snapshot as JSON, in UTF-8. O(blocks and events).
pub(super) fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let root = Root {
        schema: "pjrt-arena.snapshot",
        version: 1,
        library: snapshot.library,
        process: snapshot.process,
        command: &snapshot.command,
        written_unix_ns: unix_nanos(snapshot.written).to_string(),
        began_unix_ns: unix_nanos(snapshot.began).to_string(),
        now: snapshot.now,
        origins: origins(&snapshot.origins),
        frames: frames(&snapshot.stacks),
        stacks: calls(&snapshot.stacks),
        pin_reasons: &snapshot.pin_reasons,
        devices: snapshot.devices.iter().map(|device| one_device(device, &snapshot.origins)).collect(),
    };
    // No map has a key that is not a text, and a vector takes every byte.
    serde_json::to_vec(&root).unwrap_or_default()
}

fn origins(rows: &[Origin]) -> Origins<'_> {
    let mut columns = Origins::default();
    for row in rows {
        columns.kind.push(row.kind as u8);
        columns.program.push(&row.program);
        columns.result.push(row.result.map_or(-1, |result| result as i64));
        columns.shape.push(&row.shape);
        columns.label.push(row.to_string());
        columns.stack.push(stack(row.stack()));
    }
    columns
}

/// The row of a stack, or -1.
fn stack(stack: StackId) -> i64 {
    stack.row().map_or(-1, |row| row as i64)
}

fn frames(stacks: &Stacks) -> Frames<'_> {
    let mut columns = Frames::default();
    for frame in &stacks.frames {
        columns.file.push(&frame.file);
        columns.line.push(frame.line);
        columns.name.push(&frame.name);
    }
    columns
}

fn calls(stacks: &Stacks) -> Calls {
    let mut columns = Calls::default();
    for call in &stacks.calls {
        columns.caller.push(stack(call.caller));
        columns.frame.push(call.frame);
    }
    columns
}

fn one_device<'a>(device: &'a Device, origins: &'a [Origin]) -> OneDevice<'a> {
    let mut regions = Regions::default();
    for region in &device.regions {
        regions.address.push(region.address.get());
        regions.bytes.push(region.bytes.get());
    }
    OneDevice {
        name: &device.name,
        strategy: device.strategy,
        compaction: device.compaction,
        limit: device.stats.limit.get(),
        stats: numbers(&device.stats, device.engine.get()),
        regions,
        blocks: blocks(device),
        events: events(&device.events),
        events_lost: device.events.lost,
        failures: device.events.failures.iter().map(|failure| one_failure(failure, origins)).collect(),
    }
}

fn numbers(stats: &Stats, engine: u64) -> Numbers {
    Numbers {
        in_use: stats.bytes_in_use.get(),
        peak_in_use: stats.peak_bytes_in_use.get(),
        pending: stats.pending_bytes.get(),
        slack: stats.slack_bytes.get(),
        reserved: stats.reserved_bytes.get(),
        peak_reserved: stats.peak_reserved_bytes.get(),
        free: stats.free_bytes.get(),
        pool: stats.pool_bytes.get(),
        peak_pool: stats.peak_pool_bytes.get(),
        largest_hole: stats.largest_free_block.get(),
        pinned: stats.pinned_bytes.get(),
        peak_pinned: stats.peak_pinned_bytes.get(),
        allocated_total: stats.allocated_total.get(),
        freed_total: stats.freed_total.get(),
        allocations: stats.allocations_total,
        frees: stats.frees_total,
        compactions: stats.compactions,
        moved: stats.moved_bytes.get(),
        engine,
    }
}

fn blocks(device: &Device) -> Blocks {
    let mut columns = Blocks::default();
    let mut row = |address: u64, numbers: [u64; 3], state, origin, step, born, pin| {
        let [id, bytes, requested] = numbers;
        columns.id.push(id);
        columns.address.push(address);
        columns.bytes.push(bytes);
        columns.requested.push(requested);
        columns.state.push(state);
        columns.origin.push(origin);
        columns.step.push(step);
        columns.born.push(born);
        columns.pin.push(pin);
    };
    // Scratch lies at the lowest address of its device.
    if let Some(scratch) = device.scratch {
        let bytes = scratch.bytes.get();
        let origin = super::OriginKind::Scratch as u32;
        row(scratch.address.get(), [MOST, bytes, bytes], SCRATCH, origin, 0, -1, 0);
    }
    for info in &device.blocks {
        let (block, provenance) = (info.block, info.provenance);
        let numbers = [block_number(block.id), info.held.get(), block.size.get()];
        let (origin, step, born) = (provenance.origin.row(), provenance.run.step, born(provenance.run.at));
        row(block.address.get(), numbers, state(info.state), origin, step, born, info.pin.0);
    }
    columns
}

fn events(events: &Events) -> EventColumns {
    let mut columns = EventColumns::default();
    for event in &events.list {
        columns.time.push(event.time().nanos().unwrap_or(0).min(MOST));
        columns.kind.push(event.kind() as u8);
        columns.block.push(event.block);
        columns.address.push(event.address.get());
        columns.bytes.push(event.bytes.get());
        columns.origin.push(event.origin.row());
        columns.step.push(event.step);
        columns.other.push(other(event, events.failures_forgotten));
        columns.before.push(state(event.before()));
    }
    columns
}

fn other(event: &Event, failures_forgotten: u64) -> i64 {
    match event.kind() {
        EventKind::Free => born(Timestamp::from_nanos(event.other)),
        // A failure that was forgotten has no row.
        EventKind::OutOfMemory => event.other.checked_sub(failures_forgotten).map_or(-1, |row| row as i64),
        _ => event.other.min(MOST) as i64,
    }
}

fn one_failure<'a>(failure: &'a FailedRequest, origins: &'a [Origin]) -> OneFailure<'a> {
    let numbers = &failure.numbers;
    let origin = failure.provenance.origin.row();
    OneFailure {
        bytes: numbers.requested.get(),
        origin,
        program: origins.get(origin as usize).map_or("", |row| &row.program),
        in_use: numbers.in_use.get(),
        free: numbers.free.get(),
        pending: numbers.pending.get(),
        pool: numbers.pool().get(),
        limit: numbers.limit.get(),
        largest_hole: numbers.largest_hole.get(),
        text: &failure.text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::testing, *};

    #[test]
    fn a_small_arena_as_json() {
        let value: Value = serde_json::from_slice(&encode(&testing::snapshot())).expect("JSON");
        testing::assert_golden(value);
    }

    #[test]
    fn columns_are_of_one_length() {
        let value: Value = serde_json::from_slice(&encode(&testing::snapshot())).expect("JSON");
        let device = &value["devices"][0];
        for (name, table) in
            [("origins", &value["origins"]), ("blocks", &device["blocks"]), ("events", &device["events"])]
        {
            let lengths: Vec<_> =
                table.as_object().expect(name).values().map(|column| column.as_array().map(Vec::len)).collect();
            assert!(
                lengths.len() > 4 && lengths.iter().all(|length| length.is_some() && *length == lengths[0]),
                "{name}"
            );
        }
        assert_ne!(device["events"]["time"], json!([]));
    }
}
