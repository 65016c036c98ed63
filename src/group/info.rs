//! Who is in a group, for people.

use std::{os::fd::BorrowedFd, sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    error::Result,
    group::{
        layout::Layout,
        lock,
        process::{Process, State},
    },
    units::Bytes,
};

/// A member, and its part in one device's budget.
#[derive(Clone, Debug)]
pub struct MemberInfo {
    /// Who it is.
    pub process: Process,
    /// Whether it is this process.
    pub is_self: bool,
    /// Whether it lives. What a dead one holds is given back as soon as a member looks.
    pub is_alive: bool,
    /// What it does.
    pub state: State,
    /// What it has taken from the budget.
    pub held: Bytes,
    /// What of that is in use, as it says.
    pub used: Bytes,
    /// What of that it could give back at once, as it says.
    pub idle: Bytes,
    /// What nobody takes away from it.
    pub min: Bytes,
    /// Its weight.
    pub weight: u32,
    /// What it has asked the others for since it is there.
    pub total_asked: Bytes,
    /// What it has given back for others.
    pub total_given: Bytes,
    /// What it waits for, and for how long it has.
    pub asked: Option<(Bytes, Duration)>,
}

/// The members that have a device. `own` is the slot of this process, `now` the time on the clock of the asks.
///
/// # Errors
/// `DATA_LOSS` if the numbers cannot be.
pub(super) fn infos(
    layout: &Layout,
    file: BorrowedFd<'_>,
    device: usize,
    own: Option<usize>,
    now: Duration,
) -> Result<Vec<MemberInfo>> {
    let info = |(index, member): (usize, crate::memory::group::Member)| {
        let slot = layout.slot(index);
        let process = slot.process();
        let is_self = own == Some(index);
        MemberInfo {
            is_self,
            is_alive: is_self || !matches!(lock::holder(file, lock::member(index)), Ok(None)),
            state: process.state(),
            process,
            held: member.held,
            // Published now and then.
            used: Bytes::new(slot.line(device).used.load(Relaxed)).min(member.held),
            idle: member.idle,
            total_asked: Bytes::new(slot.line(device).total_asked.load(Relaxed)),
            total_given: Bytes::new(slot.line(device).total_given.load(Relaxed)),
            min: member.min,
            weight: member.weight,
            asked: member.ask.map(|ask| (ask.bytes, now.saturating_sub(ask.since))),
        }
    };
    Ok(layout.members(device)?.into_iter().map(info).collect())
}
