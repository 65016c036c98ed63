//! Where groups are: a folder of the user's, and a file in it for each group.

use std::{
    env, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, statat, unlinkat},
    io::{Errno, retry_on_intr},
    process::geteuid,
};

use crate::error::{Error, Result};

/// How long the name of a group may be.
const LONGEST_NAME: usize = 64;

/// A folder that is this user's alone, open: whatever its path comes to name later, this one is meant.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    directory: OwnedFd,
}

/// Which file or folder of the system it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// From what the system says of it.
    pub(super) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Where the user's groups are: in `$XDG_RUNTIME_DIR/pjrt-arena`, if that is set to a directory of this user's, else in
/// `/dev/shm/pjrt-arena-<uid>`, or `/tmp/pjrt-arena-<uid>` where there is no `/dev/shm`.
pub fn path_of_user() -> PathBuf {
    let uid = geteuid().as_raw();
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let is_ours = |path: &PathBuf| {
        let found = statat(CWD, path, AtFlags::empty());
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir() && stat.st_uid == uid)
    };
    if let Some(runtime) = runtime.filter(is_ours) {
        return runtime.join("pjrt-arena");
    }
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared } else { Path::new("/tmp") };
    parent.join(format!("pjrt-arena-{uid}"))
}

/// Whether a group can have this name.
///
/// # Errors
/// `INVALID_ARGUMENT` with the name and what is allowed.
pub fn check_name(name: &str) -> Result<()> {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-');
    if !name.is_empty() && name.len() <= LONGEST_NAME && !name.starts_with('.') && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "`{}` is no name of a group: allowed are 1 to {LONGEST_NAME} of the characters a to z, A to Z, 0 to 9, dot, \
         underscore and hyphen, the first one not a dot",
        name.escape_debug()
    )))
}

impl Folder {
    /// The user's, which is made where it does not exist: see [`path_of_user`].
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn of_user() -> Result<Self> {
        Self::at(&path_of_user())
    }

    /// The folder `path`, which is made where it does not exist. The folder around it has to.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` with the path and the reason.
    pub fn at(path: &Path) -> Result<Self> {
        let refuse = |why: &str| {
            Error::failed_precondition(format!(
                "the folder {} cannot hold groups: {why}; allowed is a directory of this user's that nobody else may \
                 enter (mode 0700), and not a symbolic link",
                path.display()
            ))
        };
        let named = |errno: Errno| refuse(&reason(errno));
        match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(named(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = retry_on_intr(|| openat(CWD, path, flags, Mode::empty())).map_err(|errno| match errno {
            // Linux says of a link that it is no directory.
            Errno::NOTDIR | Errno::LOOP => refuse("it is a symbolic link, or no directory"),
            errno => named(errno),
        })?;
        let stat = fstat(&directory).map_err(named)?;
        check_owner(&stat).map_err(|why| refuse(&why))?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Which folder of the system it is.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn identity(&self) -> rustix::io::Result<Identity> {
        Ok(Identity::of(&fstat(&self.directory)?))
    }

    /// Where the file of the group is.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Which file the group's is, if it exists.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn identity_of(&self, name: &str) -> rustix::io::Result<Option<Identity>> {
        match statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok(Some(Identity::of(&named))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The file of the group, open; made if it does not exist and `make` says so. It is no link, a regular file of this
    /// user's, and nobody else may open it. [`Errno::NOENT`] where it does not exist.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn open(&self, name: &str, make: bool) -> Result<Option<OwnedFd>, String> {
        let access = if make { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDONLY };
        // Without waiting for whoever opens the other end of a pipe.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match retry_on_intr(|| openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)) {
            Ok(file) => file,
            Err(Errno::NOENT) if !make => return Ok(None),
            Err(Errno::LOOP) => return Err("it is a symbolic link".into()),
            Err(errno) => return Err(reason(errno)),
        };
        let stat = fstat(&file).map_err(reason)?;
        if stat.st_nlink > 1 {
            // To close it would end the locks that this process may have through the other name.
            std::mem::forget(file);
            return Err(format!("it has {} names (hard links), and one is allowed", stat.st_nlink));
        }
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err("it is not a regular file".into());
        }
        check_owner(&stat)?;
        Ok(Some(file))
    }

    /// Whether the group's name still leads to the file.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn leads_to(&self, name: &str, file: &OwnedFd) -> rustix::io::Result<bool> {
        let open = Identity::of(&fstat(file)?);
        Ok(self.identity_of(name)? == Some(open))
    }

    /// Takes the name away.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn remove(&self, name: &str) -> rustix::io::Result<()> {
        unlinkat(&self.directory, name, AtFlags::empty())
    }

    /// The names in it that groups can have, sorted.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn names(&self) -> rustix::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if check_name(&name).is_ok() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

/// Whether it is this user's, and nobody else's.
fn check_owner(stat: &Stat) -> Result<(), String> {
    let uid = geteuid().as_raw();
    if stat.st_uid != uid {
        return Err(format!("it belongs to the user with the number {}, and this process's has {uid}", stat.st_uid));
    }
    let others = stat.st_mode & 0o077;
    if others != 0 {
        return Err(format!("others may use it (mode {:04o})", stat.st_mode & 0o7777));
    }
    Ok(())
}

/// The system's reason in words.
pub(super) fn reason(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}
