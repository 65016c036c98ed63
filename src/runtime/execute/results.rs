//! The results of an execution: outputs of the engine become buffers, each in the block that it was written into.
//!
//! ```text
//!  outputs of the engine    o0    o1    o2          by address, or as the first execution of the program showed
//!                            |     |     `-------- in no place: the engine's own memory, counted apart
//!                            v     v
//!  places                   p1    p0    p2          destinations and consumed arguments; what is left over is freed
//! ```

use std::{
    ptr,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    config::EngineKind,
    engine::{EngineBuffer, Raw, process},
    memory::Execution,
    report::stacks::StackId,
    runtime::{
        buffer::{Buffer, layout::note_layout, storage::Storage, usage::Definition},
        client::Device,
        counters::Miss,
        device_memory::Allocation,
        executable::loaded::{Loaded, Origins, Program, ResultPlacement},
        execute::{call::Outputs, candidates::Candidate, destination::Destination, device_launch::DeviceLaunch},
        in_flight::Consumed,
    },
};

/// One execution in so many is compared though the program's placement is known.
const VERIFY_EVERY: u64 = 64;

/// The memory that results may lie in: the destinations of a launch, and, counted on behind them, what it consumed of
/// its arguments.
struct Places<'a> {
    destinations: &'a mut [Destination],
    candidates: &'a mut [Candidate],
}

impl Places<'_> {
    fn count(&self) -> usize {
        self.destinations.len() + self.candidates.len()
    }

    /// The address of the one with this number, if it is ours and no result has it.
    fn address(&self, at: usize) -> Option<usize> {
        match self.destinations.get(at) {
            Some(destination) => destination.vacant.buffer().map(|_| destination.vacant.address()),
            None => {
                let candidate = self.candidates.get(at - self.destinations.len())?;
                candidate.allocation.as_ref().map(|_| candidate.address)
            }
        }
    }

    /// The one that lies at `address`; the search begins at `next`, and the next one behind it.
    fn find(&self, address: usize, next: &mut usize) -> Option<usize> {
        let count = self.count();
        let at = (0..count).map(|step| (*next + step) % count).find(|&at| self.address(at) == Some(address))?;
        *next = (at + 1) % count;
        Some(at)
    }

    /// The consumed argument with this number. O(log n): they come in the order of their numbers.
    fn of_argument(&self, argument: usize) -> Option<usize> {
        debug_assert!(self.candidates.is_sorted_by_key(|one| one.argument), "an execution consumes in this order");
        let at = self.candidates.binary_search_by_key(&argument, |candidate| candidate.argument).ok()?;
        Some(self.destinations.len() + at)
    }

    /// The one that a result was to lie in.
    fn planned(&self, placement: Option<&ResultPlacement>) -> Option<usize> {
        let at = match *placement? {
            ResultPlacement::Destination(number) => number,
            ResultPlacement::Argument(number) => self.of_argument(number)?,
            ResultPlacement::Anywhere(_) => return None,
        };
        self.address(at).map(|_| at)
    }

    /// Whether a result lies in the memory of an argument without a block. It is not asked for its address: the bytes
    /// of an asynchronous transfer have none before they are sent, and the engine would wait for them.
    fn is_elsewhere(&self, placement: Option<&ResultPlacement>) -> bool {
        let Some(&ResultPlacement::Argument(argument)) = placement else { return false };
        self.of_argument(argument).and_then(|at| self.address(at)).is_none()
    }
}

/// What was launched on one device.
struct Launched<'a> {
    loaded: &'a Loaded,
    device_index: usize,
    device: Option<&'a Device>,
    run: Execution,
    stack: StackId,
    writing: Definition,
}

/// Wraps the outputs, and passes each to `give`, in their order: it takes the memory that it lies in; one in none of
/// ours is memory of the engine. What programs consumed of the destinations is added to `consumed`.
///
/// Which memory that is, the first execution of a program learns by comparing addresses. The CPU engine decides it
/// when it compiles, so later executions in which the same arguments were consumed take it as known; one in
/// `VERIFY_EVERY` compares again, and a program that ever differs is compared each time from then on (engine behaviour
/// T39).
///
/// If the execution is under way, it uses each result until its operation ends.
#[inline]
pub fn results(
    loaded: &Loaded,
    launch: &mut DeviceLaunch<'_>,
    outputs: Outputs<'_>,
    candidates: &mut [Candidate],
    writing: Definition,
    consumed: &mut Consumed,
    mut give: impl FnMut(Arc<Buffer>),
) {
    let program = &*loaded.program;
    let DeviceLaunch { device_index, device, run, stack, .. } = *launch;
    let launched = Launched { loaded, device_index, device, run, stack, writing };
    let places = Places { destinations: &mut launch.destinations, candidates };
    // An argument in memory of the engine or of an outsider has no block, so such an execution says nothing about
    // others.
    let all_ours = places.candidates.iter().all(|candidate| candidate.allocation.is_some());
    let known = known_origins(program, places.candidates, all_ours);
    let mut learned = Vec::new();
    // Where the search begins: results and memory mostly come in the same order.
    let mut next = 0;
    for (index, output) in outputs.enumerate() {
        let (at, has_memory) = match known {
            Some(origins) => (origins.results[index], true),
            None => locate(program, index, &output, &places, &mut next),
        };
        if known.is_none() {
            learned.push(at);
        }
        let count = places.destinations.len();
        let placed = match (at, device) {
            (Some(at), Some(device)) if at < count => {
                launched.in_destination(index, output, (at, &mut places.destinations[at]), device, consumed)
            }
            (Some(at), Some(device)) => match places.candidates[at - count].allocation.take() {
                Some(allocation) => Ok(launched.in_argument(index, output, allocation, device)),
                None => Err(output),
            },
            _ => Err(output),
        };
        let result = placed.unwrap_or_else(|output| {
            if has_memory {
                count_miss(program, index, &places);
            }
            launched.elsewhere(index, output, has_memory)
        });
        give(result);
    }
    if known.is_none() && all_ours && process::kind() == Some(EngineKind::Cpu) {
        learn(program, places.candidates, learned);
    }
}

/// The origins that the program's first execution showed, if they are those of this one.
fn known_origins<'a>(program: &'a Program, candidates: &[Candidate], all_ours: bool) -> Option<&'a Origins> {
    program.origins.get().filter(|origins| {
        let runs = program.executions.runs.load(Ordering::Relaxed);
        all_ours
            && !runs.is_multiple_of(VERIFY_EVERY)
            && !program.differs.load(Ordering::Relaxed)
            && origins.consumed.iter().eq(candidates.iter().map(|candidate| &candidate.argument))
    })
}

/// The memory that the result with this number lies in, by its address, and whether the result has any: one whose
/// argument is an error has none (XLA:GPU, PJRT 0.112 and 0.116), so it was put nowhere else.
fn locate(
    program: &Program,
    result: usize,
    output: &EngineBuffer,
    places: &Places<'_>,
    next: &mut usize,
) -> (Option<usize>, bool) {
    if places.count() == 0 || places.is_elsewhere(program.plan.placements.get(result)) {
        return (None, true);
    }
    match output.address() {
        Ok(address) => (places.find(address, next), address != 0),
        // The engine does not say, but the memory must not be freed that it most likely lies in.
        Err(error) => {
            log::warn!("a result of '{}' is taken to lie where it was planned: {}", program.name, error.message());
            (places.planned(program.plan.placements.get(result)), true)
        }
    }
}

/// Compares where the results lay with the first execution, or notes it if this is the first.
fn learn(program: &Program, candidates: &[Candidate], results: Vec<Option<usize>>) {
    let consumed: Vec<usize> = candidates.iter().map(|candidate| candidate.argument).collect();
    let now = Origins { consumed, results };
    let before = program.origins.get_or_init(|| now.clone());
    if before.consumed == now.consumed && before.results != now.results {
        log::warn!(
            "program '{}' placed its results in {:?} of its destinations and the arguments {:?}, before in {:?}; it is \
             watched from now on",
            program.name,
            now.results,
            now.consumed,
            before.results
        );
        program.differs.store(true, Ordering::Relaxed);
    }
}

/// Counts a result that lies elsewhere than planned.
fn count_miss(program: &Program, result: usize, places: &Places<'_>) {
    match program.plan.placements.get(result) {
        Some(ResultPlacement::Destination(_)) => program.executions.miss(Miss::Destination),
        Some(&ResultPlacement::Argument(argument)) if places.of_argument(argument).is_none() => {
            program.executions.miss(Miss::Argument);
        }
        _ => {}
    }
}

impl Launched<'_> {
    /// The buffer of a result in a destination, the one with this `number`. What the program consumed of it is added to
    /// `consumed`.
    ///
    /// # Errors
    /// `output`, if another result has the destination.
    #[inline]
    fn in_destination(
        &self,
        result: usize,
        output: EngineBuffer,
        (number, destination): (usize, &mut Destination),
        device: &Device,
        consumed: &mut Consumed,
    ) -> Result<Arc<Buffer>, EngineBuffer> {
        let program = &*self.loaded.program;
        let origin = program.origin(result, self.stack);
        let meant_for = program.plan.destinations[number];
        let (shape, meant) = (&program.results[result], &program.results[meant_for]);
        let bound = || program.bound(result, device);
        let is_alike = || {
            Arc::ptr_eq(shape, meant)
                && bound().map(|memory| memory.0) == program.bound(meant_for, device).map(|memory| memory.0)
        };
        if result == meant_for || is_alike() {
            let (buffer, view) = destination.occupy(output, (origin, self.run), self.writing)?;
            consumed.extend(view);
            return Ok(buffer);
        }
        // The engine changed its mind.
        let Some((view, mut allocation)) = destination.take_out() else { return Err(output) };
        consumed.extend(view);
        allocation.set_provenance(origin, Some(self.run));
        let memory = bound().unwrap_or_else(|| device.memory_of(allocation.memory()));
        let slot = self.loaded.cache_slot(self.device_index, number);
        let (place, storage) = ((device.handle(), memory), Storage::Arena(allocation));
        let buffer = Buffer::with_cache_slot(output, place, Arc::clone(shape), storage, slot);
        buffer.define_by(self.writing);
        Ok(buffer)
    }

    /// The buffer of a result in memory that the program consumed of an argument.
    fn in_argument(
        &self,
        result: usize,
        output: EngineBuffer,
        mut allocation: Allocation,
        device: &Device,
    ) -> Arc<Buffer> {
        let program = &*self.loaded.program;
        let shape = &program.results[result];
        allocation.set_provenance(program.origin(result, self.stack), Some(self.run));
        // XLA chooses among donated arguments by size, so the result may lie there in a layout of its own, which a move
        // or a copy of it has to know.
        note_layout(&output, shape);
        let memory = program.bound(result, device).unwrap_or_else(|| device.memory_of(allocation.memory()));
        // An outsider has let go of an array in the tier after its launch took it into use, so that the engine consumed
        // it.
        let tier = device.arena.as_ref().and_then(|arena| arena.tier.as_ref());
        let tier = tier.filter(|tier| Arc::ptr_eq(&tier.memory, allocation.memory()));
        let block = allocation.block().id;
        let storage = if tier.is_some() { Storage::Spilled(allocation) } else { Storage::Arena(allocation) };
        let buffer = Buffer::with_cache_slot(output, (device.handle(), memory), Arc::clone(shape), storage, None);
        buffer.define_by(self.writing);
        if let Some(tier) = tier {
            tier.waiting.enter(block, buffer.as_resident());
        }
        buffer
    }

    /// The buffer of a result that lies in none of our memory, or in none at all.
    fn elsewhere(&self, result: usize, output: EngineBuffer, has_memory: bool) -> Arc<Buffer> {
        let Self { loaded, device, .. } = *self;
        let program = &*loaded.program;
        let of_program = || loaded.devices.get(self.device_index).copied().unwrap_or(Raw(ptr::null_mut()));
        let place =
            device.map_or_else(|| (of_program(), Raw(ptr::null_mut())), |device| (device.handle(), device.memory()));
        let bound = device.and_then(|device| program.bound(result, device));
        let buffer = loaded.client.adopt_result(output, (&program.results[result], place), bound, has_memory);
        buffer.define_by(self.writing);
        buffer
    }
}
