//! The mover: carries an arena's plan out on live buffers.
//!
//! ```text
//!  look     which buffers may move (nobody uses them, nobody outside holds their address, their contents are good)
//!  plan     the arena: which of them to move where; what the plan needs leaves circulation
//!  seize    the buffers of the plan: from here on others wait for them; one that got busy means a new plan without it
//!  move     one after the other: bytes, a new view of them, the arena's books, the buffer's; the old view ends
//!  end      what was opened is free
//! ```
//!
//! No lock is held while bytes move or the engine is called, and nothing is waited for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    engine::{EngineError, Raw, views},
    error::{Error, Result},
    memory::{BlockId, Compaction, Goal, Move, Obstacle, Pinned, Request},
    report::timeline::{TIMELINE, What},
    runtime::{
        buffer::{Body, Buffer, storage::Storage, usage::MoveBarrier},
        client::Client,
        device_memory::DeviceMemory,
    },
    sys,
    units::Bytes,
};

/// How often a plan is made anew because a buffer of it got busy. Each new plan leaves one more buffer alone.
const ATTEMPTS: usize = 16;

/// The largest block that is moved out of the way before its address is given out: 0.2 ms at 20 GB/s.
const PIN_BYTES: Bytes = Bytes::mib(4);
/// What others that make way for it may cost, by the mover's own reckoning: as much again.
const PIN_NANOS: u64 = 400_000;

/// A plan that was carried out; the room that it made is still out of circulation.
pub struct Compacted<'a> {
    compaction: Compaction<'a>,
    /// Buffers moved.
    pub buffers: u64,
    /// Their sizes, summed.
    pub bytes: Bytes,
}

impl Compacted<'_> {
    /// Takes a block in the room that was made.
    ///
    /// # Errors
    /// As [`crate::memory::Arena::allocate`].
    pub fn allocate(self, request: Request) -> Result<crate::memory::Block, crate::memory::OutOfMemory> {
        self.compaction.allocate(request)
    }

    /// Keeps the low end that was emptied.
    ///
    /// # Errors
    /// As [`crate::memory::Arena::begin_scratch`].
    pub fn begin_scratch(self, bytes: Bytes) -> Result<(), crate::memory::NoScratch> {
        self.compaction.begin_scratch(bytes)
    }
}

/// Why a goal was not reached.
pub struct Blocked {
    /// Why there is no plan.
    pub obstacle: Obstacle,
    /// Whether programs or transfers kept buffers where they are. Those end.
    pub in_use: bool,
}

/// What [`compact`] did on one device.
pub struct Report {
    /// Buffers moved.
    pub buffers: u64,
    /// Their sizes, summed.
    pub bytes: Bytes,
    /// From begin to end.
    pub time: Duration,
    /// The largest hole before.
    pub hole_before: Bytes,
    /// The largest hole after.
    pub hole_after: Bytes,
    /// What could not move, and why.
    pub pinned: Vec<Pinned>,
}

/// A buffer in the mover's hands.
struct LockedBuffer {
    buffer: Arc<Buffer>,
    view: Raw<sys::PJRT_Buffer>,
}

/// What could not move at this instant, by reason.
pub fn pinned(memory: &DeviceMemory) -> Vec<Pinned> {
    let mut sums: FxHashMap<MoveBarrier, Pinned> = FxHashMap::default();
    for buffer in memory.residents.buffers() {
        let Some(stay) = buffer.usage().stay() else { continue };
        let Some(size) = buffer.usage().peek(|body| body.held().map(|held| held.size())) else { continue };
        let sum = sums.entry(stay).or_insert(Pinned { why: stay.reason(), blocks: 0, bytes: Bytes::ZERO });
        sum.blocks += 1;
        sum.bytes += size;
    }
    let mut pinned: Vec<Pinned> = sums.into_values().collect();
    pinned.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.why.cmp(other.why)));
    pinned
}

/// Moves buffers of `memory` until `goal` is reached.
///
/// # Errors
/// Why it cannot be. A move that fails ends the work early; what was moved stays moved.
pub fn carry_out<'a>(client: &Client, memory: &'a DeviceMemory, goal: Goal) -> Result<Compacted<'a>, Blocked> {
    let mut busy: FxHashSet<BlockId> = FxHashSet::default();
    for _ in 0..ATTEMPTS {
        let (movable, in_use) = Movable::of(memory, &busy);
        let costs = memory.carrier.costs();
        let plan = memory.plan(goal, &costs, &|block| movable.get(block).is_some());
        let compaction = plan.map_err(|obstacle| Blocked { obstacle, in_use })?;
        match seize(client, compaction.moves(), &movable) {
            Ok(seized) => return Ok(perform(client, memory, compaction, seized)),
            Err(block) => busy.insert(block),
        };
    }
    Err(Blocked { obstacle: Obstacle::Barriers { free: memory.stats().free_bytes }, in_use: true })
}

/// Buffers by their block's number.
#[derive(Default)]
struct Movable(Vec<Option<(BlockId, Arc<Buffer>)>>);

impl Movable {
    /// The buffers that may move now, but for those that were `busy` a moment ago; and whether a program or a transfer
    /// keeps others where they are.
    fn of(memory: &DeviceMemory, busy: &FxHashSet<BlockId>) -> (Self, bool) {
        let (mut movable, mut in_use) = (Self::default(), !busy.is_empty());
        for buffer in memory.residents.buffers() {
            let block = buffer.usage().peek(|body| body.held().map(|held| held.block().id));
            let Some(block) = block.filter(|block| !busy.contains(block)) else { continue };
            match buffer.usage().stay() {
                None => movable.add(block, buffer),
                Some(MoveBarrier::InUse | MoveBarrier::Gone) => in_use = true,
                Some(MoveBarrier::Referenced | MoveBarrier::AddressKnown | MoveBarrier::NotWhole) => {}
            }
        }
        (movable, in_use)
    }

    fn add(&mut self, block: BlockId, buffer: Arc<Buffer>) {
        if self.0.len() <= block.index() {
            self.0.resize(block.index() + 1, None);
        }
        self.0[block.index()] = Some((block, buffer));
    }

    fn get(&self, block: BlockId) -> Option<&Arc<Buffer>> {
        let (id, buffer) = self.0.get(block.index())?.as_ref()?;
        (*id == block).then_some(buffer)
    }
}

/// What would move if live buffers were moved to open a hole of `size`; `None` if that is not to be had, at this moment.
/// Nothing moves.
pub fn would_open(memory: &DeviceMemory, size: Bytes) -> Option<Bytes> {
    let (movable, _) = Movable::of(memory, &FxHashSet::default());
    let plan = memory.plan(Goal::Hole(size), &memory.carrier.costs(), &|block| movable.get(block).is_some());
    plan.ok().map(|compaction| compaction.moves().iter().map(|step| step.size).sum())
}

/// Takes the buffers of all moves in hand, or none of them.
///
/// # Errors
/// The block whose buffer is in use now.
fn seize(client: &Client, moves: &[Move], movable: &Movable) -> Result<Vec<LockedBuffer>, BlockId> {
    let mut seized: Vec<LockedBuffer> = Vec::with_capacity(moves.len());
    for step in moves {
        let look = |body: &Body| {
            let held = body.held()?;
            (held.block().id == step.block && client.is_open()).then(|| body.handle())
        };
        let taken = movable.get(step.block).and_then(|buffer| {
            let view = buffer.usage().seize(look)?;
            Some(LockedBuffer { buffer: Arc::clone(buffer), view })
        });
        match taken {
            Some(taken) => seized.push(taken),
            None => {
                seized.into_iter().for_each(|other| other.buffer.usage().release(|_| ()));
                return Err(step.block);
            }
        }
    }
    Ok(seized)
}

/// Makes the moves, in order. The first that fails ends the work.
fn perform<'a>(
    client: &Client,
    memory: &DeviceMemory,
    mut compaction: Compaction<'a>,
    seized: Vec<LockedBuffer>,
) -> Compacted<'a> {
    let since = TIMELINE.clock();
    let moves = compaction.moves().to_vec();
    let (mut buffers, mut bytes) = (0, Bytes::ZERO);
    let mut seized = seized.into_iter();
    for (step, LockedBuffer { buffer, view }) in moves.into_iter().zip(&mut seized) {
        // SAFETY: the buffer is seized and the destination out of circulation: nobody uses the bytes of either.
        let outcome = unsafe { relocate(client, memory, &mut compaction, &buffer, step) };
        match outcome {
            Ok(fresh) => {
                buffer.usage().release(|body| body.move_to(Raw(fresh), step.to));
                // SAFETY: the old view was the buffer's, which has the new one; nothing uses it.
                unsafe { views::destroy(client.engine, view.0) };
                buffers += 1;
                bytes += step.size;
            }
            Err(error) => {
                buffer.usage().release(|_| ());
                log::warn!("a compaction of {} ends early: {error}", memory.name());
                break;
            }
        }
    }
    seized.for_each(|other| other.buffer.usage().release(|_| ()));
    if let Some(since) = since.filter(|_| buffers > 0) {
        TIMELINE.note(memory.name(), since, || What::Moved { buffers, bytes });
    }
    Compacted { compaction, buffers, bytes }
}

/// Moves one buffer's bytes; its view at the new place.
///
/// # Errors
/// The device's, the engine's or the arena's; the bytes are where they were then.
///
/// # Safety
/// The buffer must be seized, and the destination be out of circulation.
unsafe fn relocate(
    client: &Client,
    memory: &DeviceMemory,
    compaction: &mut Compaction<'_>,
    buffer: &Buffer,
    step: Move,
) -> Result<*mut sys::PJRT_Buffer> {
    let shape = &buffer.shape;
    // Padding need not travel.
    let bytes = step.size.min(Bytes::new(shape.size as u64));
    // SAFETY: both places are blocks of the arena of this device, and nobody uses them: the caller's promise.
    unsafe { memory.carrier.relocate(step.from, step.to, bytes)? };
    let to = step.to.get() as usize;
    // SAFETY: the new place is aligned and as large as the old one; it is freed after the view, as the old one was.
    let view = unsafe { client.view(buffer.memory, to, shape) };
    let view = view.map_err(|error: EngineError| Error::internal(error.message()));
    let committed = view.and_then(|view| match compaction.commit() {
        Ok(()) => Ok(view),
        Err(error) => {
            // SAFETY: the view was just made and nobody has seen it.
            unsafe { views::destroy(client.engine, view) };
            Err(error)
        }
    });
    if committed.is_err() {
        // SAFETY: as above, the other way round.
        unsafe { memory.carrier.relocate(step.to, step.from, bytes)? };
    }
    committed
}

/// Moves everything that can move, so that what is free is in as few pieces as possible.
pub fn compact(client: &Client, memory: &DeviceMemory) -> Report {
    let start = Instant::now();
    client.settle();
    let hole_before = memory.stats().largest_free_block;
    let deadline = start + Duration::from_secs(10);
    let (buffers, bytes) = loop {
        match carry_out(client, memory, Goal::Pack) {
            Ok(opened) => break (opened.buffers, opened.bytes),
            Err(Blocked { obstacle: Obstacle::UnderWay, .. }) if Instant::now() < deadline => {
                memory.wait_for_compaction(deadline)
            }
            Err(_) => break (0, Bytes::ZERO),
        }
    };
    Report {
        buffers,
        bytes,
        time: start.elapsed(),
        hole_before,
        hole_after: memory.stats().largest_free_block,
        pinned: pinned(memory),
    }
}

/// *Migrate on pin*: before the address of an idle buffer is given to an outsider, moves it out of the way of those that
/// move, if it is small enough for nobody to notice. Otherwise pinned blocks divide the memory for as long as they
/// live.
pub fn migrate(client: &Client, buffer: &Arc<Buffer>) {
    if buffer.usage().stay() == Some(MoveBarrier::InUse) {
        // Perhaps only by what is done.
        client.in_flight.sweep(client.engine);
    }
    let idle = buffer.usage().stay().is_none();
    let place = buffer.usage().peek(|body| body.held().map(|held| (Arc::clone(held.home()), held.block())));
    let Some((memory, block)) = place.filter(|(_, block)| idle && block.size <= PIN_BYTES) else { return };
    let (compaction, movable) = match memory.plan_pin(block.id) {
        Ok(compaction) => {
            let mut movable = Movable::default();
            movable.add(block.id, Arc::clone(buffer));
            (compaction, movable)
        }
        // It lies well, or cannot lie better: most often a scalar in its slot.
        Err(_) if !memory.stands_amid(block.id) => return,
        // No hole up there holds it: others make way, if that is cheap too.
        Err(_) => {
            let (movable, _) = Movable::of(&memory, &FxHashSet::default());
            let costs = memory.carrier.costs();
            let may_move = |block| movable.get(block).is_some();
            let Ok(compaction) = memory.plan_pin_making_way(block.id, &costs, PIN_NANOS, &may_move) else { return };
            (compaction, movable)
        }
    };
    if let Ok(seized) = seize(client, compaction.moves(), &movable) {
        drop(perform(client, &memory, compaction, seized));
    }
}

impl Body {
    /// The buffer lies elsewhere now, and this is its view.
    fn move_to(&mut self, view: Raw<sys::PJRT_Buffer>, address: crate::units::Address) {
        self.set_handle(view);
        if let Storage::Arena(held) = &mut self.storage {
            held.moved_to(address);
        }
    }
}
