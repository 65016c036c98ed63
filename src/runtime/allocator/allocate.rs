//! A block for an array.

use std::sync::Arc;

use crate::{
    config::Compact,
    error::Result,
    memory::{
        Goal, NoScratch, Provenance, Request,
        tiles::{self, Element},
    },
    report::timeline::{TIMELINE, What},
    runtime::{
        allocator::{
            compaction,
            core::Allocator,
            oom,
            reclaim::{self, NoRoom},
        },
        device_memory::{Allocation, DeviceMemory, ScratchReservation},
        in_flight::THROTTLE,
        shape::{Shape, element_bytes},
    },
    units::Bytes,
};

/// Arrays of this size on are worth a look whether memory is about to come back before new memory is touched.
pub const LARGE_ARRAY: Bytes = Bytes::mib(1);

/// So many arrays of its size may be waiting for programs in the queue before an allocation waits for the first of them:
/// the device has work for longer than a program takes to start.
const RUN_AHEAD: u64 = 4;

/// Blocks are multiples of it (`memory::space`).
const GRANULE: Bytes = Bytes::new(256);

/// What an array of this shape takes from the arena.
pub fn footprint(allocator: &Allocator, shape: &Shape) -> Bytes {
    let dense = Bytes::new(shape.size as u64);
    if !allocator.counts_tiles {
        return dense;
    }
    let bits = element_bytes(shape.element_type).map(|bytes| 8 * u32::from(bytes));
    let tiled = bits.and_then(Element::of_bits).and_then(|element| tiles::footprint(element, &shape.dims));
    // What has no footprint on a TPU takes what it takes here.
    tiled.map_or(dense, |tiled| tiled.bytes.max(dense))
}

/// A block for an array of this shape.
///
/// # Errors
/// The numbers; [`oom::exhausted`] makes an error of them, where this was the last attempt.
pub fn allocate(
    allocator: &Allocator,
    memory: &Arc<DeviceMemory>,
    shape: &Shape,
    provenance: Provenance,
) -> Result<Allocation, NoRoom> {
    let size = footprint(allocator, shape);
    let since = TIMELINE.clock();
    if allocator.compaction == Compact::Always {
        pack(allocator, memory);
    }
    // A GPU's memory is not touched for the first time, and its callers run ahead: they must not wait for it.
    if memory.on_host && size >= LARGE_ARRAY && memory.pending() >= size {
        keep_warm(allocator, memory, size);
    }
    let request = Request { size, provenance };
    let block = match reclaim::take(memory, request) {
        Ok(block) => block,
        Err(_) => reclaim::find_room(allocator, memory, request)?,
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
    allocate(allocator, memory, shape, provenance).map_err(|shortage| oom::exhausted(allocator, memory, shortage))
}

/// Before an array of this size is put into new memory: takes up what is about to come back, and, where the caller runs
/// far ahead of the device, lets the device catch up. Arrays that were dropped already, but that programs in the queue
/// have yet to write or read, take memory as long as they wait; XLA's own CPU client gives a result memory only when
/// its program begins.
#[cold]
fn keep_warm(allocator: &Allocator, memory: &DeviceMemory, size: Bytes) {
    let engine = allocator.session.engine;
    allocator.in_flight.drain_ready(engine);
    let ahead = || memory.pending().get() >= RUN_AHEAD * size.get();
    if ahead() {
        // What caches keep is pending, but waits for no program.
        allocator.clear_caches();
    }
    if ahead() && !allocator.runs_callbacks() {
        allocator.in_flight.throttle(engine, THROTTLE, || !ahead());
    }
}

/// Opens one hole for several arrays that do not fit into the holes as they are. Whether it did.
pub fn open_hole<'a>(allocator: &Allocator, memory: &DeviceMemory, shapes: impl Iterator<Item = &'a Shape>) -> bool {
    let rounded = |shape| footprint(allocator, shape).max(Bytes::new(1)).checked_round_up(GRANULE);
    let total = shapes.map(rounded).try_fold(Bytes::ZERO, |sum, size| sum.checked_add(size?));
    allocator.compacts() && total.is_some_and(|total| compaction::carry_out(memory, Goal::Hole(total)).is_ok())
}

/// Keeps the low end of the pool for a program's scratch.
///
/// # Errors
/// RESOURCE_EXHAUSTED with the numbers.
pub fn reserve_scratch(
    allocator: &Allocator,
    memory: &Arc<DeviceMemory>,
    bytes: Bytes,
) -> Result<ScratchReservation, NoScratch> {
    match memory.begin_scratch(bytes) {
        Ok(()) => {}
        Err(_) => reclaim::find_scratch(allocator, memory, bytes)?,
    }
    Ok(ScratchReservation::new(memory, bytes))
}

/// Moves all that can move, whether there is room or not.
#[cold]
fn pack(allocator: &Allocator, memory: &DeviceMemory) {
    allocator.drain();
    // Where another thread compacts at this moment, this one does not wait for it.
    drop(compaction::carry_out(memory, Goal::Pack));
}
