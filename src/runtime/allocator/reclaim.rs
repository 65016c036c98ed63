//! The reclaim loop: what happens when an arena has no room at once.
//!
//! ```text
//!  1 drain     operations that are done are reaped, caches are cleared; nothing is waited for but the ends of programs
//!              whose results are there
//!  2 wait      for blocks that are retired, and scratch of programs under way, only if they alone make room
//!    trim      what the engine's pool keeps for the next program, where both share the memory (`admission.rs`); what
//!              programs under way have of it, when they end
//!  3 compact   open a hole (with PJRT_ARENA_COMPACT, which the strategy tpu turns on); or, if there is a hole but no
//!              memory for it, pack: the arrays share fewer pieces of memory then, and the others go where the hole is
//!    spill     arrays that no program uses go to memory of the host, where there is a tier for them (`spill.rs`)
//!  4 wait      for the next program to end, or launch to begin, only if their arrays could make the difference; then
//!              again from 1
//!  5 error     with the numbers, what could not move, what holds the memory, and what would help (`oom.rs`)
//! ```
//!
//! The order is the TPU runtime's (XLA, `docs/errors/error_0100.md`): queued frees first, then defragmentation. The
//! sum of all waits is bounded (`in_flight/deadline.rs`). With nothing under way nothing is waited for. A launch that
//! holds memory goes through it without the waits first.

use std::{
    cell::Cell,
    ops::ControlFlow::{Break, Continue},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Code, Error, Result},
    memory::{Block, Exhaustion, Goal, Obstacle, OutOfMemory, Provenance, Request, Tried},
    report::snapshot::OriginKind,
    runtime::{
        allocator::{
            call_needs::CallNeeds,
            compaction::{self, Compacted, InUse},
            core::Allocator,
            group::{self, Asked},
            prospects::{can_be_had, may_be_had_after_moves},
            shared::{discard_holes, take_back},
            spill,
        },
        device_memory::{DeviceMemory, GroupPart, origins::ORIGINS},
        in_flight::{Round, deadline::Deadline},
    },
    units::Bytes,
};

/// How often an allocation tries again because another thread was faster.
pub const ROUNDS: usize = 1000;

/// How long to wait for a program that runs in its caller's thread: nothing tells when it ends.
const SHORT_WHILE: Duration = Duration::from_micros(100);

/// After so long the loop begins again, whether anything is known to have changed or not.
const LONG_WHILE: Duration = Duration::from_millis(50);

/// Whether an allocation may wait for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPolicy {
    /// It waits for operations under way, and for launches that want arrays.
    Waits,
    /// The same but for the launches: a launch allocates, which wants arrays itself, and looks after others.
    LaunchWaits,
    /// It waits for nothing, because its caller holds memory that others may wait for.
    None,
}

/// An array, or a program's scratch, found no room.
pub struct NoRoom {
    /// The numbers of that instant; and the blocks, where this was the last attempt.
    pub found: Exhaustion,
    /// What the room was for.
    pub provenance: Provenance,
    /// What the whole call needs of the memory, where this was the last attempt.
    pub call: Box<CallNeeds>,
    /// How the search ended.
    pub end: SearchEnd,
}

/// How the search for room ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnd {
    /// All was tried; what compaction did, where it is on.
    InVain(Option<Tried>),
    /// It did not begin: what the call needs can never be had.
    Never,
    /// Nothing was waited for.
    GaveUp,
    /// A signal ended it after so long.
    Interrupted(Duration),
}

/// A block with memory behind it.
///
/// # Errors
/// The numbers.
#[inline]
pub fn take(memory: &DeviceMemory, request: Request) -> Result<Block, OutOfMemory> {
    filled(memory, memory.allocate(request)?)
}

/// Populates a block with memory; frees it if there is none.
///
/// # Errors
/// The numbers.
#[inline]
fn filled(memory: &DeviceMemory, block: Block) -> Result<Block, OutOfMemory> {
    // The system populates memory of the host.
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

/// Populates a block with memory from behind holes: blocks go where they fit best, not where memory is.
///
/// # Errors
/// `refusal`, or the device's next one.
#[cold]
fn fill_from_holes(memory: &DeviceMemory, block: Block, refusal: Error) -> Result<Block> {
    // The most that the block can lack.
    if refusal.code != Code::ResourceExhausted || discard_holes(memory, block.size).is_zero() {
        return Err(refusal);
    }
    memory.carrier.populate(block.address, block.size).map(|()| block)
}

/// A block for `request`, which found no room at once, and which is a part of what the `call` needs.
///
/// # Errors
/// The numbers.
#[cold]
pub fn find_room(
    allocator: &Allocator,
    memory: &DeviceMemory,
    request: Request,
    wait: WaitPolicy,
    call: &dyn Fn() -> CallNeeds,
) -> Result<Block, NoRoom> {
    let Request { size, provenance } = request;
    let deadline = allocator.deadline().telling(|waited| {
        let what = ORIGINS.label(provenance.origin);
        log::info!("{size} on {} for {what}: waits for memory, for {waited:.1?} so far", memory.name());
    });
    let waits = wait != WaitPolicy::None;
    let mut own_scratch = Bytes::ZERO;
    let mut can_be_had = || {
        let call = call();
        if call.had.scratch {
            own_scratch = call.needs.scratch;
        }
        can_be_had(allocator, memory, call)
    };
    if (waits || memory.tier.is_some()) && !can_be_had() {
        let (found, call) = (last_attempt(memory, request, None), Box::new(call()));
        return found.map_err(|found| NoRoom { found, provenance, call, end: SearchEnd::Never });
    }
    if !waits {
        return find_room_at_once(allocator, &deadline, memory, request, call).map_err(|numbers| {
            let found = Exhaustion { numbers: Box::new(numbers), blocks: Vec::new() };
            let end = deadline.interrupted().map_or(SearchEnd::GaveUp, SearchEnd::Interrupted);
            NoRoom { found, provenance, call: Box::default(), end }
        });
    }
    let hole_before = memory.stats().largest_free_block;
    let moved = Cell::new((0, Bytes::ZERO));
    let found = reclaim(
        &Search { allocator, deadline: &deadline, memory, goal: Goal::Hole(size), wait, call },
        |at_most| filled(memory, memory.allocate_waiting(request, own_scratch, at_most)?),
        |compacted| {
            let (blocks, bytes) = moved.get();
            moved.set((blocks + compacted.buffers, bytes + compacted.bytes));
            filled(memory, compacted.allocate(request)?)
        },
        |shortage| allocator.compacts() && shortage.in_prospect() >= size,
        |shortage| shortage.refusal.is_some(),
    );
    found.or_else(|numbers| {
        let found = last_attempt(memory, request, numbers.refusal);
        found.map_err(|found| {
            let (blocks, bytes) = moved.get();
            let tried = allocator.compacts().then_some(Tried { hole_before, blocks, bytes });
            let end = deadline.interrupted().map_or(SearchEnd::InVain(tried), SearchEnd::Interrupted);
            NoRoom { found, provenance, call: Box::new(call()), end }
        })
    })
}

/// A block for `request` after all, unless the device has refused memory; else the numbers and the blocks of one
/// instant.
fn last_attempt(
    memory: &DeviceMemory,
    request: Request,
    refusal: Option<Box<Error>>,
) -> std::result::Result<Block, Exhaustion> {
    if refusal.is_some() {
        return Err(memory.exhaustion(request.size, refusal));
    }
    let block = memory.allocate_at_last(request)?;
    filled(memory, block).map_err(|numbers| memory.exhaustion(request.size, numbers.refusal))
}

/// As [`find_room`], where nothing is waited for: what the engine's pool keeps is taken back, then arrays are
/// compacted, then spilled, where there is a tier for them.
///
/// # Errors
/// The numbers.
fn find_room_at_once(
    allocator: &Allocator,
    deadline: &Deadline<'_>,
    memory: &DeviceMemory,
    request: Request,
    call: &dyn Fn() -> CallNeeds,
) -> std::result::Result<Block, OutOfMemory> {
    allocator.drain();
    let retake = || {
        GroupPart::forget_refusal();
        take(memory, request)
    };
    let mut found = retake();
    // Without a tier the launch is about to wait, and does all this then.
    if memory.tier.is_none() {
        return found;
    }
    let (mut compacted, mut packed) = (!allocator.compacts(), memory.on_host || !allocator.compacts());
    for _ in 0..ROUNDS {
        let Err(shortage) = &found else { break };
        let refused = shortage.refusal.is_some();
        if take_back(allocator, memory, refused) {
            found = retake();
        } else if refused && !std::mem::replace(&mut packed, true) {
            drop(compaction::carry_out(memory, Goal::Pack));
            found = retake();
        } else if !refused && !std::mem::replace(&mut compacted, true) {
            GroupPart::forget_refusal();
            let goal = Goal::Hole(request.size);
            if !may_be_had_after_moves(allocator, memory, call, goal) {
                continue;
            }
            let Ok(compacted) = compaction::carry_out(memory, goal) else { continue };
            found = compacted.allocate(request).and_then(|block| filled(memory, block));
        } else if group::is_broken() || group::others_owe(memory) {
            // What others owe is waited for later, when nothing is held.
            break;
        } else if spilled(allocator, deadline, memory, Goal::Hole(request.size), refused && !memory.on_host) {
            compacted = !allocator.compacts();
            found = retake();
        } else {
            break;
        }
    }
    found
}

/// Reserves the low end of the pool for a program's scratch, for which there was no room at once; or another hole, if
/// a block at the low end stays where it is. It is a part of what the `call` needs.
///
/// # Errors
/// The numbers.
#[cold]
pub fn find_scratch(
    allocator: &Allocator,
    memory: &DeviceMemory,
    bytes: Bytes,
    call: &dyn Fn() -> CallNeeds,
) -> Result<(), NoRoom> {
    let deadline = allocator.deadline().telling(|waited| {
        let name = memory.name();
        log::info!("{bytes} on {name} for a program's scratch: waits for memory, for {waited:.1?} so far");
    });
    let provenance = Provenance { origin: OriginKind::Scratch.origin(), ..Provenance::default() };
    if !can_be_had(allocator, memory, call()) {
        let found = memory.begin_scratch_at_last(bytes);
        return found.map_err(|found| NoRoom { found, provenance, call: Box::new(call()), end: SearchEnd::Never });
    }
    let hopeful = |shortage: &OutOfMemory| shortage.in_prospect() >= bytes;
    let search = |goal| Search { allocator, deadline: &deadline, memory, goal, wait: WaitPolicy::LaunchWaits, call };
    let bottom = reclaim(
        &search(Goal::Bottom(bytes)),
        |_| memory.begin_scratch(bytes),
        |compacted| compacted.begin_scratch(bytes),
        // What an outsider holds is not waited for.
        |shortage| hopeful(shortage) && !memory.is_bottom_pinned(bytes),
        |_| false,
    );
    let found = bottom.or_else(|_| {
        reclaim(
            &search(Goal::Hole(bytes)),
            |_| memory.begin_scratch_anywhere(bytes),
            |compacted| compacted.begin_scratch_anywhere(bytes),
            hopeful,
            |_| false,
        )
    });
    found.or_else(|_| memory.begin_scratch_at_last(bytes)).map_err(|found| {
        let end = deadline.interrupted().map_or(SearchEnd::InVain(None), SearchEnd::Interrupted);
        NoRoom { found, provenance, call: Box::new(call()), end }
    })
}

/// What the loop looks for, and how long.
struct Search<'a> {
    allocator: &'a Allocator,
    deadline: &'a Deadline<'a>,
    memory: &'a DeviceMemory,
    goal: Goal,
    wait: WaitPolicy,
    /// What the call needs of which this is a part.
    call: &'a dyn Fn() -> CallNeeds,
}

impl Search<'_> {
    /// Whether arrays were spilled to make room for `goal`, or memory for a hole that `lacks_memory`.
    fn spills(&self, goal: Goal, lacks_memory: bool) -> bool {
        spilled(self.allocator, self.deadline, self.memory, goal, lacks_memory)
    }

    /// Whether moves for the goal leave what the call needs to be had.
    fn may_move(&self) -> bool {
        may_be_had_after_moves(self.allocator, self.memory, self.call, self.goal)
    }

    /// Whether launches want arrays that may go when they have begun.
    fn launches_want(&self) -> bool {
        self.wait == WaitPolicy::Waits && self.allocator.wanting.load(Ordering::Relaxed) > 0
    }
}

/// The loop: `attempt` may wait so long for retired blocks, `take` uses what a compaction opened, `hopeful` says
/// whether there would be enough once all that is under way has ended, and `refused` whether there is a hole, but no
/// memory for it.
fn reclaim<T, E>(
    search: &Search<'_>,
    attempt: impl Fn(Duration) -> Result<T, E>,
    take: impl Fn(Compacted<'_>) -> Result<T, E>,
    hopeful: impl Fn(&E) -> bool,
    refused: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let &Search { allocator, deadline, memory, goal, .. } = search;
    let mut rounds = 0..ROUNDS;
    let (mut packed, mut late) = (false, !allocator.compacts());
    let asked = Asked::default();
    allocator.in_flight.wait_until(deadline, |round: &Round<'_>| {
        deadline.look_for_signals();
        // Other threads may have filled the caches since.
        allocator.clear_caches();
        let (since, at_most) = (Instant::now(), deadline.left());
        GroupPart::forget_refusal();
        let shortage = match attempt(at_most) {
            Ok(found) => return Break(Ok(found)),
            Err(shortage) => shortage,
        };
        if group::is_broken() {
            return Break(Err(shortage));
        }
        let over = rounds.next().is_none() || deadline.is_over();
        // Taking back what the engine's pool keeps for the next program is cheaper than anything below.
        if !over && take_back(allocator, memory, refused(&shortage)) {
            return Continue(());
        }
        // The attempt waited for blocks whose programs take longer. From here on the deadline bounds the loop where a
        // wait is part of it, not the number of rounds: other threads' programs are many and short.
        if !over && since.elapsed() >= at_most {
            rounds = 0..ROUNDS;
            return Continue(());
        }
        if !over && refused(&shortage) && memory.lends_scratch() && round.wait() {
            rounds = 0..ROUNDS;
            return Continue(());
        }
        // Blocks whose programs do not end in time may be left where they are, if others move.
        if over && (deadline.interrupted().is_some() || std::mem::replace(&mut late, true)) {
            return Break(Err(shortage));
        }
        // What is in use, or wanted, when an attempt begins is waited for, whether that ends before the attempt or not.
        let (before, looking, launches_want) = (memory.ends(), Instant::now(), search.launches_want());
        let mut goal = goal;
        // On a GPU there may be a hole without memory behind it. Moves help once: when all is packed.
        let lacks_memory = refused(&shortage) && !memory.on_host;
        let moves = allocator.compacts() && if lacks_memory { !packed } else { search.may_move() };
        let in_use = if moves {
            if lacks_memory {
                (goal, packed) = (Goal::Pack, true);
            }
            let blocked = match compaction::carry_out(memory, goal) {
                // If `take` fails, another thread was faster, a move failed, or there is no memory all the same.
                Ok(compacted) => return take(compacted).map_or(Continue(()), |found| Break(Ok(found))),
                Err(blocked) => blocked,
            };
            if blocked.obstacle == Obstacle::UnderWay {
                memory.wait_for_compaction(Instant::now() + deadline.left());
                return Continue(());
            }
            blocked.in_use
        } else {
            // Where arrays stay where they are, they can be spilled when their use has ended.
            memory.tier.as_ref().map_or_else(InUse::default, |_| InUse::of(memory))
        };
        let spills = || search.spills(goal, lacks_memory);
        if refused(&shortage) && asked.wait(memory, deadline, spills) || spills() {
            rounds = 0..ROUNDS;
            return Continue(());
        }
        if !(hopeful(&shortage) || spill::could_make_room(memory, goal)) {
            return Break(Err(shortage));
        }
        // The operation that completes next may free its arrays, or let them move.
        if !round.wait() {
            if in_use.is_empty() && !launches_want {
                return Break(Err(shortage));
            }
            // A plan keeps the arena's lock: about half of the time at most goes into plans.
            let least = looking.elapsed().min(LONG_WHILE);
            wait_for_change(round, least, || memory.ends() != before || in_use.has_changed());
        }
        (rounds, packed) = (0..ROUNDS, false);
        Continue(())
    })
}

/// Whether arrays were spilled to make room for `goal`, or, where there is a hole that `lacks_memory`, so many bytes of
/// them that their memory may be enough.
fn spilled(
    allocator: &Allocator,
    deadline: &Deadline<'_>,
    memory: &DeviceMemory,
    goal: Goal,
    lacks_memory: bool,
) -> bool {
    let goal = match goal {
        Goal::Hole(bytes) if lacks_memory => Goal::Bottom(bytes),
        goal => goal,
    };
    let make_room = || spill::make_room_until(deadline, allocator, memory, Some(goal));
    memory.tier.is_some() && goal != Goal::Pack && !make_room().is_zero()
}

/// Waits until `changed`, at least `least`, and no longer than [`LONG_WHILE`] beyond: what a turn looks at does not
/// grow with the number of blocks, as an attempt and a plan do.
fn wait_for_change(round: &Round<'_>, least: Duration, changed: impl Fn() -> bool) {
    let start = Instant::now();
    loop {
        thread::sleep(SHORT_WHILE);
        round.reap();
        let waited = start.elapsed();
        if waited >= least && (waited >= least + LONG_WHILE || changed() || round.deadline.is_over()) {
            return;
        }
    }
}
