//! The groups of a user, looked at without being a member.

use std::{
    os::fd::{AsFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::fs::fstat;

use crate::{
    error::{Code, Error, Result},
    fork,
    group::{
        core::{Book, Registered, now, registry},
        folder::{Folder, Identity, check_name, reason},
        info::{MemberInfo, infos},
        mapping::{is_mapped, read},
        process::Process,
    },
    sync::Mutex,
    units::Bytes,
};

/// Files of which another copy of this library in this process is a member. They stay open: to close one would end that
/// copy's locks.
static OF_OTHER_COPIES: Mutex<Vec<(Identity, OwnedFd)>> = Mutex::new(Vec::new());

/// A group at one instant.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Its name.
    pub name: String,
    /// For each device, the limit and the members that have it.
    pub devices: Vec<(Bytes, Vec<MemberInfo>)>,
}

/// The names of the user's groups, sorted. One whose members have all been killed is among them until it is joined
/// again.
///
/// # Errors
/// As [`Folder::of_user`].
pub fn names() -> Result<Vec<String>> {
    names_in(&Folder::of_user()?)
}

/// The names of the groups in a folder, sorted.
///
/// # Errors
/// `INTERNAL` with the system's reason.
pub fn names_in(folder: &Folder) -> Result<Vec<String>> {
    folder.names().map_err(|errno| Error::internal(format!("the folder of groups cannot be read: {}", reason(errno))))
}

/// What a group of the user's looks like now.
///
/// # Errors
/// `NOT_FOUND` if there is none with this name, `DATA_LOSS` if its file is damaged or of another version,
/// `FAILED_PRECONDITION` if it is not for this user to read.
pub fn look(name: &str) -> Result<Overview> {
    look_in(&Folder::of_user()?, name)
}

/// What a group in a folder looks like now.
///
/// # Errors
/// As [`look`].
pub fn look_in(folder: &Folder, name: &str) -> Result<Overview> {
    check_name(name)?;
    let of_group = |error: Error| error.context(&format!("the group `{name}` ({})", folder.path_of(name).display()));
    let precondition = |why: String| of_group(Error::failed_precondition(why));
    let identity = folder.identity().map_err(|errno| precondition(reason(errno)))?;
    // Held until the descriptor is closed: if this process were a member meanwhile, its locks would end with that.
    let _registry = loop {
        let registry = registry()?;
        let is_this = |entry: &&Registered| {
            entry.folder == identity && entry.name == name && entry.generation == fork::generation()
        };
        let Some(entry) = registry.iter().find(is_this) else { break registry };
        let found = entry.group.upgrade();
        drop(registry);
        if let Some(group) = found {
            let layout = group.layout()?;
            let device = |device| Ok((layout.limit(device), group.members(device)?));
            let devices = (0..layout.devices()).map(device).collect::<Result<_>>()?;
            return Ok(Overview { name: name.to_owned(), devices });
        }
        // Another thread is leaving it at the moment.
        thread::sleep(Duration::from_micros(200));
    };
    let mut kept = OF_OTHER_COPIES.lock();
    let named = folder.identity_of(name).map_err(|errno| precondition(reason(errno)))?;
    let is_named = |(identity, _): &&(Identity, OwnedFd)| named == Some(*identity);
    if let Some((_, file)) = kept.iter().find(is_named) {
        return picture(name, file, true).map_err(of_group);
    }
    let file = folder.open(name, false).map_err(precondition)?;
    let file = file.ok_or_else(|| of_group(Error::not_found("there is none with this name")))?;
    let opened = fstat(&file).map_err(|errno| precondition(reason(errno)))?;
    let is_other_copys = is_mapped(opened.st_ino, &folder.path_of(name));
    let seen = picture(name, &file, is_other_copys).map_err(of_group);
    if is_other_copys {
        kept.push((Identity::of(&opened), file));
    }
    seen
}

/// What a file shows. Without a lock where another copy of the library in this process is a member: its locks are this
/// process's, and would be replaced.
///
/// # Errors
/// As [`look`], without the group's name.
fn picture(name: &str, file: &OwnedFd, is_other_copys: bool) -> Result<Overview> {
    let _book = (!is_other_copys).then(|| Book::lock_to_read(file.as_fd()));
    let layout = read(file.as_fd()).map_err(|errno| Error::failed_precondition(reason(errno)))?;
    layout.check().map_err(|why| Error::new(Code::DataLoss, why))?;
    let current = is_other_copys.then(Process::current);
    // A process does not see its own locks.
    let own = current.and_then(|current| layout.taken().find(|(_, slot)| slot.process().is(&current)));
    let own = own.map(|(slot, _)| slot);
    let device = |device| Ok((layout.limit(device), infos(&layout, file.as_fd(), device, own, now())?));
    let devices = (0..layout.devices()).map(device).collect::<Result<_>>()?;
    Ok(Overview { name: name.to_owned(), devices })
}
