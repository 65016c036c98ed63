//! One device's part of a membership: taking memory from the budget, giving it back, and asking for more.

use std::{
    error, fmt,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::{Duration, Instant},
};

use crate::{
    error::{Code, Error, Result},
    group::{
        core::{Group, SWEEP_EVERY, now},
        layout::{Layout, Line},
    },
    memory::group::{self as rules, Asked, Wanted},
    units::Bytes,
};

/// A client's part in the budget of one device. Dropping it withdraws what it has published.
#[derive(Debug)]
pub struct Share {
    part: Part,
    /// What this one has published: another client of the process may publish, too.
    used: AtomicU64,
    idle: AtomicU64,
}

/// A member's part in the budget of one device.
#[derive(Clone, Debug)]
struct Part {
    group: Arc<Group>,
    device: usize,
}

/// Bytes of the budget that this process has, returned when this is dropped. Memory is mapped after they were taken and
/// unmapped before they are returned.
#[derive(Debug)]
#[must_use = "dropping it returns the bytes"]
pub struct Taken {
    part: Part,
    bytes: Bytes,
}

/// A wish for memory that the other members see, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it withdraws the ask"]
pub struct Ask {
    part: Part,
    asked: Asked,
    /// The word that changes each time that memory is given back, before the last look.
    seen: AtomicU32,
}

/// Why bytes were not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The budget has no room now.
    Short(Short),
    /// The group cannot be used: its file is damaged, its lock is not to be had, or this process is a child.
    Broken(Error),
}

/// The numbers of a budget that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The device.
    pub device: usize,
    /// What was to be taken.
    pub bytes: Bytes,
    /// What could have been.
    pub available: Bytes,
    /// The limit of all members together.
    pub limit: Bytes,
    /// What this process holds.
    pub held: Bytes,
    /// What the others hold.
    pub others: Bytes,
    /// What is kept beyond that for the minima of the others.
    pub guaranteed: Bytes,
    /// What is free, but kept for older asks of others.
    pub asked: Bytes,
    /// What this process could hold if nobody else had more than its minimum.
    pub most: Bytes,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, bytes, available, limit, held, others, guaranteed, asked, most } = self;
        write!(
            f,
            "{bytes} more are not free in the shared budget of device {device}: of {limit} this process holds \
             {held}, others hold {others}, {guaranteed} more are guaranteed to them, {asked} are kept for older \
             asks, and {available} could be taken; this process could hold {most} at most"
        )
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(short) => short.fmt(f),
            Self::Broken(error) => error.fmt(f),
        }
    }
}

impl error::Error for Short {}
impl error::Error for Refused {}

impl Group {
    /// This process's part in the budget of a device.
    ///
    /// # Errors
    /// `OUT_OF_RANGE` for a device that this process did not name when it joined; `FAILED_PRECONDITION` in a child of
    /// the member.
    pub fn share(self: &Arc<Self>, device: usize) -> Result<Share> {
        let devices = self.own(self.layout()?)?.devices();
        if device >= devices {
            let why =
                format!("device {device} is not shared: this process has {devices} in the group `{}`", self.name());
            return Err(Error::new(Code::OutOfRange, why));
        }
        let part = Part { group: Arc::clone(self), device };
        Ok(Share { part, used: AtomicU64::new(0), idle: AtomicU64::new(0) })
    }
}

impl Share {
    /// The membership.
    pub fn group(&self) -> &Arc<Group> {
        &self.part.group
    }

    /// The limit of all members together. Constant; zero in a child of the member.
    pub fn limit(&self) -> Bytes {
        self.part.group.layout().map_or(Bytes::ZERO, |layout| layout.limit(self.part.device))
    }

    /// What this process holds.
    pub fn held(&self) -> Bytes {
        self.part.line().map_or(Bytes::ZERO, |line| Bytes::new(line.held.load(Relaxed)))
    }

    /// Takes bytes from the budget. Memory is never waited for, but the books' lock may be, for 2 s where its
    /// holder was stopped. Asks of this process's own do not stand in its way, whichever thread waits.
    ///
    /// # Errors
    /// The numbers if there is no room, also when the members that have died are counted out; or why the group cannot
    /// be used.
    pub fn take(&self, bytes: Bytes) -> Result<Taken, Refused> {
        let part = &self.part;
        if part.group.is_split.load(Relaxed) {
            return Err(Refused::Broken(part.group.split()));
        }
        let taken = part.group.locked(|layout| {
            let short = match part.try_take(layout, bytes)? {
                Some(_) if part.group.sweep_locked(layout) > 0 => part.try_take(layout, bytes)?,
                short => short,
            };
            Ok(short)
        });
        match taken {
            Ok(None) => Ok(Taken { part: part.clone(), bytes }),
            Ok(Some(short)) => Err(Refused::Short(short)),
            Err(error) => Err(Refused::Broken(error)),
        }
    }

    /// What [`Self::take`] would give now. Zero if the group cannot be used.
    pub fn available(&self) -> Bytes {
        let part = &self.part;
        let available = || -> Result<Bytes> {
            let layout = part.group.layout()?;
            let (members, own) = part.group.view(layout, part.device)?;
            Ok(rules::available(layout.limit(part.device), &members, own, now()))
        };
        available().unwrap_or_default()
    }

    /// Whether the others have so much more for this process, and would give it if it asked.
    pub fn is_owed(&self, bytes: Bytes) -> bool {
        self.part.is_owed(Asked { bytes, ticket: u64::MAX, since: now(), until: Duration::MAX })
    }

    /// Asks the other members for memory, so that `bytes` can be taken. The ask counts until it is dropped, and no
    /// longer than `until`. Those of one process and device are shown to the others one after the other.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` in a child of the member.
    pub fn ask(&self, bytes: Bytes, until: Instant) -> Result<Ask> {
        let part = &self.part;
        let layout = part.group.layout()?;
        let asked = Asked { bytes, ticket: layout.ticket(), since: now(), until: on_the_clock(until) };
        part.change_asks(layout, |asks| asks.push(asked));
        layout.asked.tell();
        Ok(Ask { part: part.clone(), asked, seen: AtomicU32::new(layout.given.seen()) })
    }

    /// Tells the other members what of this client's memory is in use, and what it could give back at once. Nothing in
    /// a child of the member.
    pub fn publish(&self, used: Bytes, idle: Bytes) {
        let Some(line) = self.part.line() else { return };
        for (own, word, value) in [(&self.used, &line.used, used), (&self.idle, &line.idle, idle)] {
            let before = own.swap(value.get(), Relaxed);
            // What it was less is added as well, as a number that wraps around.
            word.fetch_add(value.get().wrapping_sub(before), Relaxed);
        }
    }

    /// Counts what this process has asked the others for, and what it has given back for them, where all see it.
    pub fn count(&self, asked: Bytes, given: Bytes) {
        let Some(line) = self.part.line() else { return };
        line.total_asked.fetch_add(asked.get(), Relaxed);
        line.total_given.fetch_add(given.get(), Relaxed);
    }

    /// Whether another member asks for memory of the device.
    pub fn is_asked(&self) -> bool {
        let part = &self.part;
        let now = now();
        let asks = |layout: &Layout| {
            let mut others = layout.taken().filter(|(slot, _)| *slot != part.group.slot);
            others.any(|(_, entry)| entry.line(part.device).asked().is_some_and(|ask| now < ask.until))
        };
        part.group.layout().is_ok_and(asks)
    }

    /// What this process could hold if nobody else had more than its minimum. Zero if the group cannot be used.
    pub fn most(&self) -> Bytes {
        let part = &self.part;
        let most = || -> Result<Bytes> {
            let layout = part.group.layout()?;
            let (members, own) = part.group.view(layout, part.device)?;
            Ok(rules::most(layout.limit(part.device), &members, own))
        };
        most().unwrap_or_default()
    }

    /// What the others want this process to give back now. Nothing if the group cannot be used.
    pub fn wanted(&self) -> Wanted {
        let part = &self.part;
        let wanted = || -> Result<Wanted> {
            let layout = part.group.layout()?;
            if !self.is_asked() {
                return Ok(Wanted::default());
            }
            let (members, own) = part.group.view(layout, part.device)?;
            Ok(rules::wanted(layout.limit(part.device), &members, own, now()))
        };
        wanted().unwrap_or_default()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.publish(Bytes::ZERO, Bytes::ZERO);
    }
}

impl Part {
    /// This process's numbers; `None` in a child of the member, and where its slot was taken away.
    fn line(&self) -> Option<&Line> {
        let layout = self.group.layout().ok()?;
        Some(self.group.own(layout).ok()?.line(self.device))
    }

    /// Takes bytes if there is room, with the books' lock held; else the numbers.
    ///
    /// # Errors
    /// `DATA_LOSS` with what is wrong.
    fn try_take(&self, layout: &Layout, bytes: Bytes) -> Result<Option<Short>> {
        let limit = layout.limit(self.device);
        let (members, own) = self.group.view(layout, self.device)?;
        let available = rules::available(limit, &members, own, now());
        if bytes <= available {
            self.group.own(layout)?.line(self.device).held.fetch_add(bytes.get(), AcqRel);
            return Ok(None);
        }
        let held = members[own].held;
        let others = rules::sum(members.iter().map(|member| member.held)).saturating_sub(held);
        let free = rules::free(limit, &members, own);
        Ok(Some(Short {
            device: self.device,
            bytes,
            available,
            limit,
            held,
            others,
            guaranteed: limit.saturating_sub(others).saturating_sub(held).saturating_sub(free),
            asked: free - available,
            most: rules::most(limit, &members, own),
        }))
    }

    /// Returns bytes to the budget, and tells those who wait.
    fn give(&self, bytes: Bytes) {
        let (Ok(layout), Some(line), false) = (self.group.layout(), self.line(), bytes.is_zero()) else { return };
        // Not below zero, if the file was damaged: else the others would be told that it is.
        let _ = line.held.fetch_update(AcqRel, Relaxed, |held| Some(held.saturating_sub(bytes.get())));
        layout.given.tell();
    }

    /// As [`rules::is_owed`], of an ask that this process has or might have.
    fn is_owed(&self, asked: Asked) -> bool {
        let owed = || -> Result<bool> {
            let layout = self.group.layout()?;
            let (mut members, own) = self.group.view(layout, self.device)?;
            members[own].ask = Some(asked);
            Ok(rules::is_owed(layout.limit(self.device), &members, own, now()))
        };
        owed().unwrap_or(false)
    }

    /// Changes what this process waits for, and shows the first of it that counts to the others: one to which they owe
    /// nothing does not hide the rest.
    fn change_asks(&self, layout: &Layout, change: impl FnOnce(&mut Vec<Asked>)) {
        let mut asks = self.group.asks[self.device].lock();
        change(&mut asks);
        let now = now();
        let oldest = |counts: &dyn Fn(&Asked) -> bool| {
            let left = asks.iter().filter(|ask| ask.until > now && counts(ask));
            left.min_by_key(|ask| ask.ticket).copied()
        };
        let mut first = oldest(&|_| true);
        if asks.len() > 1
            && let Ok((members, own)) = self.group.view(layout, self.device)
        {
            first = oldest(&|ask| rules::counts(layout.limit(self.device), &members, own, ask, now)).or(first);
        }
        let Ok(own) = self.group.own(layout) else { return };
        let line = own.line(self.device);
        if line.asked() != first {
            line.ask(first);
        }
    }
}

/// An instant of this process on the clock that all processes have.
fn on_the_clock(instant: Instant) -> Duration {
    now().saturating_add(instant.saturating_duration_since(Instant::now()))
}

impl Taken {
    /// Counts what `other`, of the same share, has with this one.
    pub fn add(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// How much it is.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Returns what is more than `bytes`.
    pub fn trim_to(&mut self, bytes: Bytes) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.part.give(surplus);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.part.give(self.bytes);
    }
}

impl Ask {
    /// How long it has been there.
    pub fn age(&self) -> Duration {
        now().saturating_sub(self.asked.since)
    }

    /// From now on it is for so many bytes, and counts until `until`. It keeps its place among all asks.
    pub fn change(&mut self, bytes: Bytes, until: Instant) {
        let Ok(layout) = self.part.group.layout() else { return };
        let is_other = bytes != self.asked.bytes;
        (self.asked.bytes, self.asked.until) = (bytes, on_the_clock(until));
        let asked = self.asked;
        self.part.change_asks(layout, |asks| {
            asks.iter_mut().filter(|ask| ask.ticket == asked.ticket).for_each(|ask| *ask = asked);
        });
        if is_other {
            layout.asked.tell();
        }
    }

    /// Whether what was asked for can be taken, or the group cannot be used, which taking then tells.
    pub fn is_served(&self) -> bool {
        let part = &self.part;
        let served = || -> Result<bool> {
            let layout = part.group.layout()?;
            self.seen.store(layout.given.seen(), Relaxed);
            // Of several of this process others see the first one that counts, which may be another one by now.
            part.change_asks(layout, |_| {});
            let (mut members, own) = part.group.view(layout, part.device)?;
            members[own].ask = Some(self.asked);
            Ok(rules::available(layout.limit(part.device), &members, own, now()) >= self.asked.bytes)
        };
        served().unwrap_or(true)
    }

    /// Whether the others have what was asked for, and are to give it back. O(members^2) at most.
    pub fn is_owed(&self) -> bool {
        self.part.is_owed(self.asked)
    }

    /// Sleeps until something has changed since [`Self::is_served`] looked, for `at_most`; whether something has. Looks
    /// after members that die meanwhile.
    pub fn wait(&self, at_most: Duration) -> bool {
        let Ok(layout) = self.part.group.layout() else { return true };
        let seen = self.seen.load(Relaxed);
        let start = Instant::now();
        loop {
            let left = at_most.saturating_sub(start.elapsed());
            if layout.given.wait(seen, left.min(SWEEP_EVERY)) != seen || self.part.group.sweep() > 0 {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        let Ok(layout) = self.part.group.layout() else { return };
        let ticket = self.asked.ticket;
        self.part.change_asks(layout, |asks| asks.retain(|ask| ask.ticket != ticket));
        // What was kept for it is there for the others; and another ask of this process may be shown now.
        layout.given.tell();
        layout.asked.tell();
    }
}
