//! Room for an array: what happens when an arena has none at once.
//!
//! ```text
//!  1 drain     what is done lands, spares go back; nothing is waited for
//!  2 wait      for blocks that their owners let go, only if that alone makes room
//!  3 compact   open a hole (with PJRT_ARENA_COMPACT, which the strategy tpu turns on)
//!  4 wait      for the next program to end, only if its arrays could make the difference; then again from 2
//!  5 error     with the numbers, and what could not move
//! ```
//!
//! The order is the TPU runtime's (XLA, `docs/errors/error_0100.md`): queued frees first, then defragmentation. All
//! waiting together is bounded, tightly while a program with host callbacks runs: it may be waiting for the very thread
//! that waits here (trap T9). With nothing under way nothing is waited for.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    compaction,
    device_memory::{DeviceMemory, Held},
    shape::{Shape, element_bytes},
    state::Client,
};
use crate::{
    error::Result,
    memory::{
        Block, Goal, NoScratch, Obstacle, OutOfMemory,
        tiles::{self, Element},
    },
    units::Bytes,
};

/// How long an allocation waits for memory that programs under way will free, before it gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same while a program with host callbacks runs.
const PATIENCE_IN_CALLBACKS: Duration = Duration::from_millis(100);

/// Blocks are multiples of it (`memory::space`).
const GRANULE: Bytes = Bytes::new(256);

/// The lowest part of a device's memory, kept for one run of a program.
pub struct Scratch {
    memory: Arc<DeviceMemory>,
    bytes: Bytes,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.memory.end_scratch(self.bytes);
    }
}

/// A run of a program that calls back into the host, from Execute until the program is done.
pub struct CallbackRun(Arc<Client>);

impl CallbackRun {
    /// Begins one.
    pub fn begin(client: &Arc<Client>) -> Self {
        client.callbacks_under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(client))
    }
}

impl Clone for CallbackRun {
    fn clone(&self) -> Self {
        Self::begin(&self.0)
    }
}

impl Drop for CallbackRun {
    fn drop(&mut self) {
        self.0.callbacks_under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Client {
    /// What an array of this shape takes from the arena.
    pub fn footprint(&self, shape: &Shape) -> Bytes {
        let dense = Bytes::new(shape.size as u64);
        if !self.counts_tiles {
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
    /// RESOURCE_EXHAUSTED with the numbers.
    pub fn allocate(&self, memory: &Arc<DeviceMemory>, shape: &Shape) -> Result<Held> {
        let size = self.footprint(shape);
        let block = match memory.allocate(size) {
            Ok(block) => block,
            Err(_) => self.find_room(memory, size)?,
        };
        Ok(Held::new(Arc::clone(memory), block, size - Bytes::new(shape.size as u64)))
    }

    /// Opens one hole for several arrays that do not fit into the holes as they are. Whether it did.
    pub fn open_hole<'a>(&self, memory: &DeviceMemory, shapes: impl Iterator<Item = &'a Shape>) -> bool {
        let rounded = |shape| self.footprint(shape).max(Bytes::new(1)).checked_round_up(GRANULE);
        let total = shapes.map(rounded).try_fold(Bytes::ZERO, |sum, size| sum.checked_add(size?));
        self.compacts && total.is_some_and(|total| compaction::carry_out(self, memory, Goal::Hole(total)).is_ok())
    }

    /// Keeps the low end of the pool for a program's scratch.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the numbers.
    pub fn scratch(&self, memory: &Arc<DeviceMemory>, bytes: Bytes) -> Result<Scratch, NoScratch> {
        match memory.begin_scratch(bytes) {
            Ok(()) => {}
            Err(_) => self.find_scratch(memory, bytes)?,
        }
        Ok(Scratch { memory: Arc::clone(memory), bytes })
    }

    fn patience(&self) -> Duration {
        let waits_on_itself = self.callbacks_under_way.load(Ordering::Relaxed) > 0;
        if waits_on_itself { PATIENCE_IN_CALLBACKS } else { PATIENCE }
    }

    #[cold]
    fn find_room(&self, memory: &Arc<DeviceMemory>, size: Bytes) -> Result<Block, OutOfMemory> {
        self.traffic.waiting(self.engine, || {
            let deadline = Instant::now() + self.patience();
            loop {
                let arrivals = self.traffic.arrivals();
                // Other threads may have made new ones since.
                self.spares.clear(self);
                let patience = deadline.saturating_duration_since(Instant::now());
                let shortage = match memory.allocate_waiting(size, patience) {
                    Ok(block) => return Ok(block),
                    Err(shortage) => shortage,
                };
                if !self.compacts {
                    return Err(shortage);
                }
                match compaction::carry_out(self, memory, Goal::Hole(size)) {
                    Ok(opened) => match opened.allocate(size) {
                        Ok(block) => return Ok(block),
                        // Another thread was faster, or a move failed.
                        Err(_) if Instant::now() < deadline => continue,
                        Err(shortage) => return Err(shortage),
                    },
                    Err(Obstacle::UnderWay) if Instant::now() < deadline => {
                        memory.wait_for_compaction(deadline);
                        continue;
                    }
                    Err(_) => {}
                }
                // What lands next may be freed, or moved.
                let hopeful = shortage.free + shortage.pending >= size;
                if !hopeful || !self.traffic.wait_for_arrival(arrivals, deadline) {
                    return Err(OutOfMemory { pinned: compaction::pinned(memory), ..shortage });
                }
                self.traffic.sweep(self.engine);
            }
        })
    }

    #[cold]
    fn find_scratch(&self, memory: &Arc<DeviceMemory>, bytes: Bytes) -> Result<(), NoScratch> {
        self.traffic.waiting(self.engine, || {
            let deadline = Instant::now() + self.patience();
            loop {
                let arrivals = self.traffic.arrivals();
                self.spares.clear(self);
                let shortage = match memory.begin_scratch(bytes) {
                    Ok(()) => return Ok(()),
                    Err(shortage) => shortage,
                };
                if !self.compacts {
                    return Err(shortage);
                }
                match compaction::carry_out(self, memory, Goal::Bottom(bytes)) {
                    Ok(opened) => match opened.begin_scratch(bytes) {
                        Ok(()) => return Ok(()),
                        Err(_) if Instant::now() < deadline => continue,
                        Err(shortage) => return Err(shortage),
                    },
                    Err(Obstacle::UnderWay) if Instant::now() < deadline => {
                        memory.wait_for_compaction(deadline);
                        continue;
                    }
                    Err(_) => {}
                }
                let pending = memory.stats().pending_bytes;
                let hopeful = shortage.free + shortage.reserved + pending >= bytes;
                if !hopeful || !self.traffic.wait_for_arrival(arrivals, deadline) {
                    return Err(shortage);
                }
                self.traffic.sweep(self.engine);
            }
        })
    }
}
