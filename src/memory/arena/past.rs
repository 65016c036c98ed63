//! What happened in an arena, done again in another one.
//!
//! ```text
//!  history   take 1, take 2, keep scratch, free 1, take 3, pin 3, ...   and who moved, when the floor was lowered
//!  again     take 1, take 2, keep scratch, free 1, take 3, pin 3, ...   what has to move, or to be lowered, there
//! ```
//!
//! The steps are those that others ask for. What the arena did to serve them it decides anew.

use std::{cell::OnceCell, iter};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    memory::{
        arena::{
            core::Arena,
            rehearsal::{Needs, Rehearsal},
            state::State,
        },
        block_table::BlockId,
        compaction::costs::Costs,
        history::{Event, EventKind},
        provenance::Provenance,
    },
    units::Bytes,
};

/// Compactions, each by so many blocks, that are done again: a tenth of a second's work.
const MOST_PLANS: u64 = 1 << 16;

/// What happened in an arena since its start.
pub(super) struct Past(Vec<Step>);

/// One step of it, with blocks by their numbers.
enum Step {
    /// A block came, for the program's run with this number; 0 is none.
    Take {
        block: u64,
        size: Bytes,
        run: u32,
    },
    Free(u64),
    /// Its owner let go of it, and a program may use it still: it does not move.
    Retire(u64),
    /// A block became another one in the same place.
    Rename {
        from: u64,
        to: u64,
        run: u32,
    },
    Pin(u64),
    Unpin(u64),
    /// So much is kept for scratch.
    Scratch(Bytes),
    /// So much is kept until now, for a program that is under way.
    UnderWay(Bytes),
}

/// How blocks move: at which costs, and which of them could at the end.
pub(super) type Moves<'a> = (&'a Costs, &'a FxHashSet<u64>);

impl Past {
    /// What happened but for calls that failed, such as this `run`, which needs so much `scratch`: what they had was
    /// freed again. `None` where the history does not know all of it, or much has moved. O(events).
    pub(super) fn of(state: &State, run: u32, scratch: Bytes) -> Option<Self> {
        let events = state.history.since(0)?;
        let of_kind = |kind| events.iter().filter(move |event| event.kind() == kind);
        if of_kind(EventKind::Compaction).count() as u64 * u64::from(state.table.len()) > MOST_PLANS {
            return None;
        }
        let failed = of_kind(EventKind::OutOfMemory).map(|event| event.step).chain([run]);
        let failed: FxHashSet<u32> = failed.filter(|&run| run != 0).collect();
        // Blocks of theirs.
        let mut forgotten = FxHashSet::default();
        let mut steps = Vec::with_capacity(events.len());
        let mut before: Option<&Event> = None;
        let mut under_way = state.scratch.under_way.iter().peekable();
        let mut begun = |number| under_way.next_if(|&&(_, since)| since <= number).map(|&(bytes, _)| bytes);
        for (number, event) in (0..).zip(&events) {
            steps.extend(iter::from_fn(|| begun(number)).map(Step::UnderWay));
            let (block, run) = (event.block, event.step);
            match event.kind() {
                EventKind::Allocate | EventKind::OutOfMemory if failed.contains(&run) => {
                    forget_scratch(&mut steps);
                    forgotten.insert(block);
                }
                EventKind::Free | EventKind::Retire if forgotten.contains(&block) => {}
                EventKind::Allocate => {
                    let in_place = before.filter(|before| {
                        before.kind() == EventKind::Free
                            && before.address == event.address
                            && before.time() == event.time()
                    });
                    let size = Bytes::new(event.other);
                    match (in_place, steps.last()) {
                        // It takes another part of the pool where it is.
                        (Some(_), Some(&Step::Free(gone))) if gone == block => _ = steps.pop(),
                        (Some(before), Some(&Step::Free(from))) if before.bytes == event.bytes => {
                            steps.pop();
                            steps.push(Step::Rename { from, to: block, run });
                        }
                        _ => steps.push(Step::Take { block, size, run }),
                    }
                }
                EventKind::Free => steps.push(Step::Free(block)),
                EventKind::Retire => steps.push(Step::Retire(block)),
                EventKind::Pin => steps.push(Step::Pin(block)),
                EventKind::Unpin => steps.push(Step::Unpin(block)),
                EventKind::Scratch if event.bytes.get() > event.other => steps.push(Step::Scratch(event.bytes)),
                _ => {}
            }
            before = Some(event);
        }
        steps.extend(iter::from_fn(|| begun(u64::MAX)).map(Step::UnderWay));
        if !scratch.is_zero() {
            forget_scratch(&mut steps);
        }
        Some(Self(steps))
    }

    /// How many steps it has.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Whether all of it finds room in an `arena` in which nothing has happened, and then `needs`: at once, or by
    /// moves. What programs under way use stays.
    pub(super) fn fits(&self, arena: &Arena, needs: &Needs, moves: Option<Moves<'_>>) -> bool {
        let mut again = Again::new(Rehearsal::new(arena, moves.map(|(costs, _)| costs)));
        self.0.iter().all(|step| again.step(step)) && again.fits(needs, moves.map(|(_, may_move)| may_move))
    }
}

/// Forgets the scratch of a call that failed, and of each time that it was tried: a launch keeps it right before its
/// first array comes. What programs under way need stays.
fn forget_scratch(steps: &mut Vec<Step>) {
    let is_scratch = |step: &&Step| matches!(step, Step::Scratch(_) | Step::UnderWay(_));
    let last = steps.split_off(steps.len() - steps.iter().rev().take_while(is_scratch).count());
    steps.extend(last.into_iter().filter(|step| matches!(step, Step::UnderWay(_))));
}

/// An arena in which the past happens again.
struct Again<'a> {
    rehearsal: Rehearsal<'a>,
    /// The blocks by their numbers in the history, with the program's run that they are for.
    blocks: FxHashMap<u64, (BlockId, u32)>,
    /// The scratch of a launch whose results are about to come, and the launch, once it is known.
    launch: Option<(Bytes, Option<u32>)>,
}

impl<'a> Again<'a> {
    fn new(rehearsal: Rehearsal<'a>) -> Self {
        Self { rehearsal, blocks: FxHashMap::default(), launch: None }
    }

    /// Whether a step found room.
    fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::Take { block, size, run } => {
                self.begin_run(run);
                // Results of a launch that is being prepared stay.
                let own = OnceCell::new();
                let own = || own.get_or_init(|| self.blocks_of(run));
                let taken = self.rehearsal.take(size, &|other| run == 0 || !own().contains(&other));
                self.blocks.extend(taken.map(|id| (block, (id, run))));
                taken.is_some()
            }
            Step::Free(block) => self.blocks.remove(&block).is_none_or(|(id, _)| self.rehearsal.arena.free(id).is_ok()),
            Step::Retire(block) => {
                self.blocks.get(&block).is_none_or(|&(id, _)| self.rehearsal.arena.retire(id).is_ok())
            }
            Step::Rename { from, to, run } => {
                self.begin_run(run);
                let Some((id, _)) = self.blocks.remove(&from) else { return true };
                // What was not retired is the same block.
                let id = self.rehearsal.arena.reuse_in_place(id, Provenance::default()).unwrap_or(id);
                self.blocks.insert(to, (id, run));
                true
            }
            Step::Pin(block) => self.blocks.get(&block).is_none_or(|&(id, _)| {
                self.rehearsal.make_way_for(id);
                self.rehearsal.arena.pin(id).is_ok()
            }),
            Step::Unpin(block) => self.blocks.get(&block).is_none_or(|&(id, _)| self.rehearsal.arena.unpin(id).is_ok()),
            Step::Scratch(bytes) => {
                self.end_launch();
                self.launch = Some((bytes, None));
                self.rehearsal.keep(bytes, &|_| true)
            }
            Step::UnderWay(bytes) => self.rehearsal.keep(bytes, &|_| true),
        }
    }

    /// Whether what is needed finds room now, where these blocks may move.
    fn fits(&mut self, needs: &Needs, may_move: Option<&FxHashSet<u64>>) -> bool {
        self.end_launch();
        let movable = self.blocks.iter().filter(|(number, _)| may_move.is_some_and(|all| all.contains(number)));
        let movable: FxHashSet<BlockId> = movable.map(|(_, &(id, _))| id).collect();
        self.rehearsal.fits((needs, None), &|id| movable.contains(&id)).is_some()
    }

    fn blocks_of(&self, run: u32) -> FxHashSet<BlockId> {
        self.blocks.values().filter(|&&(_, of)| of == run).map(|&(id, _)| id).collect()
    }

    /// A block comes for this run. Where that is another than the scratch was kept for, the latter's launch is over.
    fn begin_run(&mut self, run: u32) {
        match &mut self.launch {
            Some((_, launch @ None)) if run != 0 => *launch = Some(run),
            Some((_, launch)) if *launch != Some(run) => self.end_launch(),
            _ => {}
        }
    }

    fn end_launch(&mut self) {
        if let Some((bytes, _)) = self.launch.take() {
            self.rehearsal.arena.end_scratch(bytes);
        }
    }
}
