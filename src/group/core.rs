//! A process's membership in a group: its slot, the books' lock, who has died, and the way out.

use std::{
    mem::ManuallyDrop,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    error::{Code, Error, Result},
    fork,
    group::{
        folder::{Folder, Identity, reason},
        info::{MemberInfo, infos},
        layout::{Layout, MAX_DEVICES, Slot},
        lock::{self, BOOK, Kind, MEMBERS, NoLock},
        mapping::Mapping,
        process::State,
    },
    memory::group::{Asked, Member},
    sync::{Mutex, MutexGuard},
};

/// How often those who wait look whether a member has died: nobody is told of a death.
pub(super) const SWEEP_EVERY: Duration = Duration::from_millis(20);

/// How long another thread of this process may take for what waits for other processes.
const OWN_THREADS: Duration = Duration::from_secs(5);

/// How long somebody who only looks, or tidies up, waits for the lock; then the numbers may be of slightly different
/// instants, and the next one tidies up.
const LOOK: Duration = Duration::from_millis(100);

/// The groups of which this process is a member. Locked while a descriptor of a group's file is opened or closed: to
/// close one ends all locks that the process has through others.
static GROUPS: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// A group, by the folder that its file is in, and its name.
pub(super) struct Registered {
    pub(super) folder: Identity,
    pub(super) name: String,
    pub(super) generation: u32,
    pub(super) group: Weak<Group>,
}

/// The groups of this process, locked.
///
/// # Errors
/// `FAILED_PRECONDITION` where another thread does not give them back, which may have been one of the parent's.
pub(super) fn registry() -> Result<MutexGuard<'static, Vec<Registered>>> {
    GROUPS.try_lock_for(OWN_THREADS).ok_or_else(|| {
        Error::failed_precondition(
            "another thread of this process, or of its parent when this one was forked, has been joining or leaving a \
             group for 5 s",
        )
    })
}

/// One process's membership in a group, for as long as anybody has a reference to it.
#[derive(Debug)]
pub struct Group {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) folder: Folder,
    pub(super) folder_identity: Identity,
    /// The only descriptor of the file in this process.
    pub(super) file: ManuallyDrop<OwnedFd>,
    pub(super) mapping: ManuallyDrop<Mapping>,
    pub(super) slot: usize,
    /// What the slot has as long as it is this process's.
    pub(super) number: u64,
    /// [`fork::generation`] of the process that is the member.
    pub(super) generation: u32,
    /// Among this process's threads, which have one lock of the file together.
    pub(super) book: Mutex<()>,
    /// What this process waits for on each device, by ticket. The first one is in the file.
    pub(super) asks: [Mutex<Vec<Asked>>; MAX_DEVICES],
    /// Whether the file has lost its name: who joins from now on has another group, with limits of its own.
    pub(super) is_split: AtomicBool,
}

impl Group {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many devices it has.
    pub fn devices(&self) -> usize {
        self.layout().map_or(0, Layout::devices)
    }

    /// Changes with every ask of a member's. A value for [`Self::wait_for_asks`].
    pub fn asks(&self) -> u32 {
        self.layout().map_or(0, |layout| layout.asked.seen())
    }

    /// Sleeps until a member asks for memory after [`Self::asks`] gave `seen`, or somebody calls
    /// [`Self::end_waits`], for `timeout`; gives back what members that died meanwhile held. Returns what
    /// [`Self::asks`] gives now.
    pub fn wait_for_asks(&self, seen: u32, timeout: Duration) -> u32 {
        let Ok(layout) = self.layout() else { return seen };
        let now = layout.asked.wait(seen, timeout);
        if now == seen {
            self.sweep();
        }
        now
    }

    /// What a member does now and then: it gives back what members that have died held, takes its slot's lock again,
    /// which the process has lost where something in it has opened and closed the file, and looks whether the file has
    /// been removed. Then an error in the log says so, and this process takes no more.
    pub fn look_after(&self) {
        let looked = self.locked_within(LOOK, |layout| {
            lock::try_lock(self.file(), lock::member(self.slot), Kind::Alone)
                .map_err(|errno| Error::internal(format!("fcntl failed: {}", reason(errno))))?;
            Ok(self.sweep_locked(layout))
        });
        if looked.is_ok()
            && matches!(self.folder.leads_to(&self.name, &self.file), Ok(false))
            && !self.is_split.swap(true, Relaxed)
        {
            log::error!("{}", self.split());
        }
    }

    /// Why nothing is taken from a group whose file was removed.
    #[cold]
    pub(super) fn split(&self) -> Error {
        self.named(Error::failed_precondition(
            "its file was removed while it has members, by the end of a login session perhaps (`loginctl enable-linger` \
             keeps the folder): processes that start now share a budget of their own, so this process takes no more \
             memory; it keeps what it has. End all members and start them again",
        ))
    }

    /// Whether members that died were looked after so short a time ago.
    pub fn has_swept_within(&self, period: Duration) -> bool {
        self.layout().is_ok_and(|layout| now().saturating_sub(layout.swept()) < period)
    }

    /// Ends all that wait for asks, in every process: they look, and wait again.
    pub fn end_waits(&self) {
        if let Ok(layout) = self.layout() {
            layout.asked.tell();
        }
    }

    /// Gives back what members that have died held; returns how many there were. None where the books' lock is not to
    /// be had.
    pub fn sweep(&self) -> usize {
        self.locked_within(LOOK, |layout| Ok(self.sweep_locked(layout))).unwrap_or(0)
    }

    /// The members that have the device: who they are, and what they hold and wait for. Of one instant, unless a
    /// process that holds the books' lock was stopped.
    ///
    /// # Errors
    /// `DATA_LOSS` if the file is damaged, `FAILED_PRECONDITION` in a child of the member.
    pub fn members(&self, device: usize) -> Result<Vec<MemberInfo>> {
        let layout = self.layout()?;
        let own = self.book.try_lock_for(LOOK);
        // Not under another thread's lock, which is this process's, too: it would be replaced.
        let _book = own.is_some().then(|| Book::lock_to_read(self.file()));
        infos(layout, self.file(), device, Some(self.slot), now()).map_err(|error| self.named(error))
    }

    /// The file's words.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` in a child of the member.
    pub(super) fn layout(&self) -> Result<&Layout> {
        if self.is_inherited() {
            return Err(Error::failed_precondition(format!(
                "this process is a child of a member of the group `{}`, and not a member itself: a child has to join \
                 after it was forked",
                self.name
            )));
        }
        Ok(&self.mapping)
    }

    /// Whether this process has it from its parent, which is the member.
    pub(super) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// The descriptor.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Runs `work` while no other member changes what it holds, comes or goes.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` in a child, or if another process holds the lock and does not go on: the text names it.
    /// And what `work` returns.
    pub(super) fn locked<T>(&self, work: impl FnOnce(&Layout) -> Result<T>) -> Result<T> {
        self.locked_within(lock::WITHIN, work)
    }

    /// As [`Self::locked`], waiting so long for a process that holds the lock: others of this one wait for it, too.
    fn locked_within<T>(&self, within: Duration, work: impl FnOnce(&Layout) -> Result<T>) -> Result<T> {
        let layout = self.layout()?;
        let _own = self.book.try_lock_for(OWN_THREADS).ok_or_else(|| {
            Error::failed_precondition(format!(
                "another thread of this process has held the books of the group `{}` for 5 s",
                self.name
            ))
        })?;
        self.own(layout).map_err(|error| self.named(error))?;
        let _book = Book::lock(self.file(), within).map_err(|none| self.named(no_book(none, layout)))?;
        work(layout).map_err(|error| self.named(error))
    }

    /// As [`Self::sweep`], with the books' lock held.
    pub(super) fn sweep_locked(&self, layout: &Layout) -> usize {
        let swept = sweep(layout, self.file(), Some(self.slot));
        if swept > 0 {
            layout.given.tell();
        }
        swept
    }

    /// This process's slot.
    ///
    /// # Errors
    /// `DATA_LOSS` if it is not this process's any more.
    pub(super) fn own<'a>(&self, layout: &'a Layout) -> Result<&'a Slot> {
        let slot = layout.slot(self.slot);
        if slot.number() == self.number {
            return Ok(slot);
        }
        let why = "this process's slot was taken away while it lives: something in it has closed the file, which \
                   ends its locks, or has written to it";
        Err(Error::new(Code::DataLoss, why))
    }

    /// The members that have a device, and where this one is among them.
    ///
    /// # Errors
    /// `DATA_LOSS` with what is wrong.
    pub(super) fn view(&self, layout: &Layout, device: usize) -> Result<(Vec<Member>, usize)> {
        self.own(layout)?;
        let members = layout.members(device)?;
        let own = members.iter().position(|(slot, _)| *slot == self.slot);
        let own = own.ok_or_else(|| {
            let why = format!("this process does not have device {device} in its slot");
            Error::new(Code::DataLoss, why)
        })?;
        Ok((members.into_iter().map(|(_, member)| member).collect(), own))
    }

    /// An error, said of this group and its file.
    pub(super) fn named(&self, error: Error) -> Error {
        error.context(&format!("the group `{}` ({})", self.name, self.path.display()))
    }
}

/// The way out: the slot is free, and the file goes with the last member.
impl Drop for Group {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The parent is the member. In this process the mapping does not exist, and closing the descriptor would
            // end the locks that it may have on the file as a member of its own.
            return;
        }
        // Without it, too: who joins meanwhile finds the entry below, and waits.
        let registry = registry();
        {
            let layout: &Layout = &self.mapping;
            let book = Book::lock(self.file.as_fd(), lock::WITHIN);
            if let Ok(own) = self.own(layout) {
                own.clear();
                layout.given.tell();
            }
            // Before the look at the others', so that of two that leave the second one finds none.
            if let Err(errno) = lock::unlock(self.file(), lock::member(self.slot)) {
                log::warn!("the lock of a group's slot was not given back: {}", reason(errno));
            }
            // Whoever lives has a lock, and none comes without that of the books.
            if book.is_ok() && matches!(lock::holder(self.file(), MEMBERS), Ok(None)) {
                remove(&self.folder, &self.name, &self.file);
            }
        }
        // SAFETY: neither is used again: this is the end of the value.
        unsafe {
            ManuallyDrop::drop(&mut self.mapping);
            ManuallyDrop::drop(&mut self.file);
        }
        if let Ok(mut registry) = registry {
            let is_this = |entry: &Registered| {
                entry.folder == self.folder_identity && entry.name == self.name && entry.group.strong_count() == 0
            };
            registry.retain(|entry| !is_this(entry));
        }
    }
}

/// Takes the name away from a file that nobody needs. The books' lock is held.
pub(super) fn remove(folder: &Folder, name: &str, file: &OwnedFd) {
    if matches!(folder.leads_to(name, file), Ok(true))
        && let Err(errno) = folder.remove(name)
    {
        log::warn!("the file of the group `{name}` stays: {}", reason(errno));
    }
}

/// Frees the slots whose members have died, with the books' lock held; returns how many.
pub(super) fn sweep(layout: &Layout, file: BorrowedFd<'_>, own: Option<usize>) -> usize {
    let mut swept = 0;
    for (index, slot) in layout.taken() {
        if Some(index) != own && matches!(lock::holder(file, lock::member(index)), Ok(None)) {
            slot.clear();
            swept += 1;
        }
    }
    if swept > 0 {
        layout.note_sweep(now());
    }
    swept
}

/// The books' lock, held.
pub(super) struct Book<'a>(BorrowedFd<'a>);

impl<'a> Book<'a> {
    /// Locks.
    ///
    /// # Errors
    /// Who holds it after so long, or the kernel's.
    pub(super) fn lock(file: BorrowedFd<'a>, within: Duration) -> Result<Self, NoLock> {
        lock::lock(file, BOOK, Kind::Alone, within)?;
        Ok(Self(file))
    }

    /// Locks together with others who only read: nobody takes memory meanwhile.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub(super) fn lock_to_read(file: BorrowedFd<'a>) -> Result<Self, NoLock> {
        lock::lock(file, BOOK, Kind::Shared, LOOK)?;
        Ok(Self(file))
    }
}

impl Drop for Book<'_> {
    fn drop(&mut self) {
        if let Err(errno) = lock::unlock(self.0, BOOK) {
            log::warn!("the lock of a group's books was not given back: {}", reason(errno));
        }
    }
}

/// Why the books' lock is not to be had.
pub(super) fn no_book(none: NoLock, layout: &Layout) -> Error {
    let pid = match none {
        NoLock::Failed(errno) => return Error::internal(format!("locking it failed: {}", reason(errno))),
        NoLock::Held(pid) => pid,
    };
    let member = layout.taken().map(|(_, slot)| slot.process()).find(|process| process.pid == pid);
    let who = match &member {
        Some(process) => process.to_string(),
        None if pid == 0 => "a process of another pid namespace".to_owned(),
        None => format!("process {pid}"),
    };
    let why = match member.map(|process| process.state()) {
        Some(State::Stopped) => ", which is stopped,",
        _ => "",
    };
    Error::failed_precondition(format!(
        "{who}{why} has held the lock of its books for {} s: nobody can take memory until that process goes on or ends",
        lock::WITHIN.as_secs()
    ))
}

/// The time on the clock that all processes of the system have.
pub(super) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
