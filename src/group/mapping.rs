//! A group's file in memory: mapped, for members, or read, for those who only look.

use std::{
    fs,
    ops::Deref,
    os::fd::BorrowedFd,
    path::Path,
    ptr::{self, NonNull},
};

use rustix::{
    fs::{FallocateFlags, fallocate, ftruncate},
    io::{Errno, Result, pread, pwrite, retry_on_intr},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
    process::{Resource, getrlimit},
};

use crate::group::layout::{Layout, SIZE};

/// The file, shared with all who map it.
#[derive(Debug)]
pub(super) struct Mapping(NonNull<Layout>);

// SAFETY: a value owns its mapping, whatever thread it is on, and the layout is atomic words.
unsafe impl Send for Mapping {}
// SAFETY: as above; what a reference gives is a reference to atomic words.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The mapping of a file that is [`SIZE`] bytes long, all of them on the disk. A child after `fork` has none.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(file: BorrowedFd<'_>) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so that no memory of anybody else is replaced.
        let start = unsafe { mmap(ptr::null_mut(), SIZE, protection, MapFlags::SHARED, file, 0)? };
        let mapping = Self(NonNull::new(start.cast()).ok_or(Errno::INVAL)?);
        // SAFETY: the range is the mapping above. Without it in a child nothing there can write to the parent's words;
        // what the child has of the group is refused before it reads any.
        unsafe { madvise(start, SIZE, Advice::LinuxDontFork)? };
        Ok(mapping)
    }
}

impl Deref for Mapping {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        // SAFETY: the mapping is as long as the layout, starts on a page, and lives as long as `self`; every value of
        // its bytes is one of the layout, whose words are all atomic, because other processes write to them. The file
        // has all its bytes on the disk, and no process of this library shortens it while it has members.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, which nobody can refer to any more.
        if let Err(errno) = unsafe { munmap(self.0.as_ptr().cast(), SIZE) } {
            log::warn!("munmap of a group's file failed: {errno}");
        }
    }
}

/// What a file holds now, as a value of its own. What it is shorter is zero.
///
/// # Errors
/// The kernel's.
pub(super) fn read(file: BorrowedFd<'_>) -> Result<Box<Layout>> {
    let mut words = vec![0u64; SIZE / size_of::<u64>()];
    // SAFETY: the vector's words are so many bytes, of which every value is allowed, and this call's alone.
    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), SIZE) };
    let mut at = 0;
    while at < SIZE {
        match retry_on_intr(|| pread(file, &mut bytes[at..], at as u64))? {
            0 => break,
            read => at += read,
        }
    }
    let words = Box::into_raw(words.into_boxed_slice());
    // SAFETY: the slice came out of a box; it is as long as the layout and aligned as it is, as is asserted below, and
    // every value of its bytes is one of the layout.
    Ok(unsafe { Box::from_raw(words.cast::<Layout>()) })
}

const _: () = assert!(align_of::<Layout>() == align_of::<u64>() && SIZE.is_multiple_of(size_of::<u64>()));

/// Makes a file [`SIZE`] bytes long, and takes them from the disk.
///
/// # Errors
/// The kernel's.
pub(super) fn take_space(file: BorrowedFd<'_>) -> Result<()> {
    // The kernel would send a signal as well, which ends the process where nobody handles it.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| SIZE as u64 > most) {
        return Err(Errno::FBIG);
    }
    retry_on_intr(|| ftruncate(file, SIZE as u64))?;
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, SIZE as u64)) {
        // Where the file system cannot: zeros, which it has to put somewhere.
        Err(Errno::OPNOTSUPP) => {
            let mut at = 0;
            while at < SIZE {
                at += retry_on_intr(|| pwrite(file, &[0; 4096][..4096.min(SIZE - at)], at as u64))?;
            }
            Ok(())
        }
        taken => taken,
    }
}

/// Whether this process has mapped the file with this number and path, which a copy of this library must have done.
pub(super) fn is_mapped(inode: u64, path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let is_this = |line: &str| {
        let found = line.split_ascii_whitespace().nth(4).and_then(|field| field.parse().ok());
        found == Some(inode) && path.to_str().is_some_and(|path| line.ends_with(path))
    };
    maps.lines().any(is_this)
}
