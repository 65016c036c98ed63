//! What a launch needs of each memory: for its results, its program's scratch and copies of what it donates.

use std::{ptr, sync::Arc};

use rustc_hash::FxHashSet;

use crate::{
    engine::Failure,
    memory::Needs,
    runtime::{
        allocator::{
            allocate::footprint,
            oom::{Needed, exhausted},
            prospects::CallNeeds,
        },
        buffer::BufferRef,
        device_memory::DeviceMemory,
        execute::{call::Call, device_launch::DeviceLaunch, donation_copy, unplaced::Unplaced},
    },
    units::Bytes,
};

/// What the part `launch` of `call`, which is for the device with this index, needs of `memory`, and what it has.
#[cold]
pub fn of(call: &Call<'_>, index: usize, launch: &DeviceLaunch<'_>, memory: &Arc<DeviceMemory>) -> CallNeeds {
    let (program, allocator) = (&*call.loaded.program, &call.loaded.client.allocator);
    let is_arena =
        launch.device.and_then(|device| device.arena.as_ref()).is_some_and(|arena| Arc::ptr_eq(arena, memory));
    let scratch = if is_arena && memory.shared.is_none() { program.scratch } else { Bytes::ZERO };
    let results = program.plan.destinations.iter().filter(|&&result| program.is_pinned(result) != is_arena);
    let mut arrays: Vec<Bytes> = results.map(|&result| footprint(allocator, &program.results[result])).collect();
    if is_arena {
        let copied = donation_copy::copied(call, index).map(|argument| footprint(allocator, &argument.shape));
        arrays.extend(copied);
    }
    let blocks = launch.destinations.iter().chain(launch.copies.iter().map(|copy| &copy.destination));
    let blocks = blocks.filter_map(|destination| destination.block.allocation());
    let had: Bytes = blocks.filter(|block| Arc::ptr_eq(block.memory(), memory)).map(|block| block.size()).sum();
    let reserved = if launch.scratch.is_some() { scratch } else { Bytes::ZERO };
    let mut needs = CallNeeds { needs: Needs { scratch, arrays }, had: had + reserved, ..CallNeeds::default() };
    if let Some(tier) = memory.tier.as_ref().filter(|_| is_arena) {
        add_arguments(&mut needs, call, index, |buffer| buffer.state().storage.is_in(&tier.memory));
    }
    needs
}

/// Adds the arguments, each once, but those that outsiders keep where they are.
fn add_arguments(needs: &mut CallNeeds, call: &Call<'_>, index: usize, is_in_tier: impl Fn(BufferRef<'_>) -> bool) {
    let allocator = &call.loaded.client.allocator;
    let mut seen = FxHashSet::default();
    for number in 0..call.args.num_args {
        let Ok(buffer) = call.argument(index, number) else { continue };
        if !seen.insert(ptr::from_ref(buffer.get())) || buffer.state().is_referenced() {
            continue;
        }
        let size = footprint(allocator, &buffer.shape);
        if is_in_tier(buffer) {
            needs.waiting.push(size);
        } else {
            needs.present.push(size);
        }
    }
}

/// What the caller is told: the launch gives all back first, so that what would have made room is computed for all of
/// it.
#[cold]
pub fn explain<'a>(call: &Call<'a>, devices: &mut [DeviceLaunch<'a>], unplaced: Unplaced) -> Failure {
    let (full, shortage) = match unplaced {
        Unplaced::Failed(failure) => return failure,
        Unplaced::NoRoom(full, shortage) => (full, shortage),
    };
    devices.iter_mut().for_each(DeviceLaunch::give_back);
    let mut needed = Vec::new();
    for (index, launch) in devices.iter().enumerate() {
        let Some(device) = launch.device else { continue };
        let pinned = device.pinned_memory_space().map(|space| space.arena());
        for memory in device.arena.iter().chain(pinned) {
            let CallNeeds { mut needs, waiting, .. } = of(call, index, launch, memory);
            needs.arrays.extend(waiting);
            needed.push(Needed { memory: Arc::clone(memory), needs });
        }
    }
    let is_scratch = shortage.found.numbers.is_scratch;
    let error = exhausted(&call.loaded.client.allocator, &full, shortage, &needed);
    match is_scratch {
        true => error.context(&format!("Error loading program '{}'", call.loaded.program.name)).into(),
        false => error.into(),
    }
}
