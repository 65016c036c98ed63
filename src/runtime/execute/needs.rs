//! What a launch needs of each memory: for its results, its program's scratch and copies of what it donates.

use std::{ptr, sync::Arc};

use rustc_hash::FxHashSet;

use crate::{
    engine::Failure,
    memory::{Execution, Needs, Strategy},
    runtime::{
        allocator::{
            allocate::footprint,
            call_needs::{Argument, ArgumentPlace, CallNeeds, Had},
            oom::{Needed, WithDonation, exhausted},
        },
        client::Device,
        device_memory::DeviceMemory,
        execute::{call::Call, donation_copy, unplaced::Unplaced},
    },
    units::Bytes,
};

/// What the part of `call` for the device with this index needs of `memory`, of which it `had` so much; and what the
/// call needs of its other devices, of which those with lower indices have all.
#[cold]
pub fn of(call: &Call<'_>, index: usize, memory: &Arc<DeviceMemory>, had: Had) -> CallNeeds {
    let mut needs = of_memory(call, index, call.device(index).1, memory);
    needs.had = had;
    for other in index + 1..call.args.num_devices {
        let (_, device) = call.device(other);
        let Some(arena) = device.and_then(|device| device.arena.as_ref()) else { continue };
        needs.elsewhere.push((Arc::clone(arena), of_memory(call, other, device, arena)));
    }
    needs
}

/// As [`of`], for one memory of a `device`, where nothing is had yet.
fn of_memory(call: &Call<'_>, index: usize, device: Option<&Device>, memory: &Arc<DeviceMemory>) -> CallNeeds {
    let (program, allocator) = (&*call.loaded.program, &call.loaded.client.allocator);
    let arena = device.and_then(|device| device.arena.as_ref());
    let is_arena = arena.is_some_and(|arena| Arc::ptr_eq(arena, memory));
    let scratch = if is_arena && memory.shared.is_none() { program.scratch } else { Bytes::ZERO };
    let results = program.plan.destinations.iter().filter(|&&result| program.is_pinned(result) != is_arena);
    let mut arrays: Vec<Bytes> = results.map(|&result| footprint(allocator, &program.results[result])).collect();
    if is_arena {
        arrays.extend(
            donation_copy::copied(call, index).into_iter().map(|argument| footprint(allocator, &argument.shape)),
        );
    }
    let mut needs = CallNeeds { needs: Needs { scratch, arrays, ..Needs::default() }, ..CallNeeds::default() };
    if let Some(tier) = memory.tier.as_ref().filter(|_| is_arena) {
        add_arguments(&mut needs, call, index, (memory, &tier.memory));
    }
    needs
}

/// Adds the arguments that are in `memory` or its `tier`, each once, but those that outsiders keep where they are.
fn add_arguments(
    needs: &mut CallNeeds,
    call: &Call<'_>,
    index: usize,
    (memory, tier): (&Arc<DeviceMemory>, &Arc<DeviceMemory>),
) {
    let allocator = &call.loaded.client.allocator;
    let mut seen = FxHashSet::default();
    for number in 0..call.args.num_args {
        let Ok(buffer) = call.argument(index, number) else { continue };
        let state = buffer.state();
        if !seen.insert(ptr::from_ref(buffer.get())) || state.is_referenced() || state.is_address_known() {
            continue;
        }
        let size = footprint(allocator, &buffer.shape);
        let Some(allocation) = state.storage.block() else { continue };
        let (id, of) = (allocation.block().id, allocation.memory());
        let at = match state.storage.is_spilled() {
            true if Arc::ptr_eq(of, tier) => ArgumentPlace::Tier(id),
            false if Arc::ptr_eq(of, memory) => ArgumentPlace::Device(id),
            _ => continue,
        };
        needs.arguments.push(Argument { size, at });
    }
}

/// What the caller is told; `run` tells the number of the execution on each device. The launch has given all back, so
/// that what would have made room is computed for all of it.
#[cold]
pub fn explain(call: &Call<'_>, unplaced: Unplaced, run: impl Fn(usize) -> Execution) -> Failure {
    let (full, shortage) = match unplaced {
        Unplaced::Failed(failure) => return failure,
        Unplaced::NoRoom(full, shortage) => (full, shortage),
    };
    let mut needed = Vec::new();
    for index in 0..call.args.num_devices {
        let Some(device) = call.device(index).1 else { continue };
        let pinned = device.pinned_memory_space().map(|space| space.arena());
        for memory in device.arena.iter().chain(pinned) {
            let needs = of_memory(call, index, Some(device), memory).all();
            needed.push(Needed { memory: Arc::clone(memory), needs, run: run(index) });
        }
    }
    let is_scratch = shortage.found.numbers.is_scratch;
    let donating = with_donation(call, &needed);
    let error = exhausted(&call.loaded.client.allocator, &full, shortage, &needed, donating);
    match is_scratch {
        true => error.context(&format!("Error loading program '{}'", call.loaded.program.name)).into(),
        false => error.into(),
    }
}

/// What is needed less where arguments are donated that should be. Nothing where scratch counts: a program that is
/// donated an array may need more of that.
fn with_donation(call: &Call<'_>, needed: &[Needed]) -> Option<WithDonation> {
    let mut advised = None;
    let mut reduced: Vec<Needed> = needed
        .iter()
        .map(|one| Needed { memory: Arc::clone(&one.memory), needs: one.needs.clone(), run: one.run })
        .collect();
    for index in 0..call.args.num_devices {
        let arena = call.device(index).1.and_then(|device| device.arena.as_ref());
        let Some(arena) = arena.filter(|arena| arena.strategy() != Strategy::Tpu) else { continue };
        let Some(donation) = call.loaded.donation_now(call.arguments(index)) else { continue };
        let Some(one) = reduced.iter_mut().find(|one| Arc::ptr_eq(&one.memory, arena)) else { continue };
        for &number in &donation.arguments {
            let size = footprint(&call.loaded.client.allocator, &call.argument(index, number).ok()?.shape);
            let at = one.needs.arrays.iter().position(|&array| array == size)?;
            one.needs.arrays.remove(at);
        }
        advised.get_or_insert(donation);
    }
    advised.map(|donation| WithDonation { donation, needed: reduced })
}
