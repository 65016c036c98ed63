//! How a process becomes a member of a group.

use std::{
    mem::ManuallyDrop,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::fstat;

use crate::{
    error::{Code, Error, Result},
    fork,
    group::{
        core::{Book, Group, Registered, no_book, now, registry, remove, sweep},
        folder::{Folder, check_name, path_of_user, reason},
        layout::{Entry, Layout, MAX_DEVICES, MAX_MEMBERS, SIZE},
        lock::{self, Kind, MEMBERS},
        mapping::{Mapping, is_mapped, read, take_space},
        process::Process,
    },
    memory::group::{WEIGHTS, admit},
    sync::Mutex,
    units::Bytes,
};

/// How long a process tries to join a group whose file others remove meanwhile.
const JOIN_WITHIN: Duration = Duration::from_secs(10);

/// What a process brings to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The limit of each device, which counts if it is the first member.
    pub limits: Vec<Bytes>,
    /// What the devices are: a group has those of one platform.
    pub platform: &'static str,
    /// Whether somebody asked for those limits: then a note says if the group has others.
    pub explicit_limit: bool,
    /// What nobody takes away from it, on each of its devices.
    pub min: Bytes,
    /// Its part of the rest, beside those of the others: one of [`WEIGHTS`].
    pub weight: u32,
}

/// A membership, and what its owner should know of it.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The membership: one for each group and process.
    pub group: Arc<Group>,
    /// Sentences for the log.
    pub notes: Vec<String>,
}

/// What came of one try.
enum Try {
    Joined(Arc<Group>),
    /// The file was removed, or is being left by another thread of this process.
    Again,
}

impl Terms {
    /// Whether they can be anybody's.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the value and what is allowed.
    fn check(&self) -> Result<()> {
        let count = self.limits.len();
        if !(1..=MAX_DEVICES).contains(&count) {
            let why = format!("{count} devices cannot be shared: 1 to {MAX_DEVICES} are allowed");
            return Err(Error::invalid_argument(why));
        }
        if !WEIGHTS.contains(&self.weight) {
            return Err(Error::invalid_argument(format!(
                "a weight of {} is not allowed: allowed are {} to {}",
                self.weight,
                WEIGHTS.start(),
                WEIGHTS.end()
            )));
        }
        Ok(())
    }
}

impl Group {
    /// Makes this process a member of the user's group `name`, or gives the membership that it has. The first member
    /// sets the limits. The membership ends with the last reference, and the file with the last member.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a name or terms that are not allowed, `FAILED_PRECONDITION` if the folder, the file or
    /// the group cannot take this process, `DATA_LOSS` for a file that is damaged while it has members,
    /// `RESOURCE_EXHAUSTED` if there are too many members, the minima pass the limit, or the disk is full. The caller
    /// decides whether it goes on alone.
    pub fn join(name: &str, terms: &Terms) -> Result<Joined> {
        Self::join_in(&path_of_user(), name, terms)
    }

    /// As [`Self::join`], for a group in the folder `folder`.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_in(folder: &Path, name: &str, terms: &Terms) -> Result<Joined> {
        check_name(name)?;
        terms.check()?;
        fork::register_handlers();
        let start = Instant::now();
        while start.elapsed() < JOIN_WITHIN {
            if let Try::Joined(group) = try_join(Folder::at(folder)?, name, terms)? {
                let notes = group.notes(terms)?;
                return Ok(Joined { group, notes });
            }
            thread::sleep(Duration::from_micros(200));
        }
        Err(Error::failed_precondition(format!(
            "the group `{name}` cannot be joined: its file was removed again and again for {} s",
            JOIN_WITHIN.as_secs()
        )))
    }

    /// What a member with these terms should know.
    fn notes(&self, terms: &Terms) -> Result<Vec<String>> {
        let layout = self.layout()?;
        let name = &self.name;
        let mut notes = Vec::new();
        for (device, wanted) in terms.limits.iter().enumerate() {
            let limit = layout.limit(device);
            if terms.explicit_limit && limit != *wanted {
                notes.push(format!(
                    "the limit of device {device} is {limit} ({}), which the first member of the group `{name}` has \
                     set; the {wanted} that were asked for here do not count",
                    limit.get()
                ));
            }
        }
        let own = self.own(layout)?;
        let (min, weight) = (own.min(), own.weight());
        if (min, weight) != (terms.min, terms.weight) {
            notes.push(format!(
                "this process is a member of the group `{name}` already, with a minimum of {min} and a weight of \
                 {weight}; the minimum of {} and the weight of {} that were asked for now do not count",
                terms.min, terms.weight
            ));
        }
        Ok(notes)
    }
}

/// One try.
///
/// # Errors
/// As [`Group::join`].
fn try_join(folder: Folder, name: &str, terms: &Terms) -> Result<Try> {
    let path = folder.path_of(name);
    let of_group = |error: Error| error.context(&format!("the group `{name}` ({}) cannot be joined", path.display()));
    let precondition = |why: String| of_group(Error::failed_precondition(why));
    let folder_identity = folder.identity().map_err(|errno| precondition(reason(errno)))?;
    let mut registry = registry()?;
    let generation = fork::generation();
    // What the parent has joined is none of this process's. It stays where it is: see the end of a group.
    registry.retain(|entry| entry.generation == generation);
    if let Some(entry) = registry.iter().find(|entry| entry.folder == folder_identity && entry.name == name) {
        let found = entry.group.upgrade();
        // The lock is needed for the end of a group, which a reference can bring.
        drop(registry);
        return match found {
            Some(group) => group.more_devices(terms).map(|()| Try::Joined(group)),
            None => Ok(Try::Again),
        };
    }
    let file = folder.open(name, true).map_err(precondition)?;
    let Some(file) = file else { return Ok(Try::Again) };
    let opened = fstat(&file).map_err(|errno| precondition(reason(errno)))?;
    if is_mapped(opened.st_ino, &path) {
        // Its locks would end if this descriptor were closed.
        std::mem::forget(file);
        let why = "another copy of this library in this process is a member; one copy is allowed";
        return Err(precondition(why.to_owned()));
    }
    // Closed on every way out: as this process is no member, it has no locks on the file but those of this call.
    let (mapping, slot, number) = {
        let _book = Book::lock(file.as_fd(), lock::WITHIN).map_err(|none| {
            // Not mapped: it may be shorter than that.
            let layout = read(file.as_fd());
            of_group(layout.map_or_else(|errno| Error::internal(reason(errno)), |layout| no_book(none, &layout)))
        })?;
        if !folder.leads_to(name, &file).map_err(|errno| precondition(reason(errno)))? {
            return Ok(Try::Again);
        }
        let settled = settle(&file, terms).and_then(|mapping| {
            let (slot, number) = enter(&file, &mapping, terms)?;
            Ok((mapping, slot, number))
        });
        match settled {
            Ok(entered) => entered,
            Err(error) => {
                // A file that was made for this process alone goes again.
                if let Ok(None) = lock::holder(file.as_fd(), MEMBERS) {
                    remove(&folder, name, &file);
                }
                return Err(of_group(error));
            }
        }
    };
    let group = Arc::new(Group {
        name: name.to_owned(),
        path,
        folder,
        folder_identity,
        file: ManuallyDrop::new(file),
        mapping: ManuallyDrop::new(mapping),
        slot,
        number,
        generation,
        book: Mutex::new(()),
        asks: Default::default(),
        is_split: AtomicBool::new(false),
    });
    registry.push(Registered {
        folder: folder_identity,
        name: name.to_owned(),
        generation,
        group: Arc::downgrade(&group),
    });
    Ok(Try::Joined(group))
}

/// The file as that of a group that this process can join. With the books' lock held.
///
/// # Errors
/// As [`Group::join`], without the group's name.
fn settle(file: &OwnedFd, terms: &Terms) -> Result<Mapping> {
    let internal = |what: &str, errno| Error::internal(format!("{what} failed: {}", reason(errno)));
    let others = lock::holder(file.as_fd(), MEMBERS).map_err(|errno| internal("fcntl", errno))?;
    if others.is_none() {
        // Whatever it holds is of the dead, or of nobody.
        take_space(file.as_fd()).map_err(|errno| {
            let why = format!("a file of {SIZE} bytes cannot be made there: {}", reason(errno));
            Error::new(Code::ResourceExhausted, why)
        })?;
        let mapping = Mapping::new(file.as_fd()).map_err(|errno| internal("mmap", errno))?;
        mapping.begin(&terms.limits, terms.platform, u64::try_from(now().as_nanos()).unwrap_or(1));
        return Ok(mapping);
    }
    let size = fstat(file).map_err(|errno| internal("fstat", errno))?.st_size;
    if size != SIZE as i64 {
        let why = format!(
            "its file has {size} bytes, and that of this library's version has {SIZE}: it is damaged, or its members \
             have another version of this library; end them first"
        );
        return Err(Error::new(Code::DataLoss, why));
    }
    let mapping = Mapping::new(file.as_fd()).map_err(|errno| internal("mmap", errno))?;
    mapping.check().map_err(|why| Error::new(Code::DataLoss, format!("{why}; end its members first")))?;
    mapping.check_platform(terms.platform).map_err(Error::failed_precondition)?;
    Ok(mapping)
}

/// Takes a slot; which one, and with which number. With the books' lock held.
///
/// # Errors
/// As [`Group::join`], without the group's name.
fn enter(file: &OwnedFd, layout: &Layout, terms: &Terms) -> Result<(usize, u64)> {
    if sweep(layout, file.as_fd(), None) > 0 {
        layout.given.tell();
    }
    check_devices(layout, 0..terms.limits.len(), terms.min)?;
    for slot in 0..MAX_MEMBERS {
        if layout.slot(slot).is_taken() {
            continue;
        }
        let has_lock = lock::try_lock(file.as_fd(), lock::member(slot), Kind::Alone);
        if has_lock.map_err(|errno| Error::internal(format!("fcntl failed: {}", reason(errno))))? {
            let number = layout.ticket();
            layout.slot(slot).take(&Entry {
                number,
                process: Process::current(),
                weight: terms.weight,
                min: terms.min,
                devices: terms.limits.len(),
            });
            return Ok((slot, number));
        }
    }
    let why = format!("it has {MAX_MEMBERS} members, and no more are possible");
    Err(Error::new(Code::ResourceExhausted, why))
}

/// Whether one member more can have these devices, with `min` of each of them.
///
/// # Errors
/// `FAILED_PRECONDITION` for a device that the group has not, `RESOURCE_EXHAUSTED` if the minima pass a limit, and
/// `DATA_LOSS`.
fn check_devices(layout: &Layout, devices: std::ops::Range<usize>, min: Bytes) -> Result<()> {
    if devices.end > layout.devices() {
        return Err(Error::failed_precondition(format!(
            "this process has {} devices, and the group has limits for {}: its first member had no more; allowed are \
             up to so many",
            devices.end,
            layout.devices()
        )));
    }
    for device in devices {
        let limit = layout.limit(device);
        let minima = layout.members(device)?.into_iter().map(|(_, member)| member.min);
        admit(limit, minima, min).map_err(|left| {
            let why = format!(
                "a minimum of {min} ({} bytes) is not left of device {device}: its limit is {limit}, the other \
                 members have minima of {}, and {left} ({} bytes) is allowed",
                min.get(),
                limit.saturating_sub(left),
                left.get()
            );
            Error::new(Code::ResourceExhausted, why)
        })?;
    }
    Ok(())
}

impl Group {
    /// Another client of this process may have more devices than the one before.
    ///
    /// # Errors
    /// As [`Group::join`].
    fn more_devices(&self, terms: &Terms) -> Result<()> {
        self.locked(|layout| {
            layout.check_platform(terms.platform).map_err(Error::failed_precondition)?;
            let own = self.own(layout)?;
            let (had, wanted) = (own.devices(), terms.limits.len());
            if wanted > had {
                check_devices(layout, had..wanted, own.min())?;
                own.set_devices(wanted);
            }
            Ok(())
        })
    }
}
