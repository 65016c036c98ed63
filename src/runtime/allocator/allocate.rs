//! A block for an array.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use crate::{
    config::{Compact, Spill},
    error::{Error, Result},
    fork,
    memory::{
        Goal, Needs, Provenance, Request,
        tiles::{self, Element},
    },
    report::timeline::{TIMELINE, What},
    runtime::{
        allocator::{
            call_needs::CallNeeds,
            compaction,
            core::Allocator,
            oom::{self, Needed},
            reclaim::{self, NoRoom, WaitPolicy},
            spill, warm,
        },
        device_memory::{Allocation, DeviceMemory, ScratchReservation},
        in_flight::Round,
        shape::{Shape, element_bytes},
    },
    units::Bytes,
};

/// For arrays of this size and more an allocation checks whether memory is about to be freed before it touches new
/// memory.
pub const LARGE_ARRAY: Bytes = Bytes::mib(1);

/// How long it waits for that: touching a MiB of new memory takes as long.
const READY_WAIT: Duration = Duration::from_micros(300);

/// Blocks are multiples of this (`memory::space`).
const GRANULE: Bytes = Bytes::new(256);

/// The bytes that an array of this shape takes from the arena.
pub fn footprint(allocator: &Allocator, shape: &Shape) -> Bytes {
    let dense = Bytes::new(shape.size as u64);
    if !allocator.counts_tiles {
        return dense;
    }
    let bits = element_bytes(shape.element_type).map(|bytes| 8 * u32::from(bytes));
    let tiled = bits.and_then(Element::of_bits).and_then(|element| tiles::footprint(element, &shape.dims));
    // A type without a footprint on a TPU takes its bytes here.
    tiled.map_or(dense, |tiled| tiled.bytes.max(dense))
}

/// A block for an array of this shape, which is a part of what the `call` needs.
///
/// # Errors
/// The numbers; [`oom::exhausted`] makes an error of them, where this was the last attempt.
pub fn allocate(
    allocator: &Allocator,
    memory: &Arc<DeviceMemory>,
    (shape, provenance): (&Shape, Provenance),
    wait: WaitPolicy,
    call: &dyn Fn() -> CallNeeds,
) -> Result<Allocation, NoRoom> {
    let size = footprint(allocator, shape);
    let since = TIMELINE.clock();
    if allocator.compaction == Compact::Always {
        pack(allocator, memory);
    }
    if allocator.spill == Spill::Always {
        spill::make_room(allocator, memory, None);
    }
    // A GPU's memory has no first touch, and its callers run ahead: they must not wait for it.
    if memory.on_host && size >= LARGE_ARRAY {
        if memory.pending() >= size {
            keep_warm(allocator, memory, size);
        }
        warm::before_an_array(allocator, memory, size);
    }
    let request = Request { size, provenance };
    let block = match reclaim::take(memory, request) {
        Ok(block) => block,
        Err(_) => reclaim::find_room(allocator, memory, request, wait, call)?,
    };
    if size >= LARGE_ARRAY && !allocator.trimmer.is_awake() {
        allocator.watch(memory);
    }
    if let Some(since) = since {
        let allocated = || What::Allocated { bytes: size, in_use: memory.stats().bytes_in_use };
        TIMELINE.note(memory.name(), since, allocated);
    }
    Ok(Allocation::new(Arc::clone(memory), block, size - Bytes::new(shape.size as u64), provenance))
}

/// A block for an array, if there is room at once: nothing is moved, spilled or waited for.
///
/// # Errors
/// RESOURCE_EXHAUSTED, or as the device refuses; without a text.
pub fn allocate_at_once(
    allocator: &Allocator,
    memory: &Arc<DeviceMemory>,
    shape: &Shape,
    provenance: Provenance,
) -> Result<Allocation> {
    let size = footprint(allocator, shape);
    let found = fork::step(|| reclaim::take(memory, Request { size, provenance }));
    let block = found.map_err(|numbers| Error::new(numbers.code(), ""))?;
    Ok(Allocation::new(Arc::clone(memory), block, size - Bytes::new(shape.size as u64), provenance))
}

/// As [`allocate`], where there is nothing else to try.
///
/// # Errors
/// RESOURCE_EXHAUSTED with the numbers, explained.
pub fn allocate_or_explain(
    allocator: &Allocator,
    memory: &Arc<DeviceMemory>,
    shape: &Shape,
    provenance: Provenance,
) -> Result<Allocation> {
    let size = footprint(allocator, shape);
    allocate(allocator, memory, (shape, provenance), WaitPolicy::Waits, &|| CallNeeds::of(size)).map_err(|shortage| {
        let needed = Needed { memory: Arc::clone(memory), needs: Needs::of(size), run: provenance.run };
        oom::exhausted(allocator, memory, shortage, &[needed], None)
    })
}

/// Before an array of this size takes new memory: reaps operations whose memory is about to be free, and waits for that
/// of arrays that were destroyed, but that programs in the queue have yet to write or read, as long as the device has
/// enough to do. XLA's own CPU client allocates a result only when its program begins. A large result of a program
/// seldom comes here, because it takes the place of such an array ([`crate::runtime::device_memory::dropped`]).
#[cold]
fn keep_warm(allocator: &Allocator, memory: &DeviceMemory, size: Bytes) {
    let in_flight = &allocator.in_flight;
    in_flight.drain_ready(READY_WAIT);
    // One for each device keeps it busy.
    let enough = allocator.memories.len();
    let ahead = || memory.pending() >= size && in_flight.is_under_way(enough);
    if ahead() {
        // Blocks in the caches are pending too, but no program uses them.
        allocator.clear_caches();
    }
    if ahead() && !allocator.runs_callbacks() {
        in_flight.wait_while(&allocator.deadline(), ahead);
    }
}

/// The bytes that arrays of these shapes take from the arena together; `None` if that is no number.
fn footprint_of_all<'a>(allocator: &Allocator, shapes: impl Iterator<Item = &'a Shape>) -> Option<Bytes> {
    let rounded = |shape| footprint(allocator, shape).max(Bytes::new(1)).checked_round_up(GRANULE);
    shapes.map(rounded).try_fold(Bytes::ZERO, |sum, size| sum.checked_add(size?))
}

/// Opens one hole for several arrays that do not fit into the holes as they are. Whether it did.
pub fn open_hole<'a>(allocator: &Allocator, memory: &DeviceMemory, shapes: impl Iterator<Item = &'a Shape>) -> bool {
    let total = footprint_of_all(allocator, shapes);
    allocator.compacts() && total.is_some_and(|total| compaction::carry_out(memory, Goal::Hole(total)).is_ok())
}

/// Spills arrays until there is room for several ones of a launch, as far as the numbers tell; less may be enough for a
/// launch that waits.
///
/// # Errors
/// CANCELLED, if a signal ended it.
#[cold]
pub fn make_room_for_all<'a>(
    allocator: &Allocator,
    memory: &DeviceMemory,
    shapes: impl Iterator<Item = &'a Shape>,
    wait: WaitPolicy,
    call: &dyn Fn() -> CallNeeds,
) -> Result<()> {
    let mut shapes = shapes.peekable();
    // One finds its own room.
    let (Some(first), Some(_)) = (shapes.next(), shapes.peek()) else { return Ok(()) };
    let total = footprint_of_all(allocator, [first].into_iter().chain(shapes));
    let waits = wait != WaitPolicy::None;
    total.map_or(Ok(()), |total| spill::make_room_for_all(allocator, memory, total, waits, call))
}

/// Reserves the low end of the pool for a program's scratch, which is a part of what the `call` needs.
///
/// # Errors
/// The numbers.
pub fn reserve_scratch(
    allocator: &Allocator,
    memory: &Arc<DeviceMemory>,
    bytes: Bytes,
    call: &dyn Fn() -> CallNeeds,
) -> Result<ScratchReservation, NoRoom> {
    match memory.begin_scratch(bytes) {
        Ok(()) => {}
        Err(_) => reclaim::find_scratch(allocator, memory, bytes, call)?,
    }
    Ok(ScratchReservation::new(memory, bytes))
}

/// Sets the peaks to what is in use now. Where scratch is kept, the programs under way are waited for, so that what
/// they use no more is given up; as long as an allocation would wait for them.
pub fn clear_peaks(allocator: &Allocator, memory: &DeviceMemory) {
    allocator.drain();
    if !memory.stats().reserved_bytes.is_zero() {
        let deadline = allocator.deadline();
        allocator.in_flight.wait_until(&deadline, |round: &Round<'_>| {
            deadline.look_for_signals();
            if round.wait() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }
    memory.clear_peaks();
}

/// Moves all that can move, whether there is room or not.
#[cold]
fn pack(allocator: &Allocator, memory: &DeviceMemory) {
    allocator.drain();
    // If another thread compacts at this moment, this one does not wait for it.
    drop(compaction::carry_out(memory, Goal::Pack));
}
