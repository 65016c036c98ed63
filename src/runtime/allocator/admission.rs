//! Whether there is memory for what a program takes beside its arrays, and for arrays that the engine makes itself,
//! before the engine is called.
//!
//! ```text
//!  enter     what it takes was granted to the engine's pool before: two atomic operations        the usual case
//!  grant     the limit has room beside the arena's blocks
//!  trim      the arena gives memory behind its holes back to the device
//!  drain     operations that are done are reaped, caches are cleared; then again
//!  compact   holes become larger than the pieces that memory goes back in, where compaction is on
//!  ask       other processes, where the device is shared
//!  wait      for programs to end, whose arrays may be dropped already
//!  replace   the execution's own destinations, if they stand in the way: they are allocated before, and cannot move
//!            (`device_launch.rs`)
//!  error     RESOURCE_EXHAUSTED, and nothing was consumed
//! ```
//!
//! Arrays that the engine makes in a GPU's memory (copies of what a program still writes, elements of less than a
//! byte, arrays that come in pieces) lie in the same pool, as long as they live: they are admitted like programs, and
//! each program after them asks for its own scratch and their bytes.
//!
//! Where the engine has a fixed share instead of a pool, nothing can be granted to it: what its own arrays have of
//! the share may be freed when programs end, and is waited for.
//!
//! Only on devices whose engine takes scratch from the same memory (GPUs). There the engine reports a lack of scratch
//! after it has consumed the arguments, on the results' events (XLA `common_pjrt_client.cc`, "Phase 2: Launch. It
//! cannot fail"). The opposite direction is [`take_back`](super::shared::take_back): arrays that find no memory take
//! what is granted, while no program is being admitted.

use std::{
    fmt,
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use crate::{
    error::{Code, Error, Result},
    memory::{
        Goal,
        budget::{Charge, Entered},
    },
    runtime::{
        allocator::{
            compaction,
            core::Allocator,
            group::{self, Asked},
            reclaim::ROUNDS,
            shared::{observe, trim},
        },
        buffer::storage::Counted,
        device_memory::{DeviceMemory, GroupPart, SharedPool, Shortfall},
    },
    units::Bytes,
};

/// Admits a program of this name and with so much scratch, on a device whose engine has `engine_bytes` in arrays of
/// its own.
///
/// # Errors
/// RESOURCE_EXHAUSTED, naming the program.
#[inline]
pub fn admit<'a>(
    allocator: &Allocator,
    memory: &'a DeviceMemory,
    engine_bytes: &AtomicI64,
    (program, scratch): (&str, Bytes),
) -> Result<Option<Entered<'a>>> {
    let Some(shared) = &memory.shared else { return Ok(None) };
    match shared.budget.enter(scratch + engine_holds(engine_bytes)) {
        Some(entered) => Ok(Some(entered)),
        None => wait_for_admission(allocator, memory, shared, engine_bytes, Demand::Program(scratch))
            .map(Some)
            .map_err(|error| {
                error.context(&format!(
                    "Error loading program '{program}', which takes {} of scratch",
                    scratch + engine_holds(engine_bytes)
                ))
            }),
    }
}

/// Room for an array that the engine is about to make in the own memory of a device.
///
/// # Errors
/// RESOURCE_EXHAUSTED with the numbers.
pub fn admit_array<'a>(
    allocator: &Allocator,
    memory: &'a DeviceMemory,
    engine_bytes: &Arc<AtomicI64>,
    bytes: Bytes,
) -> Result<Admission<'a>> {
    let Some(shared) = &memory.shared else { return Ok(Admission::Unlimited) };
    // Counted before the check: two threads that do this at once do not take the same room.
    let counted = Counted::new(Arc::clone(engine_bytes), bytes.get() as usize);
    let entered = match shared.budget.enter(engine_holds(engine_bytes)) {
        Some(entered) => entered,
        None => wait_for_admission(allocator, memory, shared, engine_bytes, Demand::Array(bytes)).map_err(|error| {
            error.context(&format!(
                "Out of memory while trying to allocate {bytes} ({} bytes) on {} [the engine's own]",
                bytes.get(),
                memory.name()
            ))
        })?,
    };
    Ok(Admission::Pool { _counted: counted, _entered: entered })
}

#[cold]
fn wait_for_admission<'a>(
    allocator: &Allocator,
    memory: &DeviceMemory,
    shared: &'a SharedPool,
    engine_bytes: &AtomicI64,
    demand: Demand,
) -> Result<Entered<'a>> {
    match shared.budget.share() {
        None => grant_memory(allocator, memory, shared, engine_bytes, demand),
        Some(share) => wait_for_share(allocator, shared, engine_bytes, demand, share),
    }
}

/// Whether a program that was not admitted may be if its destinations, which are among the arena's blocks, lie
/// elsewhere: blocks and scratch would fit the limit, but not with the holes beside these blocks whose memory cannot
/// be taken out.
#[cold]
pub fn may_admit_elsewhere(memory: &DeviceMemory, engine_bytes: &AtomicI64, scratch: Bytes) -> bool {
    let stats = memory.stats();
    let blocks = stats.pool_bytes.saturating_sub(stats.free_bytes);
    let wanted = scratch + engine_holds(engine_bytes);
    memory.shared.as_ref().is_some_and(|shared| shared.budget.could_grant(wanted, blocks))
}

#[cold]
fn grant_memory<'a>(
    allocator: &Allocator,
    memory: &DeviceMemory,
    shared: &'a SharedPool,
    engine_bytes: &AtomicI64,
    demand: Demand,
) -> Result<Entered<'a>> {
    let deadline = allocator.deadline();
    let mut rounds = 0..ROUNDS;
    let mut packed = false;
    let mut first = true;
    let asked = Asked::default();
    let granted = allocator.in_flight.wait_until(&deadline, |round| {
        // The pool may not be able to join its pieces: with more than the last program needed, it would keep both.
        if std::mem::take(&mut first) && matches!(demand, Demand::Program(_)) && observe(allocator, shared) {
            shared.trim_to(Bytes::ZERO);
        }
        let bytes = demand.wants(engine_bytes);
        GroupPart::forget_refusal();
        let shortfall = match shared.grant(bytes) {
            Err(error) => return Break(Err(error)),
            Ok(Some(shortfall)) => shortfall,
            Ok(None) => {
                // If it fails, an array took the memory back at this moment.
                if let Some(entered) = shared.budget.enter(bytes) {
                    return Break(Ok(entered));
                }
                if rounds.next().is_none() || deadline.is_over() {
                    let why = "arrays take the memory back as fast as it is granted";
                    return Break(Err(Error::new(Code::ResourceExhausted, why)));
                }
                return Continue(());
            }
        };
        if group::is_broken() {
            return Break(Err(exhausted(memory, demand, &shortfall)));
        }
        if !trim(memory, shortfall.missing()).is_zero() {
            return Continue(());
        }
        allocator.drain();
        if !trim(memory, shortfall.missing()).is_zero() {
            return Continue(());
        }
        if allocator.compacts() && !std::mem::replace(&mut packed, true) {
            drop(compaction::carry_out(memory, Goal::Pack));
            return Continue(());
        }
        let may_ask = match &shortfall {
            Shortfall::Limit(over) => over.others.is_some(),
            Shortfall::Device { .. } => true,
        };
        if may_ask && asked.wait(memory, &deadline, || false) {
            packed = false;
            let over = deadline.is_over();
            return if over { Break(Err(exhausted(memory, demand, &shortfall))) } else { Continue(()) };
        }
        if !round.wait() {
            return Break(Err(exhausted(memory, demand, &shortfall)));
        }
        packed = false;
        Continue(())
    });
    granted.map_err(|error| deadline.explain(error))
}

/// Admits what takes of the engine's fixed share, once the engine's own arrays have so little of it.
fn wait_for_share<'a>(
    allocator: &Allocator,
    shared: &'a SharedPool,
    engine_bytes: &AtomicI64,
    demand: Demand,
    share: Bytes,
) -> Result<Entered<'a>> {
    let deadline = allocator.deadline();
    let entered = allocator.in_flight.wait_until(&deadline, |round| {
        allocator.drain();
        let wanted = demand.wants(engine_bytes);
        if let Some(entered) = shared.budget.enter(wanted) {
            return Break(Ok(entered));
        }
        if demand.bytes() <= share && round.wait() {
            return Continue(());
        }
        Break(Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "Out of memory for {demand}: programs' scratch and the engine's own arrays have {share}, of which such arrays \
                 hold {}; gpu_scratch={} divides the limit, as the engine has no memory pools on this GPU",
                wanted.saturating_sub(demand.bytes()),
                allocator.settings.gpu_scratch
            ),
        )))
    });
    entered.map_err(|error| deadline.explain(error))
}

/// Room for an array that the engine makes. Until the array exists, its memory is neither granted to others nor taken
/// back.
pub enum Admission<'a> {
    /// Memory without a limit.
    Unlimited,
    /// A part of the host's pinned memory, as long as the array lives.
    Pinned(Charge),
    /// A part of the engine's pool. It counts among the engine's own arrays from before it was admitted.
    Pool {
        /// Until the array counts itself.
        _counted: Counted,
        /// Until the engine has the memory.
        _entered: Entered<'a>,
    },
}

impl Admission<'_> {
    /// Counts the array, which takes `bytes` in the end, on `total`, and keeps its part of a limit.
    pub fn count(self, total: Arc<AtomicI64>, bytes: usize) -> Counted {
        match self {
            Self::Pinned(mut charge) => {
                charge.trim_to(Bytes::new(bytes as u64));
                Counted::charged(total, bytes, Some(charge))
            }
            Self::Unlimited | Self::Pool { .. } => Counted::new(total, bytes),
        }
    }
}

/// What wants memory of the engine's pool.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// A program with so much scratch.
    Program(Bytes),
    /// An array of so many bytes, which count among the engine's own arrays already.
    Array(Bytes),
}

impl Demand {
    /// The bytes that it takes by itself.
    fn bytes(self) -> Bytes {
        let (Self::Program(bytes) | Self::Array(bytes)) = self;
        bytes
    }

    /// The bytes to be granted for it, with those of the engine's own arrays.
    fn wants(self, engine_bytes: &AtomicI64) -> Bytes {
        match self {
            Self::Program(scratch) => scratch + engine_holds(engine_bytes),
            Self::Array(_) => engine_holds(engine_bytes),
        }
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Program(_) => "the scratch of programs",
            Self::Array(_) => "arrays of the engine's own",
        })
    }
}

/// The bytes of the engine's own arrays in its pool.
fn engine_holds(engine_bytes: &AtomicI64) -> Bytes {
    Bytes::new(u64::try_from(engine_bytes.load(Ordering::Relaxed)).unwrap_or(0))
}

fn exhausted(memory: &DeviceMemory, demand: Demand, shortfall: &Shortfall) -> Error {
    let others = memory.group.as_ref().map_or_else(String::new, |part| group::details(part));
    Error::new(Code::ResourceExhausted, format!("Out of memory for {demand}: {shortfall}{others}"))
}
