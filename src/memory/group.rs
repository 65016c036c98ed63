//! Processes that share the budget of a device: what each may take, and what each gives back for others. Pure rules.
//!
//! ```text
//!  |------------------------------- limit -------------------------------|
//!  | A held | A min | B held        | C held   |  asked by D  |   free    |
//!    `--- claimed ---' ^ idle first     ^ then what is beyond C's entitlement
//! ```
//!
//! *Held* is what a member has taken from the budget, and *claimed* what it holds or is guaranteed, whichever is more:
//! nobody takes what another one's minimum still lacks. An *ask* says that a member wants to take more; asks are served
//! in the order of their tickets, so that a large one is not overtaken for ever by small ones. What is free is kept for
//! the oldest ask, and what is missing is wanted from the others:
//!
//! 1. Idle memory, from whoever has some: it costs least.
//! 2. Beyond that, members above their *entitlement* go down to it, by compaction or spilling, those furthest above
//!    first; but only for an ask that leaves the asker within its own entitlement. Nobody spills for a part of an ask.
//!
//! Entitlements are weighted max-min fair: each member has its minimum, the rest is divided by weight, and what one
//! does not need is divided among those who need it. So a member that is idle takes nothing from the entitlements of
//! others, and if all go down to their entitlements, an ask within one has room.
//!
//! An ask that is [`FROM_ALL_AFTER`] old is wanted from each of the others as if it were the only one: some of them may
//! have been stopped. If others owe it nothing then, because it goes beyond the asker's entitlement and too little lies
//! idle, it counts for nothing as long as that is so: what is free may be taken. Neither does an ask that has expired,
//! nor one that could not be served even by an empty group.

#[cfg(test)]
mod tests;

use std::{cmp::Reverse, time::Duration};

use crate::units::Bytes;

/// How long an ask waits for those who should give first, before it is wanted from all.
pub const FROM_ALL_AFTER: Duration = Duration::from_millis(250);

/// How long one that could help itself, by spilling, waits for what others owe it: some of them cannot give it.
pub const OWED_FOR: Duration = Duration::from_secs(1);

/// The weights that are allowed.
pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;

/// One member's part in one device's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its part of what is not guaranteed to anybody, beside those of the others. One of [`WEIGHTS`].
    pub weight: u32,
    /// What nobody takes away from it.
    pub min: Bytes,
    /// What it has taken from the budget.
    pub held: Bytes,
    /// What it could give back at once.
    pub idle: Bytes,
    /// What it waits for.
    pub ask: Option<Asked>,
}

/// What a member waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// How much more it wants to take.
    pub bytes: Bytes,
    /// Its place in the order of all asks: lower ones come first.
    pub ticket: u64,
    /// When it asked, on the clock of the system that all processes share.
    pub since: Duration,
    /// When it gives up.
    pub until: Duration,
}

/// What others want one member to give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Of what lies idle.
    pub idle: Bytes,
    /// And so much more, by compaction or spilling.
    pub beyond: Bytes,
}

impl Wanted {
    /// Whether nothing is wanted.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

impl Member {
    /// What it takes from the others' point of view.
    pub fn claimed(&self) -> Bytes {
        self.held.max(self.min)
    }

    /// What of its idle memory helps others when it is given back: not what only its own minimum would keep free.
    fn spare(&self) -> Bytes {
        self.idle.min(self.held.saturating_sub(self.min))
    }

    /// What it needs, if nothing of it lies idle that others could have.
    fn need(&self) -> Bytes {
        self.held - self.spare()
    }

    /// What it claims more, once an ask is served.
    fn claims_more(&self, ask: &Asked) -> Bytes {
        plus(self.held, ask.bytes).max(self.min) - self.claimed()
    }
}

fn plus(a: Bytes, b: Bytes) -> Bytes {
    Bytes::new(a.get().saturating_add(b.get()))
}

/// Their sum, or the largest count there is.
pub fn sum(counts: impl Iterator<Item = Bytes>) -> Bytes {
    counts.fold(Bytes::ZERO, plus)
}

/// Whether one more member can have a minimum of `min`.
///
/// # Errors
/// What is left of the limit for minima.
pub fn admit(limit: Bytes, minima: impl Iterator<Item = Bytes>, min: Bytes) -> Result<(), Bytes> {
    let left = limit.saturating_sub(sum(minima));
    if min <= left { Ok(()) } else { Err(left) }
}

/// What `who` could hold if nobody else had more than its minimum.
pub fn most(limit: Bytes, members: &[Member], who: usize) -> Bytes {
    limit.saturating_sub(sum(others(members, who).map(|(_, other)| other.min)))
}

/// What `who` may take at `now`. As long as each takes no more than this, one after the other, the sum of what is held
/// never passes the limit, and neither does the sum of what is claimed, once it is below.
pub fn available(limit: Bytes, members: &[Member], who: usize, now: Duration) -> Bytes {
    let own = &members[who];
    let free = free(limit, members, who);
    let ticket = own.ask.map_or(u64::MAX, |ask| ask.ticket);
    let older = asks(limit, members, now).filter(|(asker, ask)| *asker != who && ask.ticket < ticket);
    let kept = sum(older.map(|(asker, ask)| members[asker].claims_more(&ask)));
    // Its own minimum is kept for it, whoever asks.
    free.saturating_sub(kept).max(free.min(own.min.saturating_sub(own.held)))
}

/// What `who` could take if nobody asked.
pub fn free(limit: Bytes, members: &[Member], who: usize) -> Bytes {
    let claimed = sum(others(members, who).map(|(_, other)| other.claimed()));
    limit.saturating_sub(claimed).saturating_sub(members[who].held)
}

/// What the asks at `now` want `who` to give back.
pub fn wanted(limit: Bytes, members: &[Member], who: usize, now: Duration) -> Wanted {
    let mut wanted = vec![Wanted::default(); members.len()];
    let mut needs: Vec<Bytes> = members.iter().map(Member::need).collect();
    let mut entitled = entitlements(limit, members, &needs);
    let mut claimed: Vec<Bytes> = members.iter().map(Member::claimed).collect();
    let mut within = Vec::new();
    for (asker, ask) in in_order(limit, members, now) {
        let after = plus(members[asker].held, ask.bytes);
        // Whether the entitlements have room for it, beside the older asks for which they have.
        let need = std::mem::replace(&mut needs[asker], after);
        let with = entitlements(limit, members, &needs);
        within.push(asker);
        let is_fair = within.iter().all(|&asker| with[asker] >= needs[asker]);
        if is_fair {
            entitled = with;
        } else {
            within.pop();
            needs[asker] = need;
        }
        let Wanted { idle, beyond } = wanted[asker];
        let own = after.saturating_sub(plus(idle, beyond));
        let missing = plus(sum(others(&claimed, asker).map(|(_, claimed)| *claimed)), own).saturating_sub(limit);
        claimed[asker] = own.max(members[asker].min);
        let is_late = now.saturating_sub(ask.since) > FROM_ALL_AFTER;
        let mut givers: Vec<usize> = others(members, asker).map(|(giver, _)| giver).collect();
        givers.sort_by_key(|&giver| Reverse(members[giver].held.saturating_sub(entitled[giver])));
        let mut rest = missing;
        for &giver in &givers {
            let given = &mut wanted[giver].idle;
            let bytes = (members[giver].spare() - *given).min(if is_late { missing } else { rest });
            *given += bytes;
            claimed[giver] = claimed[giver].saturating_sub(bytes);
            rest = rest.saturating_sub(bytes);
        }
        for &giver in givers.iter().filter(|_| is_fair) {
            let Wanted { idle, beyond } = &mut wanted[giver];
            let above = members[giver].held.saturating_sub(plus(*idle, *beyond)).saturating_sub(entitled[giver]);
            let bytes = above.min(if is_late { missing.saturating_sub(*idle) } else { rest });
            *beyond += bytes;
            claimed[giver] = claimed[giver].saturating_sub(bytes);
            rest = rest.saturating_sub(bytes);
        }
        if !rest.is_zero() {
            // What anybody gives for a younger one is kept for this one.
            break;
        }
    }
    wanted[who]
}

/// Whether `who`, which asks, can have what it asks for once all others have given what is wanted of them.
pub fn is_owed(limit: Bytes, members: &[Member], who: usize, now: Duration) -> bool {
    let Some(ask) = members[who].ask else { return false };
    let given = others(members, who).map(|(other, _)| {
        let Wanted { idle, beyond } = wanted(limit, members, other, now);
        plus(idle, beyond)
    });
    plus(free(limit, members, who), sum(given)) >= ask.bytes
}

/// What each member is entitled to if it needs as much as `needs` says: weighted max-min fair above the minima. No more
/// than it needs or is guaranteed, and no more than the limit together, if the minima are not.
pub fn entitlements(limit: Bytes, members: &[Member], needs: &[Bytes]) -> Vec<Bytes> {
    let mut entitled: Vec<Bytes> = members.iter().map(|member| member.min).collect();
    let mut rest = limit.saturating_sub(sum(entitled.iter().copied()));
    let above_min = |member: usize| needs[member].saturating_sub(members[member].min);
    let mut hungry: Vec<usize> = (0..members.len()).filter(|&member| !above_min(member).is_zero()).collect();
    loop {
        let weights: u128 = hungry.iter().map(|&member| u128::from(members[member].weight)).sum();
        let part = |member: usize| part(rest, members[member].weight, weights);
        let (full, still): (Vec<usize>, Vec<usize>) =
            hungry.iter().copied().partition(|&member| above_min(member) <= part(member));
        if full.is_empty() {
            still.into_iter().for_each(|member| entitled[member] = plus(members[member].min, part(member)));
            return entitled;
        }
        for member in full {
            entitled[member] = needs[member];
            rest = rest.saturating_sub(above_min(member));
        }
        hungry = still;
    }
}

/// The part of `rest` that `weight` of all `weights` has.
fn part(rest: Bytes, weight: u32, weights: u128) -> Bytes {
    let part = u128::from(rest.get()) * u128::from(weight) / weights.max(1);
    Bytes::new(u64::try_from(part).unwrap_or(u64::MAX)).min(rest)
}

fn others<T>(members: &[T], who: usize) -> impl Iterator<Item = (usize, &T)> {
    members.iter().enumerate().filter(move |(member, _)| *member != who)
}

/// Whether an ask of `who` counts at `now`: it has not expired, an empty group could serve it, and others owe something
/// to it if it has waited.
pub fn counts(limit: Bytes, members: &[Member], who: usize, ask: &Asked, now: Duration) -> bool {
    let after = plus(members[who].held, ask.bytes);
    let is_possible = now < ask.until && !ask.bytes.is_zero() && after <= most(limit, members, who);
    let is_late = now.saturating_sub(ask.since) > FROM_ALL_AFTER;
    is_possible && (!is_late || has_prospects(limit, members, who, after))
}

/// Whether others have enough idle for `who` to hold `after`, or it is entitled to that.
fn has_prospects(limit: Bytes, members: &[Member], who: usize, after: Bytes) -> bool {
    let kept = sum(others(members, who).map(|(_, other)| other.claimed() - other.spare()));
    if plus(kept, after) <= limit {
        return true;
    }
    let mut needs: Vec<Bytes> = members.iter().map(Member::need).collect();
    needs[who] = after;
    entitlements(limit, members, &needs)[who] >= after
}

/// The asks that count at `now`.
fn asks(limit: Bytes, members: &[Member], now: Duration) -> impl Iterator<Item = (usize, Asked)> {
    let with_ask = members.iter().enumerate().filter_map(|(asker, member)| Some((asker, member.ask?)));
    with_ask.filter(move |(asker, ask)| counts(limit, members, *asker, ask, now))
}

/// The same, the oldest one first.
fn in_order(limit: Bytes, members: &[Member], now: Duration) -> Vec<(usize, Asked)> {
    let mut asks: Vec<(usize, Asked)> = asks(limit, members, now).collect();
    asks.sort_by_key(|(_, ask)| ask.ticket);
    asks
}
