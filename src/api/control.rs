//! `pjrt_arena_*`: what PJRT has no function for. Plain C, for clients in any language.
//!
//! Functions that give text write at most `capacity` bytes, the last of them NUL, and return how long the whole text
//! is without it; a caller with too little room asks again with more. A NULL buffer only asks.

use std::{
    ffi::{CStr, c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{Arc, atomic::Ordering},
};

use serde_json::{Map, Value, json};

use super::{
    counters::Tally,
    entry::panicked,
    plugin,
    state::{self, Client},
};
use crate::{
    config::{self, ENGINE, Environment, Finding, Found, LIMIT, Settings},
    device::{cuda, host},
    error::{Error, Result},
    memory::tiles::{self, Element},
};

/// Writes `text` as the module says.
///
/// # Safety
/// `buffer` must be NULL or have `capacity` bytes.
unsafe fn give(text: &str, buffer: *mut c_char, capacity: usize) -> usize {
    if !buffer.is_null() && capacity > 0 {
        let mut length = text.len().min(capacity - 1);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: at most `capacity` bytes are written.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), length);
            *buffer.add(length) = 0;
        }
    }
    text.len()
}

/// The text that `body` makes; a panic becomes text too.
fn tell(body: impl FnOnce() -> String) -> String {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| format!("panic: {}; this is a bug", panicked(&*panic)))
}

/// The version of pjrt-arena, as in its package; lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Whether a client could be created with the present environment, without creating one: an empty text means yes,
/// anything else is one sentence that says why not. Loads the engine.
///
/// # Safety
/// `buffer` must be NULL or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_check(buffer: *mut c_char, capacity: usize) -> usize {
    let sentence = tell(|| check().err().map(|error| error.message).unwrap_or_default());
    // SAFETY: the caller's promise.
    unsafe { give(&sentence, buffer, capacity) }
}

fn check() -> Result<()> {
    plugin::engine()?;
    let settings = Settings::read(&Environment::of_process(), &[])?;
    settings.limit.resolve(host::capacity()?.get(), settings.devices.value)?;
    settings.engine_options(plugin::kind()).map(drop)
}

/// Every setting, its value, where it came from and what is allowed; the engine; the memory; the GPUs. Loads no engine,
/// but starts the NVIDIA driver where there is one: a process that forks afterwards cannot use CUDA in the child.
///
/// # Safety
/// `buffer` must be NULL or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_doctor(buffer: *mut c_char, capacity: usize) -> usize {
    let table = tell(doctor);
    // SAFETY: the caller's promise.
    unsafe { give(&table, buffer, capacity) }
}

fn doctor() -> String {
    let environment = Environment::of_process();
    let mut findings = Vec::new();
    // What the table cannot tell, because a setting is invalid, its own row says.
    if let Ok(settings) = Settings::read(&environment, &[]) {
        let limit = host::capacity().and_then(|capacity| {
            let bytes = settings.limit.resolve(capacity.get(), settings.devices.value)?;
            Ok(format!("{} per device of {capacity} in all", crate::units::Bytes::new(bytes)))
        });
        findings.push(Finding { row: &LIMIT, what: Found::Led(limit) });
        let engine = plugin::choose(&settings.engine, &environment)
            .map(|choice| format!("{} ({})", choice.path.display(), choice.why));
        findings.push(Finding { row: &ENGINE, what: Found::Led(engine) });
    }
    let gpus = cuda::probe().map_or_else(|why| why.to_string(), |driver| driver.to_string());
    findings.push(Finding { row: &ENGINE, what: Found::Offer(gpus) });
    config::doctor(&environment, &[], &findings)
}

/// What was counted so far over all clients alive, as JSON: programs rewritten and left alone, results placed, donated,
/// missed and skipped, and for each device what the arena and the engine hold, in bytes.
///
/// # Safety
/// `buffer` must be NULL or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_counters(buffer: *mut c_char, capacity: usize) -> usize {
    let counters = tell(|| counters(&state::clients()).to_string());
    // SAFETY: the caller's promise.
    unsafe { give(&counters, buffer, capacity) }
}

fn counters(clients: &[Arc<Client>]) -> Value {
    let mut tally = Tally::default();
    for client in clients {
        client.settle();
        tally.add(&client.counters.tally());
    }
    for program in state::LOADED.values() {
        tally.add(&program.program.tally());
    }
    let reasons = |counts: &std::collections::BTreeMap<String, u64>| -> Map<String, Value> {
        counts.iter().map(|(reason, count)| (reason.clone(), json!(count))).collect()
    };
    let devices: Vec<Value> = clients.iter().flat_map(|client| client.devices.iter()).map(device).collect();
    json!({
        "programs": {
            "rewritten": tally.programs_rewritten,
            "left_alone": reasons(&tally.programs_left_alone),
            "executions": tally.executions,
        },
        "results": {
            "placed": tally.results_placed,
            "donated": tally.results_donated,
            "missed": reasons(&tally.results_missed),
            "skipped": reasons(&tally.results_skipped),
        },
        "devices": devices,
    })
}

fn device(device: &state::Device) -> Value {
    let engine_bytes = device.engine_bytes.load(Ordering::Relaxed);
    let Some(arena) = &device.arena else { return json!({ "engine_bytes": engine_bytes }) };
    let stats = arena.stats();
    json!({
        "name": arena.name(),
        "strategy": config::strategy_name(arena.strategy()),
        "limit_bytes": stats.limit.get(),
        "in_use_bytes": stats.bytes_in_use.get(),
        "pending_bytes": stats.pending_bytes.get(),
        "slack_bytes": stats.slack_bytes.get(),
        "free_bytes": stats.free_bytes.get(),
        "pool_bytes": stats.pool_bytes.get(),
        "peak_in_use_bytes": stats.peak_bytes_in_use.get(),
        "peak_pool_bytes": stats.peak_pool_bytes.get(),
        "largest_free_block_bytes": stats.largest_free_block.get(),
        "allocations": stats.num_allocs,
        "live_blocks": stats.live_blocks,
        "pending_blocks": stats.pending_blocks,
        "engine_bytes": engine_bytes,
    })
}

/// Sets the statistics' peaks to what is in use now, on every device. Returns how many devices have an arena.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_reset_peak() -> c_int {
    let mut count = 0;
    for client in state::clients() {
        for arena in client.devices.iter().filter_map(|device| device.arena.as_ref()) {
            arena.clear_peaks();
            count += 1;
        }
    }
    count
}

/// What an array of `rank` dimensions takes on a TPU, as JSON: `bytes` in the order of dimensions given, `dense_bytes` of
/// its elements alone, `layout` as XLA writes tiles, and `smallest_bytes` and `smallest_layout` in the best order; or
/// `error`, one sentence. `element_type` is XLA's name, such as `bf16`. Needs no client. The rule and what it leaves out:
/// [`crate::memory::tiles`].
///
/// # Safety
/// `element_type` must be NUL-terminated, `dims` must have `rank` numbers (NULL will do for none), `buffer` must be NULL
/// or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_tpu_footprint(
    element_type: *const c_char,
    dims: *const i64,
    rank: usize,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let answer = tell(|| {
        // SAFETY: the caller's promise.
        let told = unsafe { shape(element_type, dims, rank) };
        let answer = told.and_then(|(name, dims)| footprint(name, dims));
        answer.unwrap_or_else(|error| json!({ "error": error.message })).to_string()
    });
    // SAFETY: the caller's promise.
    unsafe { give(&answer, buffer, capacity) }
}

/// The shape that a C caller names.
///
/// # Safety
/// As for [`pjrt_arena_tpu_footprint`]; the caller's memory must stay as it is while the result is used.
unsafe fn shape<'a>(element_type: *const c_char, dims: *const i64, rank: usize) -> Result<(&'a str, &'a [i64])> {
    if element_type.is_null() {
        return Err(Error::invalid_argument("element_type is NULL; it must be XLA's name of a type, such as bf16"));
    }
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    let name = unsafe { CStr::from_ptr(element_type) };
    let name = name.to_str().map_err(|_| Error::invalid_argument(format!("{name:?} is not the name of a type")))?;
    let dims = match rank {
        0 => &[][..],
        _ if dims.is_null() => return Err(Error::invalid_argument(format!("dims is NULL, and rank is {rank}"))),
        // SAFETY: not NULL, and `rank` numbers by the caller's promise.
        _ => unsafe { slice::from_raw_parts(dims, rank) },
    };
    Ok((name, dims))
}

fn footprint(name: &str, dims: &[i64]) -> Result<Value> {
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
    use super::*;

    /// What the exported function says, with a buffer of `capacity` bytes and what it returned.
    fn told(name: Option<&CStr>, dims: Option<&[i64]>, rank: usize, capacity: usize) -> (String, usize) {
        let mut buffer = vec![b'?'; capacity];
        let (name, dims) = (name.map_or(ptr::null(), CStr::as_ptr), dims.map_or(ptr::null(), <[i64]>::as_ptr));
        // SAFETY: each pointer is NULL or as the function asks; `rank` is never more than the dims there are.
        let length = unsafe { pjrt_arena_tpu_footprint(name, dims, rank, buffer.as_mut_ptr().cast(), capacity) };
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
        let asked = unsafe { pjrt_arena_tpu_footprint(c"f32".as_ptr(), ptr::null(), 0, ptr::null_mut(), 0) };
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
