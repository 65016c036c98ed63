//! `pjrt_arena_*`: functions that PJRT lacks. Plain C, for clients in any language.
//!
//! Most return text, as `text.rs` says.

mod donations;
mod engine;
mod ffi;
mod groups;
mod memory;
pub(super) mod on_oom;
mod python;
mod report;
pub(super) mod track;

use std::{
    ffi::{c_char, c_int},
    sync::atomic::Ordering,
};

use serde_json::{Map, Value, json};

use crate::{
    api::{control::donations::donations, text::text_functions},
    config::{self, ENGINE, Environment, Finding, Found, GPU_SCRATCH, HUGE_PAGES, LIMIT, Settings},
    device::{
        cuda::{self, Vendor},
        host,
    },
    engine::{process, scratch},
    runtime::{
        allocator::{allocate::clear_peaks, pinned_host::KIND},
        client::{self, ClientGuard, limits},
        counters::Tally,
        device_memory::{DeviceMemory, Tier},
        executable::registry,
    },
};

/// The version of pjrt-arena, as in its package; lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

text_functions! {
    /// Whether a client could be created with the present environment, without creating one: an empty text means yes,
    /// anything else is one sentence that says why not. Loads the engine.
    pub fn pjrt_arena_check() -> String {
        check().err().map(|error| error.message).unwrap_or_default()
    }

    /// Every setting, its value, where it came from and what is allowed; the engine; the memory; the GPUs. Loads no
    /// engine, but starts the GPUs' driver where there is one: a process that forks afterwards cannot use GPUs in the
    /// child.
    pub fn pjrt_arena_doctor() -> String {
        let (environment, findings) = findings();
        config::doctor(&environment, &[], &findings)
    }

    /// What [`pjrt_arena_doctor`] says, as JSON; see [`config::settings_as_json`].
    pub fn pjrt_arena_doctor_json() -> String {
        let (environment, findings) = findings();
        config::settings_as_json(&environment, &[], &findings).to_string()
    }

    /// Every setting as a client that is created now would read it from the environment, as JSON; see
    /// [`config::settings_as_json`]. Unlike [`pjrt_arena_doctor_json`] it looks at nothing else: no engine, no driver.
    /// `engine` is the file of the engine, or null while none is loaded: from then on `engine` and `log` are fixed.
    pub fn pjrt_arena_settings() -> String {
        let mut settings = config::settings_as_json(&Environment::of_process(), &[], &[]);
        settings["engine"] = json!(process::loaded().map(|(engine, _)| engine.path().to_string_lossy()));
        settings.to_string()
    }

    /// What was counted so far over all clients alive, as JSON: programs rewritten and not, results placed, donated,
    /// missed and skipped, arguments that programs should be donated, for each device the bytes of the arena and of the
    /// engine's own buffers, there and in
    /// `pinned_host`, and the engine's scratch.
    pub fn pjrt_arena_counters() -> String {
        counters(&client::guard_all()).to_string()
    }
}

fn check() -> crate::error::Result<()> {
    process::engine()?;
    let settings = Settings::read(&Environment::of_process(), &[])?;
    limits::of_the_host(&settings.limit, settings.devices.value)?;
    settings.engine_options(process::kind(), None).map(drop)
}

/// The environment, and what its settings lead to on this machine.
fn findings() -> (Environment, Vec<Finding>) {
    let environment = Environment::of_process();
    let mut findings = Vec::new();
    let (mut vendor, mut library) = (Vendor::Nvidia, config::CudaDriver::default().to_string());
    // If a setting is invalid, its own row says so.
    if let Ok(settings) = Settings::read(&environment, &[]) {
        let limit = host::capacity().and_then(|capacity| {
            let limit = limits::of_the_host(&settings.limit, settings.devices.value)?;
            Ok(format!("{limit} per device of {capacity} in all"))
        });
        findings.push(Finding { row: &LIMIT, what: Found::Led(limit) });
        let choice = process::choose(&settings.engine, &environment);
        let gpus = choice.as_ref().ok().and_then(|choice| limits::vendor_of(choice.taken().kind));
        match choice {
            Ok(choice) => {
                let lines = choice.lines().into_iter();
                findings.extend(lines.map(|line| Finding { row: &ENGINE, what: Found::Led(Ok(line)) }));
            }
            Err(error) => findings.push(Finding { row: &ENGINE, what: Found::Led(Err(error)) }),
        }
        // Without an engine for GPUs, NVIDIA's are shown, which most engines are for.
        vendor = gpus.unwrap_or(Vendor::Nvidia);
        library = limits::library_of(&settings, vendor).to_owned();
        if gpus.is_some()
            && let Some(what) = limits::scratch_of_gpus(&settings, vendor).transpose()
        {
            findings.push(Finding { row: &GPU_SCRATCH, what: Found::Led(what) });
        }
    }
    findings.push(Finding { row: &HUGE_PAGES, what: Found::Offer(host::huge_pages().to_string()) });
    let gpus = cuda::probe_library(vendor, library).map_or_else(|why| why.to_string(), |driver| driver.to_string());
    findings.push(Finding { row: &ENGINE, what: Found::Offer(gpus) });
    (environment, findings)
}

fn counters(clients: &[ClientGuard]) -> Value {
    let mut tally = Tally::default();
    for client in clients {
        client.allocator.drain();
        tally.add(&client.counters.tally());
    }
    for program in registry::LOADED.values() {
        tally.add(&program.program.tally());
    }
    let reasons = |counts: &std::collections::BTreeMap<String, u64>| -> Map<String, Value> {
        counts.iter().map(|(reason, count)| (reason.clone(), json!(count))).collect()
    };
    let devices: Vec<Value> = clients.iter().flat_map(|client| client.devices.iter()).map(device).collect();
    json!({
        "programs": {
            "rewritten": tally.programs_rewritten,
            "not_rewritten": reasons(&tally.programs_not_rewritten),
            "executions": tally.executions,
            "address_changes": tally.address_changes,
        },
        "results": {
            "placed": tally.results_placed,
            "donated": tally.results_donated,
            "missed": reasons(&tally.results_missed),
            "skipped": reasons(&tally.results_skipped),
        },
        "devices": devices,
        "donations": donations(),
        "scratch": scratch::usage().map(|usage| json!({
            "in_use_bytes": usage.in_use.get(),
            "warm_bytes": usage.warm.get(),
            "allocations": usage.allocations,
        })),
    })
}

fn device(device: &client::Device) -> Value {
    let engine_bytes = device.engine_bytes.load(Ordering::Relaxed);
    let foreign_bytes = device.foreign_bytes.load(Ordering::Relaxed);
    let Some(arena) = &device.arena else {
        return json!({ "engine_bytes": engine_bytes, "foreign_bytes": foreign_bytes });
    };
    let mut counts = of_arena(arena, engine_bytes);
    counts["foreign_bytes"] = json!(foreign_bytes);
    if let Some(tier) = &arena.tier {
        counts["spill"] = of_tier(tier);
    }
    if let Some(part) = &arena.group {
        counts["group"] = groups::of_part(part);
    }
    if let Some(pinned) = &device.pinned {
        counts[KIND] = of_arena(&pinned.arena, pinned.engine_bytes.load(Ordering::Relaxed));
    }
    counts
}

/// The tier's numbers, and what was spilled to it and came back since the start. `spilled` and `spilled_bytes` are all
/// that went, `clean` and `clean_bytes` the part of them that did not have to be copied.
fn of_tier(tier: &Tier) -> Value {
    let (memory, record) = (&tier.memory, &tier.record);
    let mut counts = of_arena(memory, 0);
    let copies = memory.copies.load(Ordering::Relaxed);
    counts["copies_bytes"] = json!(copies);
    counts["spilled"] = json!(record.out.arrays() + record.clean.arrays());
    counts["spilled_bytes"] = json!((record.out.bytes() + record.clean.bytes()).get());
    counts["spilled_seconds"] = json!(record.out.took().as_secs_f64());
    counts["clean"] = json!(record.clean.arrays());
    counts["clean_bytes"] = json!(record.clean.bytes().get());
    counts["brought_back"] = json!(record.back.arrays());
    counts["brought_back_bytes"] = json!(record.back.bytes().get());
    counts["brought_back_seconds"] = json!(record.back.took().as_secs_f64());
    counts["prefetched"] = json!(record.prefetched.arrays());
    counts["prefetched_bytes"] = json!(record.prefetched.bytes().get());
    counts["predictions_right"] = json!(record.right.load(Ordering::Relaxed));
    counts["predictions_wrong"] = json!(record.wrong.load(Ordering::Relaxed));
    counts
}

fn of_arena(arena: &DeviceMemory, engine_bytes: i64) -> Value {
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
        "peak_used_bytes": stats.peak_used_bytes.get(),
        "peak_pool_bytes": stats.peak_pool_bytes.get(),
        "reserved_bytes": stats.reserved_bytes.get(),
        "peak_reserved_bytes": stats.peak_reserved_bytes.get(),
        "padding_bytes": arena.padding().get(),
        "pinned_bytes": stats.pinned_bytes.get(),
        "pinned_blocks": stats.pinned_blocks,
        "compactions": stats.compactions,
        "migrations": stats.migrations,
        "moved_blocks": stats.moves,
        "moved_bytes": stats.moved_bytes.get(),
        "longest_plan_seconds": stats.longest_plan.as_secs_f64(),
        "largest_free_block_bytes": stats.largest_free_block.get(),
        "allocations": stats.num_allocs,
        "live_blocks": stats.live_blocks,
        "pending_blocks": stats.pending_blocks,
        "engine_bytes": engine_bytes,
    })
}

/// Has each device remember the last events of its memory from now on, as many as its setting says (65536 where that is
/// 0), or, if `enabled` is 0, no more. What it remembers already is kept if it does so already, and forgotten if it
/// ends. Returns how many devices have an arena. Clients that are created afterwards go by their setting.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_history(enabled: c_int) -> c_int {
    let mut count = 0;
    for client in client::guard_all() {
        let events = match (enabled, client.allocator.settings.history.value) {
            (0, _) => 0,
            (_, 0) => config::DEFAULT_HISTORY,
            (_, events) => events,
        };
        for arena in client.arenas() {
            arena.keep_history(events);
            count += 1;
        }
    }
    count
}

/// Sets the statistics' peaks to what is in use now, on every device, and gives up what is kept for programs'
/// scratch: where there is any, programs under way are waited for. Returns how many devices have an arena.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_reset_peak() -> c_int {
    let mut count = 0;
    for client in client::guard_all() {
        for arena in client.arenas() {
            clear_peaks(&client.allocator, arena);
        }
        count += client.devices.iter().filter(|device| device.arena.is_some()).count() as c_int;
    }
    count
}
