//! A warp: 32 lanes in lockstep, and what happens where they part.
//!
//! ```text
//!   groups   lanes 0-7 at step 12, ready  <- runs, up to the next group's step, where they are one again
//!            lanes 8-31 at step 20, ready
//! ```
//!
//! Of the groups that are ready the one with the smallest step runs. Compilers lay code out so that branches meet again
//! below, and there the group that comes first is caught up with. One that needs other lanes, or the block, waits.

use super::{block::Block, exchange::lanes};
use crate::{
    code::{Action, Code, Register, Step, Truth},
    value::{Lanes, WARP},
};

/// What a group of lanes waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: it can run.
    Ready,
    /// The other lanes that its instruction names.
    Lanes,
    /// The block, at a barrier.
    Barrier {
        /// The barrier.
        id: u32,
        /// How many threads come to it; nothing means all.
        threads: Option<u32>,
        /// Whether all lanes have to come at once.
        aligned: bool,
    },
}

/// Lanes that are at one step.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The step that comes next.
    pub at: u32,
    /// The lanes.
    pub mask: u32,
    /// What it waits for.
    pub wait: Wait,
}

/// A warp.
pub struct Warp {
    /// Its number in the block.
    pub number: u32,
    #[expect(clippy::vec_box, reason = "a result takes its register's place without being copied")]
    registers: Vec<Box<Lanes>>,
    predicates: Vec<u32>,
    carry: u32,
    /// Where its lanes are; those that have ended are in none.
    pub groups: Vec<Group>,
    /// Each lane's own memory, one after the other.
    pub local: Vec<u8>,
    /// Where a result is made, before [`Self::take`].
    pub scratch: Box<Lanes>,
}

/// What comes after a step.
enum After {
    /// The next one.
    Next,
    /// Another one.
    Jump(u32),
    /// The groups are not what they were.
    Parted,
}

impl Warp {
    /// For a kernel; [`Self::start`] makes it ready.
    pub fn new(code: &Code, number: u32) -> Self {
        let mut predicates = vec![0; code.predicates as usize];
        // The second one is always true.
        predicates[1] = u32::MAX;
        Self {
            number,
            registers: vec![Box::new([0; WARP]); code.registers as usize],
            predicates,
            carry: 0,
            groups: Vec::new(),
            local: vec![0; code.local as usize * WARP],
            scratch: Box::new([0; WARP]),
        }
    }

    /// At the first step, in some lanes.
    pub fn start(&mut self, mask: u32) {
        self.groups.clear();
        self.groups.push(Group { at: 0, mask, wait: Wait::Ready });
    }

    /// A register.
    pub fn lanes(&self, register: Register) -> &Lanes {
        &self.registers[register as usize]
    }

    /// Writes a register in some lanes.
    pub fn write(&mut self, register: Register, values: &Lanes, mask: u32) {
        blend(&mut self.registers[register as usize], values, mask);
    }

    /// Writes what was made to a register in some lanes.
    pub fn take(&mut self, register: Register, mask: u32) {
        let kept = &mut self.registers[register as usize];
        if mask == u32::MAX {
            std::mem::swap(kept, &mut self.scratch);
        } else {
            blend(kept, &self.scratch, mask);
        }
    }

    /// A predicate: a bit for each lane.
    pub fn truth(&self, Truth { predicate, negated }: Truth) -> u32 {
        let bits = self.predicates[predicate as usize];
        if negated { !bits } else { bits }
    }

    /// Writes a predicate in some lanes.
    pub fn set(&mut self, predicate: u32, bits: u32, mask: u32) {
        let kept = &mut self.predicates[predicate as usize];
        *kept = *kept & !mask | bits & mask;
    }

    /// The lanes that have not ended.
    pub fn live(&self) -> u32 {
        self.groups.iter().fold(0, |all, group| all | group.mask)
    }

    /// Runs until every group waits, or has ended.
    ///
    /// # Errors
    /// What went wrong, with the line.
    pub fn run(&mut self, block: &mut Block<'_>) -> Result<(), String> {
        let code = block.code;
        loop {
            self.meet();
            let ready = self.groups.iter().enumerate().filter(|(_, group)| group.wait == Wait::Ready);
            let Some((index, &Group { mut at, mask, .. })) = ready.min_by_key(|(_, group)| group.at) else {
                return Ok(());
            };
            let next = self.groups.iter().map(|group| group.at).filter(|&other| other > at).min().unwrap_or(u32::MAX);
            while at < next {
                let step = &code.steps[at as usize];
                block.count(step.line)?;
                let active = step.guard.map_or(mask, |guard| mask & self.truth(guard));
                if active == 0 {
                    at += 1;
                    continue;
                }
                let after = self.step(block, step, (index, at), (mask, active));
                match after.map_err(|told| block.told(step.line, self.number, &told))? {
                    After::Next => at += 1,
                    After::Jump(to) => {
                        at = to;
                        if self.groups.len() > 1 {
                            break;
                        }
                    }
                    After::Parted => {
                        at = u32::MAX;
                        break;
                    }
                }
            }
            if at != u32::MAX {
                self.groups[index].at = at;
            }
        }
    }

    /// Makes groups at one step one.
    fn meet(&mut self) {
        if self.groups.len() < 2 {
            return;
        }
        self.groups.sort_by_key(|group| group.at);
        self.groups.dedup_by(|other, group| {
            let is_met = other.at == group.at;
            if is_met {
                group.mask |= other.mask;
                // Those that waited look again who is there.
                group.wait = Wait::Ready;
            }
            is_met
        });
    }

    /// Lets the lanes of `mask` go on elsewhere than the others of a group.
    fn part(&mut self, index: usize, mask: u32, at: u32, wait: Wait, rest_at: u32) -> After {
        let group = &mut self.groups[index];
        let rest = group.mask & !mask;
        *group = Group { at, mask, wait };
        if rest != 0 {
            self.groups.push(Group { at: rest_at, mask: rest, wait: Wait::Ready });
        }
        After::Parted
    }

    fn end(&mut self, index: usize, active: u32, at: u32) -> After {
        let group = &mut self.groups[index];
        group.mask &= !active;
        group.at = at + 1;
        if group.mask == 0 {
            self.groups.remove(index);
        }
        // Nobody waits for lanes that have ended.
        for group in self.groups.iter_mut().filter(|group| group.wait == Wait::Lanes) {
            group.wait = Wait::Ready;
        }
        After::Parted
    }

    fn step(
        &mut self,
        block: &mut Block<'_>,
        step: &Step,
        (index, at): (usize, u32),
        (mask, active): (u32, u32),
    ) -> Result<After, String> {
        match &step.action {
            Action::Nothing => {}
            Action::Compute { to, of, apply } => {
                let of = of.map(|of| &*self.registers[of as usize]);
                apply(&mut self.scratch, of);
                self.take(*to, active);
            }
            Action::Carry { to, of, apply, keep } => {
                let [a, b, c] = of.map(|of| &self.registers[of as usize]);
                let mut carried = 0;
                for lane in 0..WARP {
                    let (value, carry) = apply(a[lane], b[lane], c[lane], self.carry >> lane & 1 == 1);
                    self.scratch[lane] = value;
                    carried |= u32::from(carry) << lane;
                }
                if *keep {
                    self.carry = self.carry & !active | carried & active;
                }
                self.take(*to, active);
            }
            Action::Test { to, of: [a, b], apply, with } => {
                let bits = apply(self.lanes(*a), self.lanes(*b));
                let with = with.map(|(logic, with)| (logic, self.truth(with)));
                for (to, bits) in to.iter().zip([bits, !bits]) {
                    if let Some(to) = to {
                        self.set(*to, with.map_or(bits, |(logic, with)| logic.of(bits, with)), active);
                    }
                }
            }
            Action::Logic { to, of: [a, b], logic } => {
                self.set(*to, logic.of(self.truth(*a), self.truth(*b)), active);
            }
            Action::Select { to, of: [a, b], by } => {
                let by = self.truth(*by);
                let (a, b) = (&self.registers[*a as usize], &self.registers[*b as usize]);
                for (lane, to) in self.scratch.iter_mut().enumerate() {
                    *to = if by >> lane & 1 == 1 { a[lane] } else { b[lane] };
                }
                self.take(*to, active);
            }
            Action::Clock { to } => self.write(*to, &[block.steps; WARP], active),
            Action::Load { to, address, bytes, sign } => self.load(block, to, *address, (*bytes, *sign), active)?,
            Action::Store { of, address, bytes } => self.store(block, of, *address, *bytes, active)?,
            Action::Atomic { to, address, bytes, of, update } => {
                self.atomic(block, (*to, *of), (*address, *bytes), update, active)?;
            }
            Action::Matrix { registers, address, transposed, store } => {
                self.matrix(block, registers, *address, (*transposed, *store), active)?;
            }
            Action::Collective { members, exchange } => {
                if !matches!(exchange, crate::code::Exchange::Active { .. }) {
                    let missing = self.missing(*members, active)?;
                    if missing != 0 {
                        return Ok(self.part(index, active, at, Wait::Lanes, at + 1));
                    }
                }
                self.exchange(exchange, active);
            }
            Action::Barrier { id, threads, aligned } => {
                let first = active.trailing_zeros() as usize % WARP;
                let id = self.lanes(*id)[first] as u32;
                let threads = threads.map(|threads| self.lanes(threads)[first] as u32);
                let wait = Wait::Barrier { id, threads, aligned: *aligned };
                return Ok(self.part(index, active, at, wait, at + 1));
            }
            Action::Jump { to } if active == mask => return Ok(After::Jump(*to)),
            Action::Jump { to } => return Ok(self.part(index, active, *to, Wait::Ready, at + 1)),
            Action::Table { index: by, to } => {
                for lane in lanes(active) {
                    let which = self.lanes(*by)[lane];
                    let to = usize::try_from(which).ok().and_then(|which| to.get(which));
                    let to = *to.ok_or_else(|| format!("lane {lane} goes to number {which} of a shorter table"))?;
                    self.groups.push(Group { at: to, mask: 1 << lane, wait: Wait::Ready });
                }
                return Ok(self.end(index, active, at));
            }
            Action::Exit => return Ok(self.end(index, active, at)),
            Action::Trap => return Err("the kernel stops itself with \"trap\"".to_owned()),
        }
        Ok(After::Next)
    }

    /// The lanes that an instruction names, and that are not here yet.
    fn missing(&self, members: Register, active: u32) -> Result<u32, String> {
        let mut named = 0;
        for lane in lanes(active) {
            let members = self.lanes(members)[lane] as u32;
            if members >> lane & 1 == 0 {
                return Err(format!("lane {lane} is not among the lanes {members:#010x} that it names"));
            }
            named |= members;
        }
        Ok(named & self.live() & !active)
    }

    /// Fills a register in all lanes.
    pub fn fill(&mut self, register: Register, value: impl Fn(usize) -> u64) {
        for (lane, kept) in self.registers[register as usize].iter_mut().enumerate() {
            *kept = value(lane);
        }
    }
}

/// Takes the values of some lanes.
fn blend(to: &mut Lanes, values: &Lanes, mask: u32) {
    if mask == u32::MAX {
        *to = *values;
        return;
    }
    for lane in lanes(mask) {
        to[lane] = values[lane];
    }
}
