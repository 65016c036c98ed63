//! Functions that act on the arenas, or show them.

use std::{collections::BTreeSet, ffi::CStr, sync::Arc, time::Instant};

use serde_json::{Map, Value, json};

use crate::{
    api::text::{CText, text_functions},
    engine::scratch,
    error::{Code, Error, Result},
    fork,
    memory::{
        BlockState, Pinned,
        history::{holdings, in_use},
        next_use::UseKey,
        tiles::{self, Element},
    },
    report::{MapBlock, MapKind, Screen, map},
    runtime::{
        allocator::{
            allocate::clear_peaks,
            compaction,
            sleep::{self, Asleep, GivenBack},
        },
        client::{self, Client},
        device_memory::{DeviceMemory, Tier, origins::ORIGINS, spill_record::Used},
    },
    sys,
    units::Bytes,
};

/// The results of `each` for each device's memory, over all clients; after the devices of a client, for the host's
/// memory that was pinned for them.
fn of_all<T>(each: impl Fn(&Client, &DeviceMemory) -> T) -> Vec<T> {
    let guards = client::guard_all();
    let arenas = guards.iter().flat_map(|client| client.arenas().map(move |arena| (client, arena)));
    arenas.map(|(client, arena)| each(client, arena)).collect()
}

/// As [`of_all`], for the memories of this name.
///
/// # Errors
/// NOT_FOUND if there is none.
fn of_device<T>(device: CText<'_>, each: impl Fn(&Client, &DeviceMemory) -> T) -> Result<Vec<T>> {
    let name = device.to_string_lossy();
    let done = of_all(|client, memory| (memory.name() == name).then(|| each(client, memory)));
    let done: Vec<T> = done.into_iter().flatten().collect();
    if done.is_empty() {
        return Err(no_device(&name, &of_all(|_, memory| memory.name().to_owned())));
    }
    Ok(done)
}

fn no_device(name: &str, names: &[String]) -> Error {
    let there = match (names, fork::generation()) {
        ([], 0) => "none, as no client is open".to_owned(),
        ([], _) => "none, as this process has opened no client; its parent's are the parent's alone".to_owned(),
        _ => names.join(", "),
    };
    Error::new(Code::NotFound, format!("there is no device {name:?}; there are: {there}"))
}

fn refused(error: Error) -> Value {
    json!({ "error": error.message })
}

text_functions! {
    /// Moves arrays on every device until free memory is in as few holes as possible; an array for each device, as
    /// JSON: buffers and bytes moved, seconds, the largest hole before and after, what could not move and why.
    ///
    /// It acts at each call, so the caller passes room for the text at once: 1 KiB for each device is plenty.
    pub fn pjrt_arena_compact() -> String {
        Value::from(of_all(compacted)).to_string()
    }

    /// As [`pjrt_arena_compact`], on the devices of this name; or an object with `error`, one sentence, if there is
    /// none.
    pub fn pjrt_arena_compact_device(device: CText<'_>) -> String {
        of_device(device, compacted).map(Value::from).unwrap_or_else(refused).to_string()
    }

    /// Gives memory that no array uses back to the system, on every device: empty regions, and the pages of holes. An
    /// array for each device, as JSON: bytes and regions given back, seconds. One more, `scratch`, where the engine's
    /// scratch gave something back. Acts at each call, as [`pjrt_arena_compact`] does.
    pub fn pjrt_arena_trim() -> String {
        trim()
    }

    /// As [`pjrt_arena_trim`], on the devices of this name, and without the engine's scratch; or an object with
    /// `error`, one sentence, if there is none.
    pub fn pjrt_arena_trim_device(device: CText<'_>) -> String {
        of_device(device, trimmed).map(Value::from).unwrap_or_else(refused).to_string()
    }

    /// As [`crate::api::control::pjrt_arena_reset_peak`], on the devices of this name. An empty text, or one sentence
    /// if there is none.
    pub fn pjrt_arena_reset_peak_device(device: CText<'_>) -> String {
        let cleared = of_device(device, |client, memory| clear_peaks(&client.allocator, memory));
        cleared.err().map(|error| error.message).unwrap_or_default()
    }

    /// Spills all arrays that no outsider holds, after the programs under way have ended, and gives the memory back to
    /// the system; on the device of this name, or on all for NULL. An array for each device, as JSON: bytes of arrays
    /// spilled, bytes and regions given back, what stays in use and of whom, how many programs and transfers are still
    /// under way, seconds; or an object with `error`, one sentence. Acts at each call, as [`pjrt_arena_compact`] does.
    pub fn pjrt_arena_sleep(device: CText<'_>) -> String {
        on_devices(device, asleep).unwrap_or_else(refused).to_string()
    }

    /// Brings spilled arrays back while there is room, what is used first at the beginning; otherwise as
    /// [`pjrt_arena_sleep`]. An array for each device: bytes that came back, bytes that still wait, seconds, and
    /// `error`, the first one, if an array did not come for another reason than that there was no room.
    pub fn pjrt_arena_wake(device: CText<'_>) -> String {
        on_devices(device, awake).unwrap_or_else(refused).to_string()
    }

    /// The last launches on the device of this name, or on the first that spills for NULL, with their arguments and
    /// results: JSON that `arena-replay --spill` reads. An object with `error`, one sentence, where nothing spills.
    pub fn pjrt_arena_launches(device: CText<'_>) -> String {
        launches(device).unwrap_or_else(refused).to_string()
    }

    /// A map of every device's memory in characters, `columns` wide and `rows` high for each.
    pub fn pjrt_arena_map(columns: usize, rows: usize) -> String {
        of_all(|client, memory| drawn(client, memory, Screen { columns, rows })).join("\n")
    }

    /// As [`pjrt_arena_map`], of the devices of this name; an empty text if there is none.
    pub fn pjrt_arena_map_device(device: CText<'_>, columns: usize, rows: usize) -> String {
        let drawn = of_device(device, |client, memory| drawn(client, memory, Screen { columns, rows }));
        drawn.unwrap_or_default().join("\n")
    }

    /// What an array of `rank` dimensions takes on a TPU, as JSON: `bytes` in the order of dimensions given,
    /// `dense_bytes` of its elements alone, `layout` as XLA writes tiles, and `smallest_bytes` and `smallest_layout` in
    /// the best order; or `error`, one sentence. `element_type` is XLA's name, such as `bf16`. `dims` has `rank`
    /// numbers, and may be NULL for none. Needs no client. The rule and what it leaves out: [`crate::memory::tiles`].
    pub fn pjrt_arena_tpu_footprint(element_type: CText<'_>, dims: *const i64, rank: usize) -> String {
        // SAFETY: the dims are NULL or `rank` numbers, as this function asks.
        let dims = (!dims.is_null() || rank == 0).then(|| unsafe { sys::slice(dims, rank) });
        let answer = footprint(element_type.get(), dims, rank);
        answer.unwrap_or_else(refused).to_string()
    }
}

fn compacted(client: &Client, memory: &DeviceMemory) -> Value {
    client.allocator.drain();
    let report = compaction::compact(memory);
    let sum = |count: fn(&Pinned) -> u64| report.pinned.iter().map(count).sum::<u64>();
    let why: Map<String, Value> =
        report.pinned.iter().map(|pinned| (pinned.why.to_owned(), json!(pinned.blocks))).collect();
    json!({
        "device": memory.name(),
        "buffers_moved": report.buffers,
        "bytes_moved": report.bytes.get(),
        "seconds": report.time.as_secs_f64(),
        "largest_free_before": report.hole_before.get(),
        "largest_free_after": report.hole_after.get(),
        "pinned_buffers": sum(|pinned| pinned.blocks),
        "pinned_bytes": sum(|pinned| pinned.bytes.get()),
        "pinned_why": why,
    })
}

fn trim() -> String {
    let mut answers = of_all(trimmed);
    let start = Instant::now();
    let scratch = scratch::discard_holes();
    if !scratch.is_zero() {
        answers.push(returned("scratch", scratch, 0, start));
    }
    Value::from(answers).to_string()
}

fn trimmed(client: &Client, memory: &DeviceMemory) -> Value {
    let start = Instant::now();
    let GivenBack { bytes, regions } = sleep::give_back(&client.allocator, memory);
    returned(memory.name(), bytes, regions, start)
}

/// The answers of `each` for all devices, or for the one of this name.
///
/// # Errors
/// The first of `each`, which acts on the others all the same; NOT_FOUND if there is no such device.
fn on_devices(device: CText<'_>, each: impl Fn(&Client, &Arc<DeviceMemory>) -> Result<Value>) -> Result<Value> {
    let guards = client::guard_all();
    let memories = || guards.iter().flat_map(|client| client.allocator.memories.iter().map(move |one| (client, one)));
    let chosen: Vec<_> = match device.get() {
        Some(_) => {
            let name = device.to_string_lossy();
            let chosen: Vec<_> = memories().filter(|(_, memory)| memory.name() == name).collect();
            if chosen.is_empty() {
                let names: Vec<_> = memories().map(|(_, memory)| memory.name().to_owned()).collect();
                return Err(no_device(&name, &names));
            }
            chosen
        }
        None => memories().collect(),
    };
    let told: Vec<_> = chosen.into_iter().map(|(client, memory)| each(client, memory)).collect();
    told.into_iter().collect::<Result<Vec<_>>>().map(Value::from)
}

fn launches(device: CText<'_>) -> Result<Value> {
    let name = |key: UseKey| match key {
        UseKey::Made(origin, step) => format!("{}@{step}", origin.row()),
        UseKey::Other(number) => format!("#{number}"),
    };
    let array = |used: &Used| (name(used.key), used.bytes.get(), used.donated);
    let all = on_devices(device, |_, memory| {
        let Some(tier) = &memory.tier else { return Ok(Value::Null) };
        let alive = memory.residents.all().into_iter().chain(tier.waiting.all());
        let alive: BTreeSet<String> = alive.filter_map(|resident| resident.use_key()).map(name).collect();
        let launches = tier.record.launches();
        let launches = launches.iter().map(|launch| {
            let results = launch.results.iter().map(|used| (name(used.key), used.bytes.get()));
            json!({
                "step": launch.step,
                "program": &*launch.program,
                "arguments": launch.arguments.iter().map(array).collect::<Vec<_>>(),
                "results": results.collect::<Vec<_>>(),
            })
        });
        let launches: Vec<Value> = launches.collect();
        Ok(json!({ "limit": memory.stats().limit.get(), "alive": alive, "launches": launches }))
    })?;
    let first = all.as_array().and_then(|all| all.iter().find(|one| !one.is_null()).cloned());
    first.ok_or_else(|| {
        Error::new(Code::FailedPrecondition, "no device spills: launches are kept with PJRT_ARENA_SPILL")
    })
}

fn asleep(client: &Client, memory: &Arc<DeviceMemory>) -> Result<Value> {
    let start = Instant::now();
    let Asleep { spilled, given, under_way } = sleep::sleep(&client.allocator, memory)?;
    let scratch = scratch::discard_holes();
    let mut blocks = memory.blocks();
    memory.complete(&mut blocks);
    let holders = holdings(in_use(&blocks));
    let holders: Vec<Value> = holders
        .iter()
        .map(|sum| json!({ "origin": ORIGINS.label(sum.origin), "bytes": sum.bytes.get(), "blocks": sum.blocks }))
        .collect();
    Ok(json!({
        "device": memory.name(),
        "bytes_spilled": spilled.get(),
        "bytes_returned": (given.bytes + scratch).get(),
        "regions_returned": given.regions,
        "bytes_in_use": memory.stats().bytes_in_use.get(),
        "holders": holders,
        "under_way": under_way,
        "seconds": start.elapsed().as_secs_f64(),
    }))
}

fn awake(client: &Client, memory: &Arc<DeviceMemory>) -> Result<Value> {
    let start = Instant::now();
    let (came, failed) = sleep::wake(&client.allocator, memory);
    let waits = memory.tier.as_ref().map_or(Bytes::ZERO, Tier::waits);
    let mut told = json!({
        "device": memory.name(),
        "bytes_brought_back": came.get(),
        "bytes_waiting": waits.get(),
        "seconds": start.elapsed().as_secs_f64(),
    });
    if let Some(error) = failed {
        told["error"] = Value::from(error.message);
    }
    Ok(told)
}

fn returned(device: &str, bytes: Bytes, regions: usize, start: Instant) -> Value {
    json!({
        "device": device,
        "bytes_returned": bytes.get(),
        "regions_returned": regions,
        "seconds": start.elapsed().as_secs_f64(),
    })
}

fn drawn(client: &Client, memory: &DeviceMemory, screen: Screen) -> String {
    client.allocator.drain();
    let kind = |state| match state {
        BlockState::Live => MapKind::Live,
        BlockState::Pinned => MapKind::Pinned,
        BlockState::Retired => MapKind::Pending,
    };
    let blocks = memory.blocks();
    let blocks =
        blocks.iter().map(|info| MapBlock { address: info.block.address, held: info.held, kind: kind(info.state) });
    let scratch =
        memory.scratch().map(|kept| MapBlock { address: kept.address, held: kept.bytes, kind: MapKind::Scratch });
    let blocks: Vec<MapBlock> = blocks.chain(scratch).collect();
    map(memory.name(), &memory.regions(), &blocks, screen)
}

/// What an array takes whose type and dimensions, of which there are `rank`, a C caller names.
fn footprint(element_type: Option<&CStr>, dims: Option<&[i64]>, rank: usize) -> Result<Value> {
    let refuse = |why: String| Err(Error::invalid_argument(why));
    let Some(name) = element_type else {
        return refuse("element_type is NULL; it must be XLA's name of a type, such as bf16".to_owned());
    };
    let Ok(name) = name.to_str() else { return refuse(format!("{name:?} is not the name of a type")) };
    let Some(dims) = dims else { return refuse(format!("dims is NULL, and rank is {rank}")) };
    let element = Element::named(name)?;
    if let Some(dim) = dims.iter().find(|&&dim| dim < 0) {
        return Err(Error::invalid_argument(format!("a dimension of {name}{dims:?} is {dim}; allowed: 0 and more")));
    }
    let taken = tiles::footprint(element, dims).zip(tiles::smallest(element, dims));
    let (given, (least, order)) =
        taken.ok_or_else(|| Error::invalid_argument(format!("{name}{dims:?} takes more than 2^64 - 1 bytes")))?;
    let order: Vec<String> = order.iter().map(ToString::to_string).collect();
    Ok(json!({
        "bytes": given.bytes.get(),
        "dense_bytes": given.dense.get(),
        "layout": given.tiles.to_string(),
        "smallest_bytes": least.bytes.get(),
        "smallest_layout": format!("{{{}:{}}}", order.join(","), least.tiles),
    }))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// What the exported function says, with a buffer of `capacity` bytes and what it returned.
    fn told(name: Option<&CStr>, dims: Option<&[i64]>, rank: usize, capacity: usize) -> (String, usize) {
        let mut buffer = vec![b'?'; capacity];
        let dims = dims.map_or(ptr::null(), <[i64]>::as_ptr);
        // SAFETY: each pointer is NULL or as the function asks; `rank` is never more than the dims there are.
        let length = unsafe { pjrt_arena_tpu_footprint(name.into(), dims, rank, buffer.as_mut_ptr().cast(), capacity) };
        let text = CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned();
        (text, length)
    }

    #[test]
    fn a_footprint_through_c() {
        let (text, length) = told(Some(c"bf16"), Some(&[16, 1280, 40]), 3, 4096);
        assert_eq!(length, text.len());
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({
                "bytes": 5_242_880, "dense_bytes": 1_638_400, "layout": "T(8,128)(2,1)",
                "smallest_bytes": 1_638_400, "smallest_layout": "{1,2,0:T(8,128)(2,1)}",
            })
        );
        let (cut, whole) = told(Some(c"bf16"), Some(&[16, 1280, 40]), 3, 11);
        assert_eq!((cut.as_str(), whole), (&text[..10], length));
        let (scalar, _) = told(Some(c"f32"), None, 0, 4096);
        assert!(scalar.contains("\"smallest_layout\":\"{:T(128)}\""), "{scalar}");
        // SAFETY: a NULL buffer only asks.
        let asked = unsafe { pjrt_arena_tpu_footprint(Some(c"f32").into(), ptr::null(), 0, ptr::null_mut(), 0) };
        assert_eq!(asked, scalar.len());
    }

    #[test]
    fn what_cannot_be_is_an_error_and_no_crash() {
        let error = |name: Option<&CStr>, dims: Option<&[i64]>, rank| {
            let (text, _) = told(name, dims, rank, 4096);
            let value: Value = serde_json::from_str(&text).unwrap();
            value["error"].as_str().unwrap_or_else(|| panic!("no error: {text}")).to_owned()
        };
        assert!(error(None, None, 0).contains("element_type is NULL"));
        assert!(error(Some(c"f32"), None, 2).contains("rank is 2"));
        assert!(error(Some(c"\xff"), None, 0).contains("not the name of a type"));
        assert!(error(Some(c"token"), None, 0).contains("`token`"));
        assert!(error(Some(c"f32"), Some(&[2, -7]), 2).contains("f32[2, -7] is -7"));
        assert!(error(Some(c"f32"), Some(&[i64::MAX, 1]), 2).contains("f32[9223372036854775807, 1]"));
    }
}
