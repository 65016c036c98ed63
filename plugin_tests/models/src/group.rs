//! Processes that share a budget: what each takes, maps, unmaps, gives and asks for, and that each may die at any step.
//!
//! The steps are those between which a process can be killed and the others can act: the check under the books' lock
//! and the raising of what is held are one, as the raising is one instruction and nobody else takes meanwhile; mapping
//! is another, and so are unmapping and lowering. When a process is killed its memory goes first and its lock later.
//! What stands in its slot stays until another member looks, or the next one joins.

use std::time::Duration;

use pjrt_arena::{
    memory::group::{Asked, FROM_ALL_AFTER, Member, available, counts, entitlements, wanted},
    units::Bytes,
};
use stateright::{Model, Property};

/// A time at which asks that have not expired count.
const NOW: Duration = Duration::from_secs(1);

/// The group of the model.
#[derive(Clone, Debug)]
pub struct Group {
    /// The limit.
    pub limit: u8,
    /// The minimum and the weight of each process.
    pub terms: Vec<(u8, u32)>,
    /// How much a process takes or asks for at once.
    pub amounts: Vec<u8>,
    /// How often processes may be killed, all together.
    pub deaths: u8,
    /// Whether asks may wait so long that others count them only if they owe something.
    pub patient: bool,
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Between two calls.
    Rest,
    /// So much is raised and not yet mapped.
    Raised(u8),
    /// So much is unmapped and not yet lowered.
    Unmapped(u8),
    /// Its memory is gone, and its lock not yet.
    Dying,
    /// Its lock is gone.
    Dead,
}

/// What a process waits for, as its slot has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    amount: u8,
    /// Its place among all asks.
    rank: u8,
    late: bool,
    expired: bool,
}

/// One process and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    step: Step,
    /// Whether its slot is taken.
    listed: bool,
    held: u8,
    mapped: u8,
    /// Whether all that it has mapped lies idle.
    idle: bool,
    ask: Option<Ask>,
}

/// All processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    processes: Vec<Process>,
    deaths: u8,
}

/// What may happen next. The first number is the process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It raises what it holds, if the rules allow that.
    Take(usize, u8),
    /// It maps what it took.
    Map(usize),
    /// It unmaps so much.
    Unmap(usize, u8),
    /// It lowers what it holds by what it unmapped.
    Lower(usize),
    /// All that it has comes out of use, or into use.
    Turn(usize),
    /// It asks for so much.
    Ask(usize, u8),
    /// It no longer waits.
    Withdraw(usize),
    /// Its ask has waited long.
    Age(usize),
    /// The time of its ask is over.
    Expire(usize),
    /// It is killed: its memory is gone.
    Die(usize),
    /// Its lock is gone, too.
    Unlock(usize),
    /// A member looks after those that have died.
    Sweep(usize),
    /// It is started again, and joins.
    Join(usize),
}

const DEAD: Process = Process { step: Step::Dead, listed: false, held: 0, mapped: 0, idle: false, ask: None };

impl Process {
    /// Whether it can do something.
    fn lives(&self) -> bool {
        !matches!(self.step, Step::Dying | Step::Dead)
    }
}

impl State {
    /// The slots that are taken, as the rules see them, and whose they are.
    fn members(&self, group: &Group) -> (Vec<Member>, Vec<usize>) {
        let listed = self.processes.iter().enumerate().filter(|(_, process)| process.listed);
        listed
            .map(|(index, process)| {
                let (min, weight) = group.terms[index];
                let ask = process.ask.map(|ask| Asked {
                    bytes: bytes(ask.amount),
                    ticket: u64::from(ask.rank),
                    since: if ask.late { NOW - FROM_ALL_AFTER * 2 } else { NOW },
                    until: if ask.expired { NOW } else { NOW * 2 },
                });
                let idle = if process.idle { process.mapped.min(process.held) } else { 0 };
                (Member { weight, min: bytes(min), held: bytes(process.held), idle: bytes(idle), ask }, index)
            })
            .unzip()
    }

    /// What the rules say of a process that is listed.
    fn ask_rules<T>(&self, group: &Group, who: usize, rule: impl Fn(Bytes, &[Member], usize, Duration) -> T) -> T {
        let (members, owners) = self.members(group);
        let own = owners.iter().position(|owner| *owner == who).expect("it is listed");
        rule(bytes(group.limit), &members, own, NOW)
    }

    /// Places without gaps, so that there are finitely many.
    fn compress(&mut self) {
        let mut ranks: Vec<u8> = self.processes.iter().filter_map(|process| process.ask).map(|ask| ask.rank).collect();
        ranks.sort_unstable();
        for ask in self.processes.iter_mut().filter_map(|process| process.ask.as_mut()) {
            ask.rank = ranks.iter().position(|rank| *rank == ask.rank).expect("it is among them") as u8;
        }
    }

    fn sweep(&mut self) {
        self.processes.iter_mut().filter(|process| process.step == Step::Dead).for_each(|process| *process = DEAD);
    }

    /// What it is once all that is under way has ended: those that are dying are dead, and looked after.
    fn settled(mut self) -> Self {
        for process in &mut self.processes {
            match process.step {
                Step::Raised(amount) => process.mapped += amount,
                Step::Unmapped(amount) => process.held -= amount,
                Step::Dying => process.step = Step::Dead,
                Step::Rest | Step::Dead => {}
            }
            if process.lives() {
                process.step = Step::Rest;
            }
        }
        self.sweep();
        self
    }

    /// Has each one answer once what the others want of it.
    fn answered(mut self, group: &Group) -> Self {
        for who in 0..self.processes.len() {
            if self.processes[who].lives() {
                let wanted = self.ask_rules(group, who, wanted);
                let process = &mut self.processes[who];
                let gift = ((wanted.idle + wanted.beyond).get() as u8).min(process.mapped);
                process.mapped -= gift;
                process.held -= gift;
            }
        }
        self
    }

    /// The asks that count, in their order.
    fn asks(&self, group: &Group) -> Vec<(usize, Ask)> {
        let minima = |who: usize| -> u8 {
            let others = self.processes.iter().zip(&group.terms).enumerate();
            others.filter(|(other, (process, _))| *other != who && process.listed).map(|(_, (_, terms))| terms.0).sum()
        };
        let mut asks: Vec<(usize, Ask)> = self
            .processes
            .iter()
            .enumerate()
            .filter_map(|(who, process)| Some((who, process.ask.filter(|ask| !ask.expired)?)))
            .filter(|(who, ask)| self.processes[*who].held + ask.amount + minima(*who) <= group.limit)
            .filter(|(who, ask)| !ask.late || self.ask_rules(group, *who, is_owed_something))
            .collect();
        asks.sort_by_key(|(_, ask)| ask.rank);
        asks
    }
}

/// Whether the ask of a member counts.
fn is_owed_something(limit: Bytes, members: &[Member], who: usize, now: Duration) -> bool {
    members[who].ask.is_some_and(|ask| counts(limit, members, who, &ask, now))
}

fn bytes(amount: u8) -> Bytes {
    Bytes::new(u64::from(amount))
}

/// Of the oldest ask: if it is within its entitlement, or others have so much idle, it is served once they answer. An
/// older one that was more than all there is may have become possible with what its asker gave, and then comes first.
fn oldest_is_answered(group: &Group, state: &State) -> bool {
    let state = state.clone().settled();
    let Some(&(asker, ask)) = state.asks(group).first() else { return true };
    let (members, owners) = state.members(group);
    let own = owners.iter().position(|owner| *owner == asker).expect("it is listed");
    let spare = |member: &Member| member.idle.min(member.held.saturating_sub(member.min));
    let mut needs: Vec<Bytes> = members.iter().map(|member| member.held - spare(member)).collect();
    needs[own] = members[own].held + bytes(ask.amount);
    let is_entitled = entitlements(bytes(group.limit), &members, &needs)[own] >= needs[own];
    let others = members.iter().enumerate().filter(|(member, _)| *member != own);
    let kept: Bytes = others.map(|(_, other)| other.claimed() - spare(other)).sum();
    if !is_entitled && kept + needs[own] > bytes(group.limit) {
        return true;
    }
    let state = state.answered(group);
    let first = state.asks(group).first().is_some_and(|(first, _)| *first == asker);
    !first || state.ask_rules(group, asker, available) >= bytes(ask.amount)
}

/// Whoever takes all that it may does not take what would serve an older ask.
fn nobody_is_overtaken(group: &Group, state: &State) -> bool {
    let asks = state.asks(group);
    let is_served =
        |state: &State, (asker, ask): &(usize, Ask)| state.ask_rules(group, *asker, available) >= bytes(ask.amount);
    let rank = |who: usize| state.processes[who].ask.map_or(u8::MAX, |ask| ask.rank);
    (0..state.processes.len()).filter(|&who| state.processes[who].lives()).all(|who| {
        let mut after = state.clone();
        after.processes[who].held += state.ask_rules(group, who, available).get() as u8;
        let older = asks.iter().filter(|(asker, ask)| *asker != who && ask.rank < rank(who));
        older.filter(|ask| is_served(state, ask)).all(|ask| is_served(&after, ask))
    })
}

/// If those that hold memory let go of it in the end, every ask that is possible is served, in the order of the asks.
fn all_are_served(group: &Group, state: &State) -> bool {
    let mut state = state.clone().settled();
    state.processes.iter_mut().for_each(|process| (process.held, process.mapped) = (0, 0));
    while let Some(&(asker, ask)) = state.asks(group).first() {
        if state.ask_rules(group, asker, available) < bytes(ask.amount) {
            return false;
        }
        state.processes[asker].ask = None;
    }
    true
}

impl Model for Group {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { processes: vec![DEAD; self.terms.len()], deaths: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, process) in state.processes.iter().enumerate() {
            match process.step {
                Step::Dying => actions.push(Action::Unlock(who)),
                Step::Dead => actions.push(Action::Join(who)),
                Step::Raised(_) => actions.push(Action::Map(who)),
                Step::Unmapped(_) => actions.push(Action::Lower(who)),
                Step::Rest => {
                    for &amount in &self.amounts {
                        actions.push(Action::Take(who, amount));
                        if process.ask.is_none() {
                            actions.push(Action::Ask(who, amount));
                        }
                    }
                    actions.extend((1..=process.mapped).map(|amount| Action::Unmap(who, amount)));
                    if process.mapped > 0 {
                        actions.push(Action::Turn(who));
                    }
                    actions.push(Action::Sweep(who));
                }
            }
            if process.lives() {
                if state.deaths < self.deaths {
                    actions.push(Action::Die(who));
                }
                if process.ask.is_some() {
                    actions.extend([Action::Withdraw(who), Action::Expire(who)]);
                    if self.patient {
                        actions.push(Action::Age(who));
                    }
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Take(who, amount) => {
                if last.ask_rules(self, who, available) < bytes(amount) {
                    return None;
                }
                state.processes[who].held += amount;
                state.processes[who].step = Step::Raised(amount);
            }
            Action::Map(who) | Action::Lower(who) => {
                let process = &mut state.processes[who];
                match process.step {
                    Step::Raised(amount) => (process.mapped, process.idle) = (process.mapped + amount, false),
                    Step::Unmapped(amount) => process.held -= amount,
                    _ => return None,
                }
                process.step = Step::Rest;
            }
            Action::Unmap(who, amount) => {
                let process = &mut state.processes[who];
                process.mapped -= amount;
                process.idle &= process.mapped > 0;
                process.step = Step::Unmapped(amount);
            }
            Action::Turn(who) => state.processes[who].idle ^= true,
            Action::Ask(who, amount) => {
                let rank = state.processes.len() as u8;
                state.processes[who].ask = Some(Ask { amount, rank, late: false, expired: false });
            }
            Action::Withdraw(who) => state.processes[who].ask = None,
            Action::Age(who) => state.processes[who].ask.as_mut()?.late = true,
            Action::Expire(who) => state.processes[who].ask.as_mut()?.expired = true,
            Action::Die(who) => {
                let process = &mut state.processes[who];
                (process.step, process.mapped, process.idle) = (Step::Dying, 0, false);
                state.deaths += 1;
            }
            Action::Unlock(who) => state.processes[who].step = Step::Dead,
            Action::Sweep(_) => state.sweep(),
            Action::Join(who) => {
                state.sweep();
                let minima = state.processes.iter().zip(&self.terms).filter(|(process, _)| process.listed);
                let minima: u8 = minima.map(|(_, terms)| terms.0).sum();
                if minima + self.terms[who].0 > self.limit {
                    return None;
                }
                state.processes[who] = Process { step: Step::Rest, listed: true, ..DEAD };
            }
        }
        state.compress();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what is mapped is within the limit", |group: &Self, state: &State| {
                state.processes.iter().map(|process| process.mapped).sum::<u8>() <= group.limit
            }),
            Property::always("what is mapped is held", |_, state: &State| {
                state.processes.iter().all(|process| process.mapped <= process.held)
            }),
            Property::always("the books are right once all is at rest", |_, state: &State| {
                let at_rest = state.clone().settled();
                at_rest.processes.iter().all(|process| process.held == process.mapped)
            }),
            Property::always("a minimum that was once free is its owner's", |group: &Self, state: &State| {
                let (members, owners) = state.members(group);
                let claimed: Bytes = members.iter().map(Member::claimed).sum();
                claimed > bytes(group.limit)
                    || owners.iter().zip(&members).all(|(owner, member)| {
                        state.ask_rules(group, *owner, available) >= member.min.saturating_sub(member.held)
                    })
            }),
            Property::always("the oldest ask is served once the others answer", oldest_is_answered),
            Property::always("nobody is overtaken", nobody_is_overtaken),
            Property::always("all asks are served once memory comes free", all_are_served),
            Property::sometimes("all is mapped", |group: &Self, state: &State| {
                state.processes.iter().map(|process| process.mapped).sum::<u8>() == group.limit
            }),
            Property::sometimes("all wait", |_, state: &State| {
                state.processes.iter().all(|process| process.lives() && process.ask.is_some())
            }),
            Property::sometimes("somebody dies between raising and mapping", |group: &Self, state: &State| {
                let died = |process: &Process| process.step == Step::Dead && process.held > 0;
                state.processes.iter().any(died) && state.deaths == group.deaths
            }),
        ]
    }
}
