//! One region: a file without a name, all of its bytes on the disk, mapped between two pages of margin.

use std::{
    fmt::Display,
    hash::{BuildHasher, Hasher, RandomState},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, fstatvfs, openat, unlinkat},
    io::{Errno, pread, pwrite, retry_on_intr},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap},
    param::page_size,
    process::{Resource, getrlimit},
};

use crate::{
    device::{host::mapping::Mapping, shift::Extent},
    error::{Code, Error, Result},
    memory::AddressRange,
    units::{Address, Bytes},
};

/// Space is taken in pieces of this size: a signal ends `fallocate` on some file systems, and what was taken before
/// stays. 20 GiB took 22 to 35 ms in such pieces, and 24 to 40 ms at once (ext4, virtual, Linux 6.18).
const TAKEN_AT_ONCE: Bytes = Bytes::mib(16);

/// What bytes go through that cannot go from where they are to where they should be at once.
const BOUNCE: Bytes = Bytes::mib(1);

/// The folder, open: whatever its path comes to name later, files are made in this one.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
}

impl Folder {
    /// What the file system has left for this user; [`Bytes::MAX`] where it does not know its own size.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn free_space(&self) -> rustix::io::Result<Bytes> {
        let status = retry_on_intr(|| fstatvfs(&self.directory))?;
        // A tmpfs without a limit says zero of all.
        let known = (status.f_blocks > 0).then(|| status.f_bavail.saturating_mul(status.f_frsize));
        Ok(known.map_or(Bytes::MAX, Bytes::new))
    }

    /// A new file that nobody else can open, and that is gone with the process whichever way that ends.
    ///
    /// # Errors
    /// The kernel's.
    fn make_file(&self) -> rustix::io::Result<OwnedFd> {
        // With `EXCL` the file never gets a name.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
        match retry_on_intr(|| openat(&self.directory, c".", flags, Mode::RUSR | Mode::WUSR)) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => self.make_named_file(),
            made => made,
        }
    }

    /// The same where the file system makes no files without a name: a name that nobody guesses goes at once.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn make_named_file(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        // The hash of nothing, by keys that are random for each process and new each time.
        let name = format!(".pjrt-arena-{:016x}", RandomState::new().build_hasher().finish());
        let file = retry_on_intr(|| openat(&self.directory, &*name, flags, Mode::RUSR | Mode::WUSR))?;
        unlinkat(&self.directory, &*name, AtFlags::empty())?;
        Ok(file)
    }
}

/// A file and its mapping; both end with the value.
#[derive(Debug)]
pub(super) struct FileRegion {
    /// With a page of margin on either side.
    mapping: Mapping,
    range: AddressRange,
    pub(super) file: OwnedFd,
    folder: Arc<Folder>,
}

impl FileRegion {
    /// A file of `bytes`, whole pages, that the disk has room for from here on.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` with what the file system has left and the system's reason.
    pub(super) fn new(folder: &Arc<Folder>, bytes: Bytes) -> Result<Self> {
        let refuse = |why: &dyn Display| {
            let left = match folder.free_space() {
                Ok(Bytes::MAX) | Err(_) => "an unknown number of bytes".to_owned(),
                Ok(left) => format!("{left} ({} bytes)", left.get()),
            };
            let (path, count) = (folder.path.display(), bytes.get());
            let why = format!("a file of {bytes} ({count} bytes) in {path} failed: {why}; its disk has {left} left");
            Error::new(Code::ResourceExhausted, why)
        };
        // Asked before, because a file system that is short of space may give all it has before it says so.
        if folder.free_space().is_ok_and(|left| bytes > left) {
            return Err(refuse(&Errno::NOSPC));
        }
        // The kernel would send a signal as well, which ends the process where nobody handles it.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| bytes.get() > most) {
            return Err(refuse(&"larger than `ulimit -f` allows"));
        }
        let file = folder.make_file().map_err(|errno| refuse(&format!("open: {errno}")))?;
        take_space(&file, bytes).map_err(|errno| refuse(&format!("fallocate: {errno}")))?;
        let page = Bytes::new(page_size() as u64);
        let padded = bytes.checked_add(page + page).ok_or_else(|| refuse(&"more than the address space"))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::new(padded, protection).map_err(|errno| refuse(&format!("mmap: {errno}")))?;
        let inner = Extent { start: mapping.extent().start + page, bytes };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the pages are a part of the mapping above, which only this call knows: what `FIXED` replaces is that
        // part, no reference leads there, and they may be written. The address is a page's, because `bytes` and the
        // mapping's start are whole pages.
        if let Err(errno) = unsafe { mmap(inner.pointer(), inner.len(), protection, flags, &file, 0) } {
            // Kernels before 6.12 may have unmapped the part by then, and somebody else's pages may lie there: they
            // are not to be unmapped with the margins. What stays reserved is addresses, not memory.
            mapping.leak();
            return Err(refuse(&format!("mmap: {errno}")));
        }
        let range = AddressRange { address: inner.start, bytes };
        Ok(Self { mapping, range, file, folder: Arc::clone(folder) })
    }

    /// Where it lies.
    pub(super) fn range(&self) -> AddressRange {
        self.range
    }

    /// Ends it, and with it the file: its space is free.
    ///
    /// # Errors
    /// The kernel's; the pages stay mapped then, and the file stays with them.
    pub(super) fn end(self) -> Result<()> {
        let AddressRange { address, bytes } = self.range;
        let failed = |errno| Error::internal(format!("munmap of {} bytes at {address} failed: {errno}", bytes.get()));
        self.mapping.unmap().map_err(failed)
    }

    /// Writes bytes to the file, from `at` on. The mapping shows them at once: both are the page cache.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` where the disk is full (its file system copies on write, say), or `INTERNAL`; with the
    /// folder, the place and the system's reason. What the file holds there is undefined then.
    pub(super) fn write(&self, at: Bytes, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < from.len() {
            let written = retry_on_intr(|| pwrite(&self.file, &from[done..], at.get() + done as u64));
            // The system must not say so of a file; again and again would never end.
            match written.and_then(|count| if count > 0 { Ok(count) } else { Err(Errno::IO) }) {
                Ok(count) => done += count,
                Err(errno) => {
                    let code = match errno {
                        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Code::ResourceExhausted,
                        _ => Code::Internal,
                    };
                    return Err(self.failed(code, ("writing", "to"), (at, from.len(), done), &errno));
                }
            }
        }
        Ok(())
    }

    /// Reads bytes of the file, from `at` on, to all of `to`.
    ///
    /// # Errors
    /// `INTERNAL` with the folder, the place and the system's reason; what `to` holds is undefined then.
    pub(super) fn read(&self, at: Bytes, to: &mut [MaybeUninit<u8>]) -> Result<()> {
        let (all, mut done) = (to.len(), 0);
        while done < all {
            let left = &mut to[done..];
            let failed =
                |why: &dyn Display| Err(self.failed(Code::DataLoss, ("reading", "from"), (at, all, done), why));
            match retry_on_intr(|| pread(&self.file, &mut *left, at.get() + done as u64).map(|(read, _)| read.len())) {
                Ok(0) => return failed(&"the file ends there: it was cut"),
                Ok(count) => done += count,
                Err(errno) => return failed(&errno),
            }
        }
        Ok(())
    }

    /// Copies bytes of one file to another, or to another place of the same one.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`].
    pub(super) fn copy(&self, at: Bytes, (to, there): (&Self, Bytes), bytes: Bytes) -> Result<()> {
        self.each_piece(at, bytes, |done, piece| to.write(there + done, piece))
    }

    /// Brings pages into memory, so that a disk that fails is an error here, and not the signal SIGBUS where they are
    /// used. Pages that the kernel takes back before they are used may fail all the same.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn check_readable(&self, at: Bytes, bytes: Bytes) -> Result<()> {
        let page = Bytes::new(page_size() as u64);
        let first = at.round_down(page);
        // All pages that the bytes touch: the region is whole pages, so none of them is outside.
        let end = (at + bytes).checked_round_up(page).unwrap_or(self.range.bytes);
        let pages = Extent { start: self.range.address + first, bytes: end - first };
        // SAFETY: the pages lie in this value's mapping; they are read, which changes nothing that a reference could
        // see.
        let populated = retry_on_intr(|| unsafe { madvise(pages.pointer(), pages.len(), Advice::LinuxPopulateRead) });
        let Err(errno) = populated else { return Ok(()) };
        // It reads the bytes of a kernel that knows no such advice (before 5.14), and has the reason of others.
        self.check_by_reading(at, bytes)?;
        if errno == Errno::INVAL {
            return Ok(());
        }
        Err(self.failed(Code::DataLoss, ("reading", "from"), (at, bytes.get() as usize, 0), &errno))
    }

    /// The same by reading the file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) fn check_by_reading(&self, at: Bytes, bytes: Bytes) -> Result<()> {
        self.each_piece(at, bytes, |_, _| Ok(()))
    }

    /// Reads a part of the file piece by piece: how many bytes came before, and the piece.
    ///
    /// # Errors
    /// As [`Self::read`], or what `each` returns.
    fn each_piece(&self, at: Bytes, bytes: Bytes, mut each: impl FnMut(Bytes, &[u8]) -> Result<()>) -> Result<()> {
        let mut bounce = vec![MaybeUninit::uninit(); bytes.min(BOUNCE).get() as usize];
        let mut done = Bytes::ZERO;
        while done < bytes {
            let piece = &mut bounce[..(bytes - done).min(BOUNCE).get() as usize];
            self.read(at + done, piece)?;
            // SAFETY: `read` has written all of the piece.
            each(done, unsafe { piece.assume_init_ref() })?;
            done += Bytes::new(piece.len() as u64);
        }
        Ok(())
    }

    /// The error of `doing` so many bytes `at` an offset, `done` of which are.
    #[cold]
    fn failed(
        &self,
        code: Code,
        (doing, way): (&str, &str),
        (at, bytes, done): (Bytes, usize, usize),
        why: &dyn Display,
    ) -> Error {
        let (path, length, address) = (self.folder.path.display(), self.range.bytes.get(), self.range.address);
        Error::new(
            code,
            format!(
                "{doing} {bytes} bytes of a spilled array {way} {path} failed: {why} (after {done} bytes from offset \
                 {} on, in the file of {length} bytes that is mapped at {address})",
                at.get()
            ),
        )
    }
}

/// Lets the file have `bytes`, so that a disk that is full is an error here and not a signal where the bytes are used.
///
/// # Errors
/// The kernel's.
fn take_space(file: &OwnedFd, bytes: Bytes) -> rustix::io::Result<()> {
    let mut taken = Bytes::ZERO;
    while taken < bytes {
        let piece = TAKEN_AT_ONCE.min(bytes - taken);
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), taken.get(), piece.get()))?;
        taken += piece;
    }
    Ok(())
}

/// Bytes of this process's memory, as the kernel writes them.
///
/// # Safety
/// `bytes` from `from` on, one or more, are readable memory of this process, and nothing writes to them for `'a`.
pub(super) unsafe fn bytes_at<'a>(from: Address, bytes: Bytes) -> &'a [u8] {
    let from = std::ptr::with_exposed_provenance::<u8>(from.get() as usize);
    // SAFETY: readable and unchanged for `'a` by the contract; not NULL, because it is memory. Bytes need no alignment;
    // they come from the engine or the system, which have written them before this process's Rust sees them.
    unsafe { std::slice::from_raw_parts(from, bytes.get() as usize) }
}

/// Bytes of this process's memory, to be written.
///
/// # Safety
/// `bytes` from `to` on, one or more, are writable memory of this process, and nothing else reads or writes them for
/// `'a`.
pub(super) unsafe fn space_at<'a>(to: Address, bytes: Bytes) -> &'a mut [MaybeUninit<u8>] {
    let to = std::ptr::with_exposed_provenance_mut::<MaybeUninit<u8>>(to.get() as usize);
    // SAFETY: writable and nobody else's for `'a` by the contract; not NULL, because it is memory. Bytes need no
    // alignment, and these may be uninitialised.
    unsafe { std::slice::from_raw_parts_mut(to, bytes.get() as usize) }
}
