//! The results of an execution: outputs of the engine become buffers, each in the block that it was written into.
//!
//! ```text
//!  outputs of the engine    o0    o1    o2          by address, or as the first execution of the program showed
//!                            |     |     `-------- no candidate: the engine's own memory, counted apart
//!                            v     v
//!  candidates               c1    c0    c2          destinations and consumed arguments; what is left over is freed
//! ```

use std::{
    ptr,
    sync::{Arc, atomic::Ordering},
};

use smallvec::SmallVec;

use crate::{
    config::EngineKind,
    engine::{EngineBuffer, Raw, process},
    memory::{Execution, OriginId},
    runtime::{
        buffer::{Buffer, Place, layout::note_layout, storage::Storage, usage::Definition},
        client::Device,
        counters::Miss,
        device_memory::Allocation,
        executable::loaded::{Loaded, Origin, Origins, Program, ResultPlacement},
        execute::{call::Outputs, candidates::Candidate, device_launch::DeviceLaunch},
    },
    sys,
};

/// One execution in so many is compared though the program's placement is known.
const VERIFY_EVERY: u64 = 64;

/// Wraps the outputs: each takes the candidate whose memory it lies in; one without is memory of the engine.
///
/// Which candidate that is, the first execution of a program learns by comparing addresses. The CPU engine decides it
/// when it compiles, so later executions in which the same arguments were consumed take it as known; one in
/// `VERIFY_EVERY` compares again, and a program that ever differs is compared each time from then on (engine behaviour
/// T39).
///
/// If the execution is under way, it uses each result until its operation ends.
pub fn results(
    loaded: &Loaded,
    launch: &DeviceLaunch<'_>,
    outputs: Outputs<'_>,
    candidates: &mut [Candidate],
    writing: Definition,
) -> SmallVec<[Arc<Buffer>; 4]> {
    let program = &*loaded.program;
    // An argument in memory of the engine or of an outsider has no block, so such an execution says nothing about
    // others.
    let all_ours = candidates.iter().all(|candidate| candidate.allocation.is_some());
    let known = known_origins(program, candidates, all_ours);
    let mut learned = Vec::new();
    let mut wrapped = SmallVec::with_capacity(outputs.len());
    // Where the search begins: results and candidates mostly come in the same order.
    let mut next = 0;
    for (index, output) in outputs.enumerate() {
        let (at, has_memory) = match known {
            Some(origins) => (origins.results[index], true),
            None => locate(program, index, &output, candidates, &mut next),
        };
        if known.is_none() {
            learned.push(at);
        }
        let bound = launch.device.and_then(|device| program.bound(index, device));
        // The block is taken where it is used: it is as long as a cache line, and each move of it costs.
        wrapped.push(
            if let (Some(at), Some(device)) = (at, launch.device)
                && let Some(allocation) = candidates[at].allocation.take()
            {
                let launched = Launched {
                    loaded,
                    device_index: launch.device_index,
                    device,
                    run: launch.run,
                    origin: launch.origin(program, index),
                };
                in_block(&launched, index, output, &mut candidates[at], allocation, bound, writing)
            } else {
                if has_memory {
                    count_miss(program, index, candidates);
                }
                let expected = (&program.results[index], place(loaded, launch));
                let result = loaded.client.adopt_result(output, expected, bound, has_memory);
                result.define_by(writing);
                result
            },
        );
    }
    if known.is_none() && all_ours && process::kind() == Some(EngineKind::Cpu) {
        learn(program, candidates, learned);
    }
    wrapped
}

/// The origins that the program's first execution showed, if they are those of this one.
fn known_origins<'a>(program: &'a Program, candidates: &[Candidate], all_ours: bool) -> Option<&'a Origins> {
    program.origins.get().filter(|origins| {
        let runs = program.executions.runs.load(Ordering::Relaxed);
        all_ours
            && !runs.is_multiple_of(VERIFY_EVERY)
            && !program.differs.load(Ordering::Relaxed)
            && origins.consumed.iter().eq(candidates.iter().map(|candidate| &candidate.origin))
    })
}

/// The candidate that the result with this number lies in, by its address, and whether the result has memory: one whose
/// argument is an error has none (XLA:GPU, PJRT 0.112 and 0.116), so it was put nowhere else.
fn locate(
    program: &Program,
    result: usize,
    output: &EngineBuffer,
    candidates: &[Candidate],
    next: &mut usize,
) -> (Option<usize>, bool) {
    if candidates.is_empty() || is_elsewhere(program.plan.placements.get(result), candidates) {
        return (None, true);
    }
    match output.address() {
        Ok(address) => (find(address, candidates, next), address != 0),
        // The engine does not say, but the memory must not be freed that it most likely lies in.
        Err(error) => {
            log::warn!("a result of '{}' is taken to lie where it was planned: {}", program.name, error.message());
            (planned(program.plan.placements.get(result), candidates), true)
        }
    }
}

/// The candidate that a result was to lie in.
#[cold]
fn planned(placement: Option<&ResultPlacement>, candidates: &[Candidate]) -> Option<usize> {
    let origin = match *placement? {
        ResultPlacement::Destination(number) => Origin::Destination(number),
        ResultPlacement::Argument(number) => Origin::Argument(number),
        ResultPlacement::Anywhere(_) => return None,
    };
    candidates.iter().position(|candidate| candidate.origin == origin && candidate.allocation.is_some())
}

/// What was launched on one device.
struct Launched<'a> {
    loaded: &'a Loaded,
    device_index: usize,
    device: &'a Device,
    run: Execution,
    origin: OriginId,
}

/// The buffer of a result in a candidate's block: the one that the candidate's output cache kept, or a new one.
fn in_block(
    launched: &Launched<'_>,
    result: usize,
    output: EngineBuffer,
    candidate: &mut Candidate,
    mut allocation: Allocation,
    bound: Option<Raw<sys::PJRT_Memory>>,
    writing: Definition,
) -> Arc<Buffer> {
    let &Launched { loaded, device_index, device, run, origin } = launched;
    let program = &*loaded.program;
    let shape = &program.results[result];
    let run = matches!(candidate.origin, Origin::Argument(_)).then_some(run);
    allocation.set_provenance(origin, run);
    if run.is_some() {
        // XLA chooses among donated arguments by size, so the result may lie there in a layout of its own, which a move
        // or a copy of it has to know.
        note_layout(&output, shape);
    }
    let memory = bound.unwrap_or_else(|| device.memory_of(allocation.memory()));
    // Another result may lie there than before, if the engine changed its mind.
    let fits = |buffer: &Arc<Buffer>| Arc::ptr_eq(&buffer.shape, shape) && buffer.memory.0 == memory.0;
    if let Some(buffer) = candidate.reused.take().filter(fits) {
        buffer.reuse(output, allocation, writing);
        return buffer;
    }
    let cache_slot = match candidate.origin {
        Origin::Destination(number) => loaded.cache_slot(device_index, number),
        Origin::Argument(_) => None,
    };
    // An outsider has let go of an array in the tier after its launch took it into use, so that the engine consumed it.
    let tier = device.arena.as_ref().and_then(|arena| arena.tier.as_ref());
    let tier = tier.filter(|tier| Arc::ptr_eq(&tier.memory, allocation.memory()));
    let block = allocation.block().id;
    let storage = if tier.is_some() { Storage::Spilled(allocation) } else { Storage::Arena(allocation) };
    let buffer = Buffer::with_cache_slot(output, (device.handle(), memory), Arc::clone(shape), storage, cache_slot);
    buffer.define_by(writing);
    if let Some(tier) = tier {
        tier.waiting.enter(block, buffer.as_resident());
    }
    buffer
}

/// Compares where the results lay with the first execution, or notes it if this is the first.
fn learn(program: &Program, candidates: &[Candidate], results: Vec<Option<usize>>) {
    let consumed: Vec<Origin> = candidates.iter().map(|candidate| candidate.origin).collect();
    let now = Origins { consumed, results };
    let before = program.origins.get_or_init(|| now.clone());
    if before.consumed == now.consumed && before.results != now.results {
        log::warn!(
            "program '{}' placed its results in {:?} of {:?}, before in {:?}; it is watched from now on",
            program.name,
            now.results,
            now.consumed,
            before.results
        );
        program.differs.store(true, Ordering::Relaxed);
    }
}

/// The device and memory of a launch's results, by the program.
fn place(loaded: &Loaded, launch: &DeviceLaunch<'_>) -> Place {
    let of_program = || loaded.devices.get(launch.device_index).copied().unwrap_or(Raw(ptr::null_mut()));
    launch.device.map_or_else(|| (of_program(), Raw(ptr::null_mut())), |device| (device.handle(), device.memory()))
}

/// Counts a result that lies elsewhere than planned.
fn count_miss(program: &Program, result: usize, candidates: &[Candidate]) {
    match program.plan.placements.get(result) {
        Some(ResultPlacement::Destination(_)) => program.executions.miss(Miss::Destination),
        Some(&ResultPlacement::Argument(argument)) if of_argument(argument, candidates).is_none() => {
            program.executions.miss(Miss::Argument);
        }
        _ => {}
    }
}

/// Whether a result lies in the memory of an argument without a block. It is not asked for its address: the bytes of
/// an asynchronous transfer have none before they are sent, and the engine would wait for them.
fn is_elsewhere(placement: Option<&ResultPlacement>, candidates: &[Candidate]) -> bool {
    let Some(&ResultPlacement::Argument(argument)) = placement else { return false };
    of_argument(argument, candidates).is_none_or(|candidate| candidate.allocation.is_none())
}

/// The candidate of an argument. O(log n): they come in the order of their origins.
fn of_argument(argument: usize, candidates: &[Candidate]) -> Option<&Candidate> {
    debug_assert!(candidates.is_sorted_by_key(|candidate| candidate.origin), "an execution consumes in this order");
    let at = candidates.binary_search_by_key(&Origin::Argument(argument), |candidate| candidate.origin).ok()?;
    candidates.get(at)
}

/// The candidate that lies at `address`.
fn find(address: usize, candidates: &[Candidate], next: &mut usize) -> Option<usize> {
    let count = candidates.len();
    let at = (0..count)
        .map(|step| (*next + step) % count)
        .find(|&at| candidates[at].address == address && candidates[at].allocation.is_some())?;
    *next = (at + 1) % count;
    Some(at)
}
