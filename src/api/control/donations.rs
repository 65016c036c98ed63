//! Arguments that programs should be donated, as JSON.

use rustc_hash::FxHashSet;
use serde_json::{Value, json};

use crate::{
    memory::{BlockState, Donation, OriginId, history::Past},
    runtime::{
        device_memory::{DeviceMemory, origins::ORIGINS},
        executable::{loaded::Loaded, registry::LOADED},
    },
};

/// How many programs are told of.
const MOST: usize = 20;

/// What donating arguments would save on each device while the program runs, the most first.
pub fn donations() -> Value {
    let loaded = LOADED.values();
    let mut all: Vec<_> = loaded.iter().filter_map(|loaded| Some((loaded.donation()?, names(loaded)))).collect();
    all.sort_by(|(one, _), (other, _)| other.bytes.cmp(&one.bytes).then(one.program.cmp(&other.program)));
    all.truncate(MOST);
    all.iter().map(|(donation, devices)| told(donation, devices)).collect()
}

/// What it would have saved at a peak, when the execution with the number `run` was launched, and the blocks were those
/// of `past`.
pub fn at_peak(memory: &DeviceMemory, run: u32, past: &Past) -> Value {
    // A launch holds its arguments; for the results that had a block already, those could have been taken.
    let placed = past.blocks.values().filter(|block| block.provenance.run.step == run);
    let placed = placed.filter(|block| block.state != BlockState::Retired);
    let placed: FxHashSet<OriginId> = placed.map(|block| ORIGINS.plain(block.provenance.origin)).collect();
    // Programs of one name share their origins. Then it is known which is meant as far as what they save is the same.
    let all = LOADED.values();
    let ran_there = all.iter().filter(|loaded| arenas(loaded).any(|arena| std::ptr::eq(arena, memory)));
    let saved = ran_there.filter_map(|loaded| {
        let origins = &loaded.program.origin_ids;
        loaded.donation_for(|_| true, |result| placed.contains(&origins[result]))
    });
    let least = if run == 0 { None } else { saved.min_by_key(|donation| donation.bytes) };
    least.iter().map(|donation| told(donation, &[memory.name()])).collect()
}

fn arenas(loaded: &Loaded) -> impl Iterator<Item = &DeviceMemory> {
    let devices = loaded.devices.iter().filter_map(|device| loaded.client.device(device.0));
    devices.filter_map(|device| device.arena.as_deref())
}

fn names(loaded: &Loaded) -> Vec<&str> {
    arenas(loaded).map(|arena| arena.name()).collect()
}

fn told(donation: &Donation, devices: &[&str]) -> Value {
    json!({
        "program": donation.program,
        "arguments": donation.arguments,
        "bytes": donation.bytes.get(),
        "launches": donation.launches,
        "devices": devices,
    })
}
