//! Room for an array: what happens when an arena has none at once.
//!
//! ```text
//!  0 compact   with PJRT_ARENA_COMPACT=always alone, before anybody looks for room
//!  1 drain     what is done lands, spares go back; nothing is waited for
//!  2 wait      for blocks that their owners let go, only if that alone makes room
//!    reclaim   what the engine's pool keeps for the next program, where both share the memory (`admission.rs`); what programs under
//!              way have of it, when they end
//!  3 compact   open a hole (with PJRT_ARENA_COMPACT, which the strategy tpu turns on); or, where there is a hole and no memory for it,
//!              pack: the arrays share fewer pieces of memory then, and the others go where the hole is
//!  4 wait      for the next program to end, only if its arrays could make the difference; then again from 2
//!  5 error     with the numbers, what could not move, who holds the memory, and what would help (`exhausted.rs`)
//! ```
//!
//! The order is the TPU runtime's (XLA, `docs/errors/error_0100.md`): queued frees first, then defragmentation. All
//! waiting together is bounded (`patience.rs`). With nothing under way nothing is waited for.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    config::Compact,
    error::{Code, Error, Result},
    memory::{
        Block, Goal, NoScratch, Obstacle, OutOfMemory, Provenance, Request, Tried,
        tiles::{self, Element},
    },
    report::timeline::{TIMELINE, What},
    runtime::{
        allocator::{
            admission::give_holes,
            compaction::{self, Compacted},
        },
        client::Client,
        device_memory::{Allocation, DeviceMemory},
        in_flight::{HOLD_BACK, deadline::Deadline},
        shape::{Shape, element_bytes},
    },
    units::Bytes,
};

/// How often an allocation tries again because another thread was faster.
const ROUNDS: usize = 1000;

/// How long a program is given that runs in its caller's thread: nobody rings when it ends.
const SHORT_WHILE: Duration = Duration::from_micros(100);

/// Arrays of this size on are worth a look whether memory is about to come back before new memory is touched.
pub const WORTH_A_MOMENT: Bytes = Bytes::mib(1);

/// So many arrays of its size may be waiting for programs in the queue before an allocation waits for the first of them:
/// the device has work for longer than a program takes to start.
const RUN_AHEAD: u64 = 4;

/// Blocks are multiples of it (`memory::space`).
const GRANULE: Bytes = Bytes::new(256);

/// An array found no room.
pub struct NoRoom {
    /// The numbers of that instant.
    pub numbers: Box<OutOfMemory>,
    /// For whom the room was.
    pub maker: Provenance,
    /// What compaction did, where it is on.
    pub tried: Option<Tried>,
}

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

/// A block with memory behind it.
///
/// # Errors
/// The numbers.
#[inline]
fn take(memory: &DeviceMemory, request: Request) -> Result<Block, OutOfMemory> {
    filled(memory, memory.allocate(request)?)
}

/// Sees to it that there is memory behind a block; without, it goes back.
///
/// # Errors
/// The numbers.
#[inline]
fn filled(memory: &DeviceMemory, block: Block) -> Result<Block, OutOfMemory> {
    // Memory of the host comes by itself.
    if memory.on_host {
        return Ok(block);
    }
    match memory.carrier.populate(block.address, block.size) {
        Ok(()) => Ok(block),
        Err(refusal) => fill_from_holes(memory, block, refusal).map_err(|refusal| {
            if let Err(error) = memory.free(block.id) {
                log::error!("{error}");
            }
            memory.refused(block.size, refusal)
        }),
    }
}

/// Puts memory behind a block that lies behind holes elsewhere: blocks go where they fit best, not where memory is.
///
/// # Errors
/// `refusal`, or the device's next one.
#[cold]
fn fill_from_holes(memory: &DeviceMemory, block: Block, refusal: Error) -> Result<Block> {
    // The most that the block can lack.
    if refusal.code != Code::ResourceExhausted || give_holes(memory, block.size).is_zero() {
        return Err(refusal);
    }
    memory.carrier.populate(block.address, block.size).map(|()| block)
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
    /// The numbers; [`Self::exhausted`] makes an error of them, where this was the last attempt.
    pub fn allocate(&self, memory: &Arc<DeviceMemory>, shape: &Shape, maker: Provenance) -> Result<Allocation, NoRoom> {
        let size = self.footprint(shape);
        let since = TIMELINE.clock();
        if self.compaction == Compact::Always {
            self.pack(memory);
        }
        // A GPU's memory is not touched for the first time, and its callers run ahead: they must not wait for it.
        if memory.on_host && size >= WORTH_A_MOMENT && memory.pending() >= size {
            self.keep_warm(memory, size);
        }
        let request = Request { size, provenance: maker };
        let block = match take(memory, request) {
            Ok(block) => block,
            Err(_) => self.find_room(memory, request)?,
        };
        if size >= WORTH_A_MOMENT && !self.idle.is_awake() {
            self.watch(memory);
        }
        if let Some(since) = since {
            let allocated = || What::Allocated { bytes: size, in_use: memory.stats().bytes_in_use };
            TIMELINE.note(memory.name(), since, allocated);
        }
        Ok(Allocation::new(Arc::clone(memory), block, size - Bytes::new(shape.size as u64), maker))
    }

    /// As [`Self::allocate`], where there is nothing else to try.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the numbers, explained.
    pub fn allocate_or_tell(&self, memory: &Arc<DeviceMemory>, shape: &Shape, maker: Provenance) -> Result<Allocation> {
        self.allocate(memory, shape, maker).map_err(|shortage| self.exhausted(memory, shortage))
    }

    /// Before an array of this size is put into new memory: takes up what is about to come back, and, where the caller runs
    /// far ahead of the device, lets the device catch up. Arrays that were dropped already, but that programs in the queue
    /// have yet to write or read, take memory as long as they wait; XLA's own CPU client gives a result memory only when
    /// its program begins.
    #[cold]
    fn keep_warm(&self, memory: &DeviceMemory, size: Bytes) {
        self.in_flight.catch_up(self.engine);
        let ahead = || memory.pending().get() >= RUN_AHEAD * size.get();
        if ahead() {
            // They pend, but wait for no program.
            self.spares.clear();
        }
        // A host callback may be waiting for this thread.
        if ahead() && self.callbacks_under_way.load(Ordering::Relaxed) == 0 {
            self.in_flight.hold_back(self.engine, HOLD_BACK, || !ahead());
        }
    }

    /// Opens one hole for several arrays that do not fit into the holes as they are. Whether it did.
    pub fn open_hole<'a>(&self, memory: &DeviceMemory, shapes: impl Iterator<Item = &'a Shape>) -> bool {
        let rounded = |shape| self.footprint(shape).max(Bytes::new(1)).checked_round_up(GRANULE);
        let total = shapes.map(rounded).try_fold(Bytes::ZERO, |sum, size| sum.checked_add(size?));
        self.compacts() && total.is_some_and(|total| compaction::carry_out(self, memory, Goal::Hole(total)).is_ok())
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

    /// Moves all that can move, whether there is room or not.
    #[cold]
    fn pack(&self, memory: &DeviceMemory) {
        self.settle();
        // Where another thread compacts at this moment, this one does not wait for it.
        drop(compaction::carry_out(self, memory, Goal::Pack));
    }

    /// How long a call of this client may wait for memory from now on.
    pub fn patience(&self) -> Deadline<'_> {
        self.in_flight.patience(&self.callbacks_under_way, self.orders_runs())
    }

    #[cold]
    fn find_room(&self, memory: &Arc<DeviceMemory>, request: Request) -> Result<Block, NoRoom> {
        let hole_before = memory.stats().largest_free_block;
        let moved = Cell::new((0, Bytes::ZERO));
        let found = self.climb(
            memory,
            Goal::Hole(request.size),
            |patience| filled(memory, memory.allocate_waiting(request, patience)?),
            |opened| {
                let (blocks, bytes) = moved.get();
                moved.set((blocks + opened.buffers, bytes + opened.bytes));
                filled(memory, opened.allocate(request)?)
            },
            |shortage| shortage.in_prospect() >= request.size,
            |shortage| shortage.refusal.is_some(),
        );
        found.map_err(|numbers| {
            let (blocks, bytes) = moved.get();
            let tried = self.compacts().then_some(Tried { hole_before, blocks, bytes });
            NoRoom { numbers: Box::new(numbers), maker: request.provenance, tried }
        })
    }

    #[cold]
    fn find_scratch(&self, memory: &Arc<DeviceMemory>, bytes: Bytes) -> Result<(), NoScratch> {
        self.climb(
            memory,
            Goal::Bottom(bytes),
            |_| memory.begin_scratch(bytes),
            |opened| opened.begin_scratch(bytes),
            |shortage| {
                let stats = memory.stats();
                shortage.free + shortage.reserved + stats.pending_bytes + stats.slack_bytes >= bytes
            },
            |_| false,
        )
    }

    /// The ladder: `attempt` may wait so long for what comes free by itself, `take` uses what a compaction opened,
    /// `hopeful` says whether there would be enough once all that is under way has ended, and `refused` whether there is a place, but
    /// no memory for it.
    fn climb<T, E>(
        &self,
        memory: &DeviceMemory,
        goal: Goal,
        attempt: impl Fn(Duration) -> Result<T, E>,
        take: impl Fn(Compacted<'_>) -> Result<T, E>,
        hopeful: impl Fn(&E) -> bool,
        refused: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        self.in_flight.waiting(self.engine, || {
            let patience = self.patience();
            let mut rounds = 0..ROUNDS;
            let mut packed = false;
            loop {
                let arrivals = self.in_flight.arrivals();
                // Other threads may have made new ones since.
                self.spares.clear();
                let (since, at_most) = (Instant::now(), patience.left());
                let shortage = match attempt(at_most) {
                    Ok(found) => return Ok(found),
                    Err(shortage) => shortage,
                };
                let over = rounds.next().is_none() || patience.is_over();
                // What the engine's pool keeps for the next program is cheaper to have than anything below.
                if !over && self.reclaim(memory, refused(&shortage)) {
                    continue;
                }
                // It waited for blocks whose programs take longer.
                if !over && since.elapsed() >= at_most {
                    rounds = 0..ROUNDS;
                    continue;
                }
                if !over
                    && refused(&shortage)
                    && memory.lends_scratch()
                    && self.in_flight.wait_for_arrival(arrivals, &patience)
                {
                    // As below.
                    rounds = 0..ROUNDS;
                    self.in_flight.sweep(self.engine);
                    continue;
                }
                if !self.compacts() || over {
                    return Err(shortage);
                }
                let goal = if refused(&shortage) && !std::mem::replace(&mut packed, true) { Goal::Pack } else { goal };
                let hindrance = match compaction::carry_out(self, memory, goal) {
                    // Otherwise another thread was faster, a move failed, or all is packed and there is no memory all the same.
                    Ok(opened) => match take(opened) {
                        Ok(found) => return Ok(found),
                        Err(_) => continue,
                    },
                    Err(hindrance) => hindrance,
                };
                if hindrance.obstacle == Obstacle::UnderWay {
                    memory.wait_for_compaction(Instant::now() + patience.left());
                    continue;
                }
                if !hopeful(&shortage) {
                    return Err(shortage);
                }
                // What lands next may be freed, or moved.
                if !self.in_flight.wait_for_arrival(arrivals, &patience) {
                    if !hindrance.in_use {
                        return Err(shortage);
                    }
                    thread::sleep(SHORT_WHILE);
                }
                // The patience bounds this, not the number of rounds: other threads' programs are many and short.
                rounds = 0..ROUNDS;
                self.in_flight.sweep(self.engine);
            }
        })
    }
}
