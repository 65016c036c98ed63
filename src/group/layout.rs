//! What a group's file holds: words that only their member writes, but for the group's own.
//!
//! ```text
//!  header   what the file is; the limits; the platform; the ticket of the next ask; two words to sleep on
//!  slot 0   a member: who it is, its terms, and for each device what it holds, shows and asks for
//!  slot 1
//!   ...
//! ```
//!
//! No sum is stored that could be wrong when a process dies between two instructions: what is free is computed from
//! what the members hold. What is read is looked at before it is used, as anything may have written to the file.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
    time::Duration,
};

use crate::{
    error::{Code, Error, Result},
    group::{process::Process, signal::Signal},
    memory::group::{Asked, Member, WEIGHTS},
    units::Bytes,
};

/// Members that a group can have.
pub const MAX_MEMBERS: usize = 64;

/// Devices that a group can have.
pub const MAX_DEVICES: usize = 16;

/// "pjrtgrup" as bytes. Written last, when all else is there.
const MAGIC: u64 = u64::from_le_bytes(*b"pjrtgrup");

/// Changes with the layout and with the rules.
const VERSION: u64 = 2;

/// How long a file is.
pub(super) const SIZE: usize = size_of::<Layout>();

/// The file. All bytes zero is a value.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Layout {
    magic: AtomicU64,
    version: AtomicU64,
    devices: AtomicU64,
    limits: [AtomicU64; MAX_DEVICES],
    /// The first bytes of its name.
    platform: AtomicU64,
    /// When slots of the dead were freed last, in nanoseconds on the system's clock.
    swept: AtomicU64,
    tickets: AtomicU64,
    /// Members wait here for asks.
    pub(super) asked: Signal,
    /// Askers wait here for memory.
    pub(super) given: Signal,
    slots: [Slot; MAX_MEMBERS],
}

/// One member.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    /// The member's number, which no other one of the file has; zero where there is none. Written last, and first when
    /// it goes.
    number: AtomicU64,
    pid: AtomicU64,
    started: AtomicU64,
    command: [AtomicU64; 2],
    weight: AtomicU64,
    min: AtomicU64,
    devices: AtomicU64,
    lines: [Line; MAX_DEVICES],
}

/// One member's part in one device's budget.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Line {
    pub(super) held: AtomicU64,
    pub(super) used: AtomicU64,
    pub(super) idle: AtomicU64,
    /// Bytes that were asked for, and that were given back for others, since the member is there.
    pub(super) total_asked: AtomicU64,
    pub(super) total_given: AtomicU64,
    /// Bytes; zero where nothing is asked for. Written last, and first when the ask goes.
    ask: AtomicU64,
    ticket: AtomicU64,
    /// Nanoseconds on the system's clock.
    since: AtomicU64,
    until: AtomicU64,
}

/// What a member brings along.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) process: Process,
    pub(super) weight: u32,
    pub(super) min: Bytes,
    pub(super) devices: usize,
}

impl Layout {
    /// Whether it is a group's, of this version. Whose it is the system says of the file: the number of a user is
    /// another one in another user namespace.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn check(&self) -> Result<(), String> {
        let [magic, version, devices] = [&self.magic, &self.version, &self.devices].map(|word| word.load(Relaxed));
        if magic != MAGIC {
            return Err("it is damaged: it does not begin as the file of a group does".into());
        }
        if version != VERSION {
            return Err(format!("its layout is version {version}, and this library has version {VERSION}"));
        }
        if !(1..=MAX_DEVICES as u64).contains(&devices) {
            return Err(format!("it is damaged: it has {devices} devices, and 1 to {MAX_DEVICES} are allowed"));
        }
        Ok(())
    }

    /// Makes it the file of a group without members, whatever it was. Nobody else reads or writes it meanwhile.
    /// Its members' numbers and tickets begin at `first`, which is higher than any that it had.
    pub(super) fn begin(&self, limits: &[Bytes], platform: &str, first: u64) {
        self.magic.store(0, Relaxed);
        self.slots.iter().for_each(Slot::clear);
        self.version.store(VERSION, Relaxed);
        self.devices.store(limits.len().min(MAX_DEVICES) as u64, Relaxed);
        for (device, word) in self.limits.iter().enumerate() {
            word.store(limits.get(device).map_or(0, |limit| limit.get()), Relaxed);
        }
        self.platform.store(platform_word(platform), Relaxed);
        self.swept.store(0, Relaxed);
        self.tickets.store(first.max(1), Relaxed);
        self.magic.store(MAGIC, Relaxed);
    }

    /// Checks that it shares devices of this platform.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn check_platform(&self, platform: &str) -> Result<(), String> {
        let word = self.platform.load(Relaxed);
        if word == platform_word(platform) {
            return Ok(());
        }
        let own = word.to_le_bytes().into_iter().take_while(u8::is_ascii_alphanumeric).map(char::from);
        Err(format!(
            "its members share devices of the platform `{}`, and this process has devices of the platform `{platform}`: \
             give each platform a group with a name of its own",
            own.collect::<String>()
        ))
    }

    /// Members that died were looked after just now.
    pub(super) fn note_sweep(&self, now: Duration) {
        self.swept.store(nanos(now), Relaxed);
    }

    /// When members that died were looked after last.
    pub(super) fn swept(&self) -> Duration {
        Duration::from_nanos(self.swept.load(Relaxed))
    }

    /// How many devices have a limit. Never more than [`MAX_DEVICES`], whatever the file says.
    pub(super) fn devices(&self) -> usize {
        self.devices.load(Relaxed).min(MAX_DEVICES as u64) as usize
    }

    /// The limit of one of the devices; zero of any other.
    pub(super) fn limit(&self, device: usize) -> Bytes {
        self.limits.get(device).map_or(Bytes::ZERO, |word| Bytes::new(word.load(Relaxed)))
    }

    /// A number that no other member or ask has; of two, the later one is higher.
    pub(super) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// One of [`MAX_MEMBERS`] slots.
    pub(super) fn slot(&self, slot: usize) -> &Slot {
        &self.slots[slot]
    }

    /// The slots that have a member.
    pub(super) fn taken(&self) -> impl Iterator<Item = (usize, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.is_taken())
    }

    /// The slots whose members have the device, and what they say of it.
    ///
    /// # Errors
    /// `DATA_LOSS` with the first number that cannot be.
    pub(super) fn members(&self, device: usize) -> Result<Vec<(usize, Member)>> {
        let limit = self.limit(device);
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| {
                // One that leaves, or comes, while this looks without the books' lock is none.
                let number = slot.number.load(Acquire);
                let member = (number != 0 && device < slot.devices()).then(|| slot.member(index, device, limit));
                fence(Acquire);
                member.filter(|_| slot.number() == number).map(|member| Ok((index, member?)))
            })
            .collect()
    }
}

impl Slot {
    /// The member's number; zero where there is none.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// Whether there is a member.
    pub(super) fn is_taken(&self) -> bool {
        self.number() != 0
    }

    /// A member takes it, with nothing held. It is free.
    pub(super) fn take(&self, entry: &Entry) {
        self.clear();
        let Entry { number, process, weight, min, devices } = entry;
        self.pid.store(u64::from(process.pid), Relaxed);
        self.started.store(process.started, Relaxed);
        for (word, bytes) in self.command.iter().zip(process.command_words()) {
            word.store(bytes, Relaxed);
        }
        self.weight.store(u64::from(*weight), Relaxed);
        self.min.store(min.get(), Relaxed);
        self.devices.store(*devices as u64, Relaxed);
        self.number.store(*number, Release);
    }

    /// Its member has gone, and with it all that it held.
    pub(super) fn clear(&self) {
        self.number.store(0, Relaxed);
        fence(Release);
        for line in &self.lines {
            let Line { ask, held, used, idle, total_asked, total_given, ticket, since, until } = line;
            for word in [ask, held, used, idle, total_asked, total_given, ticket, since, until] {
                word.store(0, Relaxed);
            }
        }
        let [first, second] = &self.command;
        for word in [&self.pid, &self.started, first, second, &self.weight, &self.min, &self.devices] {
            word.store(0, Relaxed);
        }
    }

    /// The process.
    pub(super) fn process(&self) -> Process {
        let words = self.command.each_ref().map(|word| word.load(Relaxed));
        Process::new(self.pid.load(Relaxed) as u32, self.started.load(Relaxed), words)
    }

    /// What it is guaranteed of each device.
    pub(super) fn min(&self) -> Bytes {
        Bytes::new(self.min.load(Relaxed))
    }

    /// Its weight.
    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Relaxed) as u32
    }

    /// How many devices it has.
    pub(super) fn devices(&self) -> usize {
        self.devices.load(Relaxed).min(MAX_DEVICES as u64) as usize
    }

    /// It has so many devices now.
    pub(super) fn set_devices(&self, devices: usize) {
        self.devices.store(devices as u64, Relaxed);
    }

    /// Its part in the budget of a device below [`MAX_DEVICES`].
    pub(super) fn line(&self, device: usize) -> &Line {
        &self.lines[device]
    }

    /// What it says of a device.
    ///
    /// # Errors
    /// `DATA_LOSS` with the first number that cannot be.
    fn member(&self, index: usize, device: usize, limit: Bytes) -> Result<Member> {
        let line = &self.lines[device];
        let (weight, min) = (self.weight.load(Relaxed), self.min());
        let held = Bytes::new(line.held.load(Relaxed));
        let damaged = |what: &str, value: u64, most: u64| {
            Error::new(
                Code::DataLoss,
                format!(
                    "the member in slot {index} (pid {}) has a {what} of {value} on device {device}, and at most \
                     {most} is possible",
                    self.pid.load(Relaxed)
                ),
            )
        };
        if held > limit {
            return Err(damaged("holding", held.get(), limit.get()));
        }
        if min > limit {
            return Err(damaged("minimum", min.get(), limit.get()));
        }
        let weight = u32::try_from(weight).ok().filter(|weight| WEIGHTS.contains(weight));
        let weight = weight.ok_or_else(|| damaged("weight", self.weight.load(Relaxed), u64::from(*WEIGHTS.end())))?;
        let idle = Bytes::new(line.idle.load(Relaxed)).min(held);
        Ok(Member { weight, min, held, idle, ask: line.asked() })
    }
}

impl Line {
    /// What the member waits for.
    pub(super) fn asked(&self) -> Option<Asked> {
        let bytes = Bytes::new(self.ask.load(Acquire));
        let [since, until] = [&self.since, &self.until].map(|word| Duration::from_nanos(word.load(Relaxed)));
        (!bytes.is_zero()).then(|| Asked { bytes, ticket: self.ticket.load(Relaxed), since, until })
    }

    /// The member waits for something, or for nothing.
    pub(super) fn ask(&self, asked: Option<Asked>) {
        let shown = self.asked().map(|shown| shown.ticket);
        // One that is only prolonged, or of another size, is seen all the while.
        if asked.is_none_or(|asked| shown != Some(asked.ticket)) {
            self.ask.store(0, Relaxed);
            fence(Release);
        }
        let Some(Asked { bytes, ticket, since, until }) = asked else { return };
        self.ticket.store(ticket, Relaxed);
        self.since.store(nanos(since), Relaxed);
        self.until.store(nanos(until), Relaxed);
        self.ask.store(bytes.get(), Release);
    }
}

/// The first eight bytes of a platform's name.
fn platform_word(name: &str) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
    u64::from_le_bytes(word)
}

/// A time on the system's clock, as the file has it.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
