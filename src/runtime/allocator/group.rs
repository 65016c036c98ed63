//! Memory that moves between the processes of a group.
//!
//! ```text
//!  ask    what an allocation lacks stands in the group's file, where all see it, until it is served or given up
//!  give   what lies idle here: what the caches keep, empty regions, what the engine's pool keeps, chunks behind holes;
//!         then, as far as others are entitled to it: holes that compaction joins, and arrays that may be spilled
//! ```
//!
//! An allocation asks when its own memory is used up and compaction finds nothing (`reclaim.rs`). A thread of each
//! client gives (`client/giver.rs`), whatever the others do: it waits for no program, and not for Python.

use std::{
    cell::RefCell,
    cmp::Reverse,
    time::{Duration, Instant},
};

use crate::{
    group::{MemberInfo, State},
    memory::{Goal, OriginId, history::EventKind},
    runtime::{
        allocator::{compaction, core::Allocator, shared, spill},
        device_memory::{Asking, DeviceMemory, GroupPart, Refusal},
        in_flight::deadline::Deadline,
    },
    units::Bytes,
};

/// An ask is looked after at least so often, because own programs may end meanwhile.
const TURN: Duration = Duration::from_millis(20);

/// What was asked for was there, and could not be taken: another thread was faster, or it is not in one piece.
const AGAIN: Duration = Duration::from_millis(1);

/// A driver may still have memory of a process that died so short a time ago.
const AFTER_A_DEATH: Duration = Duration::from_secs(1);

/// What one allocation asks the others for; an ask counts as long as this lives.
#[derive(Default)]
pub struct Asked<'a>(RefCell<Option<(&'a DeviceMemory, Asking<'a>)>>);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some((memory, asking)) = self.0.take() {
            let (bytes, took) = asking.end();
            memory.note_transfer(EventKind::Asked, (bytes, Bytes::ZERO), OriginId::UNKNOWN, took);
        }
    }
}

impl<'a> Asked<'a> {
    /// Asks for what this thread was refused last, if the memory is shared, and waits a moment for it; `help` makes
    /// room here, where others are late with what they owe. Whether to try again.
    pub fn wait(&self, memory: &'a DeviceMemory, deadline: &Deadline<'_>, help: impl FnOnce() -> bool) -> bool {
        let Some(part) = &memory.group else { return false };
        let mut asked = self.0.borrow_mut();
        let bytes = match GroupPart::refusal() {
            Some(Refusal::Short(bytes)) => bytes,
            Some(Refusal::Broken) => return false,
            None => {
                // The device refused, which others of the group cannot help.
                *asked = None;
                let waits = !memory.on_host && part.group().has_swept_within(AFTER_A_DEATH);
                if waits {
                    std::thread::sleep(TURN.min(deadline.left()));
                }
                return waits;
            }
        };
        let asking = match &mut *asked {
            Some((_, asking)) => {
                // Programs under way may have prolonged the wait, and another hole may lack more, or less.
                if !asking.change(bytes, deadline.until()) {
                    return false;
                }
                if let Some(left) = asking.turned_slow() {
                    tell(memory, part, bytes, left);
                }
                if asking.is_served() {
                    std::thread::sleep(AGAIN);
                    return true;
                }
                asking
            }
            none => {
                publish(memory, part);
                match part.ask(bytes, deadline.until()) {
                    Ok(Some(asking)) => &mut none.insert((memory, asking)).1,
                    Ok(None) => return false,
                    Err(error) => {
                        log::warn!("{error}");
                        return false;
                    }
                }
            }
        };
        if asking.is_served() {
            return true;
        }
        // What waits for others could go on with its own memory, if its arrays go to the tier.
        if memory.tier.is_some() && !asking.is_owed() {
            return false;
        }
        if asking.is_late() && help() {
            return true;
        }
        asking.wait(TURN.min(deadline.left()));
        true
    }
}

/// Tells the others what is in use here, and what could be given back at once.
pub fn publish(memory: &DeviceMemory, part: &GroupPart) {
    let used = used(memory);
    part.publish(used, idle(memory, part, used));
}

/// What lies idle: on a GPU chunks behind holes, and what the engine's pool keeps; on the host whole regions.
fn idle(memory: &DeviceMemory, part: &GroupPart, used: Bytes) -> Bytes {
    if memory.on_host { memory.empty() } else { part.taken().saturating_sub(used) }
}

/// Whether this thread was refused what the others of the group would give if it asked.
pub fn others_owe(memory: &DeviceMemory) -> bool {
    match (&memory.group, GroupPart::refusal()) {
        (Some(part), Some(Refusal::Short(bytes))) => {
            publish(memory, part);
            part.is_owed(bytes)
        }
        _ => false,
    }
}

/// Whether this thread was refused memory because the group cannot be used: to try again takes as long, in vain.
pub fn is_broken() -> bool {
    GroupPart::refusal() == Some(Refusal::Broken)
}

fn used(memory: &DeviceMemory) -> Bytes {
    let stats = memory.stats();
    stats.pool_bytes - stats.free_bytes
}

/// Gives back what the others of the group want, as far as it goes. How much it was.
pub fn give(allocator: &Allocator, memory: &DeviceMemory, part: &GroupPart) -> Bytes {
    publish(memory, part);
    let mut wanted = part.wanted();
    if wanted.is_nothing() {
        return Bytes::ZERO;
    }
    let (since, before) = (Instant::now(), part.taken());
    let given = || before.saturating_sub(part.taken());
    // What the caches keep looks as if it were in use.
    allocator.drain();
    give_idle(memory, wanted.idle + wanted.beyond);
    let mut all = wanted.idle + wanted.beyond;
    if given() < wanted.idle {
        // A part of a chunk cannot go: the others are to know that there is no more than this.
        let used = used(memory);
        part.keeps(used, idle(memory, part, used));
        wanted = part.wanted();
        all = given() + wanted.beyond;
    }
    if given() < all && !wanted.beyond.is_zero() {
        join_holes(allocator, memory, all.saturating_sub(given()));
        if given() < all && memory.tier.is_some() {
            // Of the arrays, so much that their regions add up to what is missing.
            spill::make_room(allocator, memory, Some(Goal::Bottom(all - given())));
            give_idle(memory, all.saturating_sub(given()));
            join_holes(allocator, memory, all.saturating_sub(given()));
        }
    }
    let bytes = given();
    if !bytes.is_zero() {
        let took = since.elapsed();
        part.gave(bytes, took);
        memory.note_transfer(EventKind::Given, (bytes, Bytes::ZERO), OriginId::UNKNOWN, took);
        log::debug!("{}: {bytes} went to other processes of the group", memory.name());
    }
    publish(memory, part);
    bytes
}

/// Returns memory that nothing is in: up to so much behind holes.
fn give_idle(memory: &DeviceMemory, bytes: Bytes) {
    if let Some(pool) = &memory.shared {
        pool.trim_excess();
        pool.trim_unused();
    }
    let regions = memory.trim();
    if !memory.on_host {
        shared::discard_holes(memory, bytes.saturating_sub(regions));
    }
}

/// Moves arrays together, where they may move, and returns what becomes empty.
fn join_holes(allocator: &Allocator, memory: &DeviceMemory, bytes: Bytes) {
    if allocator.compacts() && !bytes.is_zero() {
        drop(compaction::carry_out(memory, Goal::Pack));
        give_idle(memory, bytes);
    }
}

/// So many of the others are named.
const MEMBERS: usize = 5;

/// What an error for memory that is exhausted says about the group: who else has the device's memory, the largest
/// first.
#[cold]
pub fn details(part: &GroupPart) -> String {
    let name = part.group().name();
    let text = format!("\ngroup {name}: {} of the limit of {} are this process's", part.held(), part.limit());
    match part.members() {
        Ok(members) => others(members).into_iter().fold(text, |text, other| text + "\n  " + &other),
        Err(error) => format!("{text}; {error}"),
    }
}

/// Says what is waited for, from whom, and how long at most from now on.
#[cold]
fn tell(memory: &DeviceMemory, part: &GroupPart, bytes: Bytes, left: Duration) {
    let (name, group) = (memory.name(), part.group().name());
    // A file that is damaged is an error soon.
    let others = part.members().map(others).unwrap_or_default().join(", and ");
    log::warn!("{bytes} on {name} are waited for, {left:.1?} more at most, from others of the group {group}: {others}");
}

/// The members but for this process, the largest first, each in words.
fn others(mut members: Vec<MemberInfo>) -> Vec<String> {
    members.retain(|member| !member.is_self);
    members.sort_by_key(|member| Reverse(member.held));
    let mut told: Vec<_> = members.iter().take(MEMBERS).map(other).collect();
    if members.len() > MEMBERS {
        let held: Bytes = members[MEMBERS..].iter().map(|member| member.held).sum();
        told.push(format!("{} others hold {held}", members.len() - MEMBERS));
    }
    told
}

fn other(member: &MemberInfo) -> String {
    let MemberInfo { process, held, used, min, .. } = member;
    let mut text = format!("{process} holds {held}, {used} in use");
    if !min.is_zero() {
        text += &format!(", {min} guaranteed");
    }
    if member.state == State::Stopped {
        text += "; it is stopped, and gives nothing";
    }
    if let Some((bytes, since)) = member.asked {
        text += &format!("; it waits for {bytes}, for {since:.1?}");
    }
    text
}
