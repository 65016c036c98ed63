//! The locks of a group's file: the kernel's record locks (POSIX), one byte each.
//!
//! They end with the process that has them, whichever way it ends, hold between pid namespaces, and a child after
//! `fork` has none of its parent's. (Those of open file descriptions would be the child's, too.) But they all end as
//! soon as the process closes *any* descriptor of the file: a process has one descriptor of it, and `registry.rs` sees
//! to that. Every version of the layout has the same bytes.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    thread,
    time::{Duration, Instant},
};

use rustix::io::{Errno, Result};

use crate::group::layout::MAX_MEMBERS;

/// How long a lock that is held for microseconds is waited for.
pub(super) const WITHIN: Duration = Duration::from_secs(2);

/// Bytes of the file, as locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: i64,
    len: i64,
}

/// Held while the numbers of a group are read together, or changed.
pub(super) const BOOK: Range = Range { start: 0, len: 1 };

/// All those of [`member`].
pub(super) const MEMBERS: Range = Range { start: 1, len: MAX_MEMBERS as i64 };

/// Held by the member in `slot` for as long as it lives.
pub(super) fn member(slot: usize) -> Range {
    Range { start: 1 + slot as i64, len: 1 }
}

/// Why a lock was not had.
#[derive(Clone, Copy, Debug)]
pub(super) enum NoLock {
    /// The process holds it; 0 where its number is that of another pid namespace.
    Held(u32),
    /// The kernel's.
    Failed(Errno),
}

/// Who else may have a lock at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Nobody. The descriptor can write.
    Alone,
    /// Others of this kind. The descriptor can read.
    Shared,
}

/// Takes a lock that nobody holds; whether this process has it now.
///
/// # Errors
/// The kernel's.
pub(super) fn try_lock(file: BorrowedFd<'_>, range: Range, kind: Kind) -> Result<bool> {
    let kind = match kind {
        Kind::Alone => libc::F_WRLCK,
        Kind::Shared => libc::F_RDLCK,
    };
    match fcntl(file, libc::F_SETLK, kind, range) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Takes a lock, as soon as nobody holds it.
///
/// # Errors
/// Whoever still holds it after `within`, or the kernel's.
pub(super) fn lock(
    file: BorrowedFd<'_>,
    range: Range,
    kind: Kind,
    within: Duration,
) -> std::result::Result<(), NoLock> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(5);
    loop {
        if try_lock(file, range, kind).map_err(NoLock::Failed)? {
            return Ok(());
        }
        if start.elapsed() >= within {
            return match holder(file, range).map_err(NoLock::Failed)? {
                Some(pid) => Err(NoLock::Held(pid)),
                None => Err(NoLock::Failed(Errno::AGAIN)),
            };
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Gives a lock back.
///
/// # Errors
/// The kernel's.
pub(super) fn unlock(file: BorrowedFd<'_>, range: Range) -> Result<()> {
    fcntl(file, libc::F_SETLK, libc::F_UNLCK, range).map(|_| ())
}

/// The number of another process that holds a lock of the range; 0 where it is that of another pid namespace.
///
/// # Errors
/// The kernel's.
pub(super) fn holder(file: BorrowedFd<'_>, range: Range) -> Result<Option<u32>> {
    let found = fcntl(file, libc::F_GETLK, libc::F_WRLCK, range)?;
    let is_free = i32::from(found.l_type) == libc::F_UNLCK;
    Ok((!is_free).then(|| u32::try_from(found.l_pid).unwrap_or(0)))
}

/// `fcntl` with one of its commands about record locks. rustix takes locks of whole files only.
fn fcntl(file: BorrowedFd<'_>, command: i32, kind: i32, range: Range) -> Result<libc::flock> {
    let whence = libc::SEEK_SET as libc::c_short;
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: whence,
        l_start: range.start,
        l_len: range.len,
        l_pid: 0,
    };
    loop {
        // SAFETY: the descriptor is open as long as it is borrowed. All three commands take a pointer to a `flock`,
        // which is valid and this call's alone; `F_GETLK` writes to it.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
            return Ok(lock);
        }
        match std::io::Error::last_os_error().raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::INTR) => {}
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}
