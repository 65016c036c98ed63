//! What a run gave: outputs of the engine become buffers, each in the block that it was written into.
//!
//! ```text
//!  outputs of the engine    o0    o1    o2          by address, or as the first run of the program showed
//!                            |     |     `-------- no candidate: the engine's own memory, counted apart
//!                            v     v
//!  candidates               c1    c0    c2          destinations and consumed arguments; who is left over is freed
//! ```

use std::{
    ptr,
    sync::{Arc, atomic::Ordering},
};

use smallvec::SmallVec;

use crate::{
    config::EngineKind,
    engine::{Raw, process, views},
    runtime::{
        buffer::{Buffer, Place, layout::note_layout, storage::Storage, usage::Definition},
        counters::Miss,
        executable::loaded::{Loaded, Origin, Origins, Program, ResultPlacement},
        execute::{candidates::Candidate, device_launch::DeviceLaunch},
    },
    sys,
};

/// How often a program whose placement is known is compared all the same.
const VERIFY_EVERY: u64 = 64;

/// Wraps the outputs: each takes the candidate whose memory it lies in; one without is memory of the engine.
///
/// Which one that is, the first run of a program learns by comparing addresses. The CPU engine decides it when it
/// compiles, so later runs in which the same arguments were consumed take it as known; one in `VERIFY_EVERY` compares
/// again, and a program that ever differs is compared each time from then on (engine behaviour T39).
///
/// Where the run is under way, each result is in use by it, for the flight to end.
///
/// # Safety
/// The outputs must be live buffers of the engine that nobody else destroys.
pub unsafe fn results(
    loaded: &Loaded,
    lane: &DeviceLaunch<'_>,
    outputs: &[*mut sys::PJRT_Buffer],
    candidates: &mut [Candidate],
    writing: Definition,
) -> SmallVec<[Arc<Buffer>; 4]> {
    let client = &loaded.client;
    let program = &*loaded.program;
    // An argument in memory of the engine or of an outsider has no block to give, so such a run says nothing about others.
    let all_ours = candidates.iter().all(|candidate| candidate.allocation.is_some());
    let known = program.origins.get().filter(|origins| {
        let runs = program.executions.runs.load(Ordering::Relaxed);
        all_ours
            && !runs.is_multiple_of(VERIFY_EVERY)
            && !program.differs.load(Ordering::Relaxed)
            && origins.consumed.iter().eq(candidates.iter().map(|candidate| &candidate.origin))
    });
    let mut learned = Vec::new();
    let mut wrapped = SmallVec::with_capacity(outputs.len());
    // Where the search begins: results and candidates mostly come in the same order.
    let mut next = 0;
    for (index, (&output, shape)) in outputs.iter().zip(&program.results).enumerate() {
        // What a run gives whose argument is an error has no memory (XLA:GPU, PJRT 0.112 and 0.116), so it was put nowhere else.
        let mut has_memory = true;
        let at = match known {
            Some(origins) => origins.results[index],
            None if candidates.is_empty() || is_elsewhere(program.plan.homes.get(index), candidates) => None,
            None => {
                // SAFETY: the output is alive.
                let address = unsafe { views::address(client.session.engine, output) };
                has_memory = !matches!(address, Ok(0));
                address.ok().and_then(|address| find(address, candidates, &mut next))
            }
        };
        if known.is_none() {
            learned.push(at);
        }
        let held = at.and_then(|at| candidates[at].allocation.take());
        if held.is_none() && has_memory {
            count_miss(program, index, candidates);
        }
        let bound = lane.device.and_then(|device| program.bound(index, device));
        let result = match (held, lane.device) {
            (Some(mut held), Some(device)) => {
                let candidate = &mut candidates[at.unwrap_or(0)];
                let run = matches!(candidate.origin, Origin::Argument(_)).then_some(lane.run);
                held.made_by(program.origin_ids[index], run);
                if run.is_some() {
                    // XLA goes by the size where it chooses among donated arguments, so the result may lie there in a layout of its
                    // own, which whoever moves or copies it has to know.
                    // SAFETY: the output is alive.
                    unsafe { note_layout(client.session.engine, output, shape) };
                }
                let memory = bound.unwrap_or_else(|| device.memory_of(held.home()));
                // Another result may lie there than before, if the engine changed its mind.
                let fits = |shell: &Arc<Buffer>| Arc::ptr_eq(&shell.shape, shape) && shell.memory.0 == memory.0;
                if let Some(shell) = candidate.reused.take().filter(fits) {
                    shell.reuse(output, held, writing);
                    wrapped.push(shell);
                    continue;
                }
                let cache_slot = match candidate.origin {
                    Origin::Destination(number) => loaded.cache_slot(lane.slot, number),
                    Origin::Argument(_) => None,
                };
                let (shape, storage) = (Arc::clone(shape), Storage::Arena(held));
                Buffer::nested(client.session, device.handle, memory, shape, output, storage, cache_slot)
            }
            _ => {
                let expected = (shape, place(loaded, lane));
                // SAFETY: the output is alive and ours.
                unsafe { client.adopt_result(output, expected, bound, has_memory) }
            }
        };
        result.define_by(writing);
        wrapped.push(result);
    }
    if known.is_none() && all_ours && process::kind() == Some(EngineKind::Cpu) {
        let consumed: Vec<Origin> = candidates.iter().map(|candidate| candidate.origin).collect();
        let now = Origins { consumed, results: learned };
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
    wrapped
}

/// Where the results of a lane are, by the program.
fn place(loaded: &Loaded, lane: &DeviceLaunch<'_>) -> Place {
    let of_slot = || loaded.devices.get(lane.slot).copied().unwrap_or(Raw(ptr::null_mut()));
    lane.device.map_or_else(|| (of_slot(), Raw(ptr::null_mut())), |device| (device.handle, device.memory))
}

/// Counts a result that lies elsewhere than planned.
fn count_miss(program: &Program, result: usize, candidates: &[Candidate]) {
    match program.plan.homes.get(result) {
        Some(ResultPlacement::Destination(_)) => program.executions.miss(Miss::Destination),
        Some(&ResultPlacement::Argument(argument)) if of_argument(argument, candidates).is_none() => {
            program.executions.miss(Miss::Argument);
        }
        _ => {}
    }
}

/// Whether a result lies in the memory of an argument that gave no block. It is not asked for its address: the bytes of
/// an asynchronous transfer have none before they are sent, and the engine would wait for them.
fn is_elsewhere(home: Option<&ResultPlacement>, candidates: &[Candidate]) -> bool {
    let Some(&ResultPlacement::Argument(argument)) = home else { return false };
    of_argument(argument, candidates).is_none_or(|candidate| candidate.allocation.is_none())
}

/// The candidate that an argument gave. O(log n): they come in the order of their origins.
fn of_argument(argument: usize, candidates: &[Candidate]) -> Option<&Candidate> {
    debug_assert!(candidates.is_sorted_by_key(|candidate| candidate.origin), "a run consumes in this order");
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
