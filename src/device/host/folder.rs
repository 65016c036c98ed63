//! Memory in files of a folder: the tier for arrays that the machine's memory does not hold.
//!
//! ```text
//!   a region     |page|   a file of the folder, mapped shared   |page|     the file has no name, and all its blocks
//!                           ^ read there by the engine
//!   copied to and from with pwrite and pread: pages of the file are not this process' memory
//! ```
//!
//! A file is made without a name (`O_TMPFILE`), or loses it at once, so that a process that is killed leaves none. It
//! gets all of its blocks before the region exists: a disk that is full is an error then, and no SIGBUS later. A disk
//! that fails is an error of the copy; who reads a mapping in place asks [`Carrier::check_readable`] first.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::{
    fd::OwnedFd,
    fs::{self, AtFlags, FallocateFlags, Mode, OFlags},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap},
};

use crate::{
    device::{Carrier, HostArray, Mover, host::backing::HostBacking, strided},
    error::{Code, Error, Result},
    memory::{AddressRange, Backing, Region, compaction::Costs},
    units::{Address, Bytes},
};

/// What `statfs` says of file systems whose files are memory: `TMPFS_MAGIC` and `RAMFS_MAGIC` of `linux/magic.h`.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Memory in files of one folder. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct FolderBacking {
    folder: Arc<Folder>,
    /// Reserves the addresses.
    host: HostBacking,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Files are made here, whatever the path means by then.
    directory: OwnedFd,
    /// The file of each region, by its first address.
    files: Mutex<BTreeMap<u64, Arc<RegionFile>>>,
}

#[derive(Debug)]
struct RegionFile {
    file: File,
    bytes: Bytes,
}

impl FolderBacking {
    /// Memory in files of this folder.
    ///
    /// # Errors
    /// INVALID_ARGUMENT that names the folder, if it does not exist, is a link or no folder, or no file can be made in
    /// it.
    pub fn open(path: &Path) -> Result<Self> {
        let refuse = |why: String| {
            let allowed = "allowed is a folder that exists, is no link, and in which files can be written";
            Error::invalid_argument(format!("arrays cannot be spilled to {}: {why}; {allowed}", path.display()))
        };
        let kind = std::fs::symlink_metadata(path).map_err(|error| refuse(error.to_string()))?.file_type();
        if kind.is_symlink() {
            return Err(refuse("it is a link".to_owned()));
        }
        if !kind.is_dir() {
            return Err(refuse("it is no folder".to_owned()));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = fs::open(path, flags, Mode::empty()).map_err(|errno| refuse(errno.to_string()))?;
        if fs::fstatfs(&directory).is_ok_and(|about| IN_MEMORY.contains(&(about.f_type as u64))) {
            log::warn!("{} is in memory: arrays that are spilled there take as much of it as before", path.display());
        }
        let folder = Folder { path: path.to_owned(), directory, files: Mutex::default() };
        folder.make_file().map_err(|errno| refuse(errno.to_string()))?;
        Ok(Self { folder: Arc::new(folder), host: HostBacking::new() })
    }

    /// What this user can write to the file system.
    ///
    /// # Errors
    /// INTERNAL if the kernel does not say.
    pub fn free_space(&self) -> Result<Bytes> {
        self.folder.free_space().map_err(|errno| {
            Error::internal(format!("the kernel does not say how full {} is: {errno}", self.folder.path.display()))
        })
    }

    /// Maps a file without a name, which has all its blocks, in place of the pages of `region`.
    fn map_file(&self, region: AddressRange) -> Result<()> {
        let AddressRange { address, bytes } = region;
        let failed = |what: &str, errno: Errno| {
            let left = self.folder.free_space().map_or_else(|_| "?".to_owned(), |left| left.to_string());
            let text = format!(
                "{what} a file of {bytes} ({} bytes) in {} failed: {errno}; {left} are free there",
                bytes.get(),
                self.folder.path.display()
            );
            Error::new(Code::ResourceExhausted, text)
        };
        let file = self.folder.make_file().map_err(|errno| failed("making", errno))?;
        fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.get()).map_err(|errno| failed("filling", errno))?;
        let (start, protection) =
            (ptr::with_exposed_provenance_mut(address.get() as usize), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the range is one region that nothing else knows yet, whole pages of a mapping that stays; the file is
        // as long, and nothing but this value's owner knows it.
        let mapped =
            unsafe { mmap(start, bytes.get() as usize, protection, MapFlags::SHARED | MapFlags::FIXED, &file, 0) };
        mapped.map_err(|errno| failed("mapping", errno))?;
        self.folder.files.lock().insert(address.get(), Arc::new(RegionFile { file: file.into(), bytes }));
        Ok(())
    }
}

impl Folder {
    /// A new file that has no name, or none any more.
    fn make_file(&self) -> rustix::io::Result<OwnedFd> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match fs::openat(&self.directory, ".", flags | OFlags::TMPFILE, mode) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
            made => return made,
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!(".pjrt-arena-{}-{number}", std::process::id());
            match fs::openat(&self.directory, &*name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
                // A process before this one, of the same number, was killed between the two calls.
                Err(Errno::EXIST) => continue,
                made => {
                    let made = made?;
                    fs::unlinkat(&self.directory, &*name, AtFlags::empty())?;
                    return Ok(made);
                }
            }
        }
    }

    fn free_space(&self) -> rustix::io::Result<Bytes> {
        let about = fs::fstatvfs(&self.directory)?;
        Ok(Bytes::new(about.f_bavail.saturating_mul(about.f_frsize)))
    }

    /// The file behind an address, and the offset in it.
    fn file_at(&self, address: Address) -> Option<(Arc<RegionFile>, u64)> {
        let files = self.files.lock();
        let (start, file) = files.range(..=address.get()).next_back()?;
        let offset = address.get() - start;
        (offset < file.bytes.get()).then(|| (Arc::clone(file), offset))
    }

    fn failed(&self, what: &str, bytes: Bytes, error: &io::Error) -> Error {
        let text = format!("{what} {bytes} of a spilled array failed in {}: {error}", self.path.display());
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        Error::new(if full { Code::ResourceExhausted } else { Code::DataLoss }, text)
    }
}

impl Backing for FolderBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let region = self.host.reserve(bytes)?;
        match self.map_file(*region) {
            Ok(()) => Ok(region),
            Err(error) => {
                self.host.release(region)?;
                Err(error)
            }
        }
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        let start = region.address.get();
        self.host.release(region)?;
        // The last owner of the file: the disk has its blocks back.
        drop(self.folder.files.lock().remove(&start));
        Ok(())
    }

    fn granularity(&self) -> Bytes {
        self.host.granularity()
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.host.most_in_advance()
    }
}

impl Mover for FolderBacking {
    fn costs(&self) -> Costs {
        self.host.costs()
    }

    unsafe fn relocate(&self, _: Address, _: Address, _: Bytes) -> Result<()> {
        Err(Error::internal("arrays in files are not moved"))
    }

    unsafe fn discard(&self, _: Address, _: Bytes) -> Result<Bytes> {
        // A hole keeps its blocks: a file without them could not be written when the disk is full.
        Ok(Bytes::ZERO)
    }
}

impl Carrier for FolderBacking {
    fn is_host(&self) -> bool {
        true
    }

    unsafe fn upload(&self, from: HostArray<'_>, to: Address) -> Result<()> {
        // The mapping is for reading.
        _ = (from, to);
        Err(Error::internal("arrays are not uploaded to files"))
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let memory = |address: Address| address.get() as usize;
        match (self.folder.file_at(from), self.folder.file_at(to)) {
            (None, Some((into, offset))) => {
                // SAFETY: by the contract the source's bytes are there, in memory of this process, and nothing writes
                // to them until this returns.
                let source = unsafe {
                    std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(memory(from)), bytes.get() as usize)
                };
                into.file.write_all_at(source, offset).map_err(|error| self.folder.failed("writing", bytes, &error))
            }
            (Some((out_of, offset)), None) => {
                // SAFETY: by the contract the destination is allocated, in memory of this process, and nothing else
                // reads or writes it until this returns. `read_exact_at` only writes to it; bytes have no invalid
                // values.
                let destination = unsafe {
                    let start = ptr::with_exposed_provenance_mut::<u8>(memory(to));
                    std::slice::from_raw_parts_mut(start, bytes.get() as usize)
                };
                let read = out_of.file.read_exact_at(destination, offset);
                read.map_err(|error| self.folder.failed("reading", bytes, &error))
            }
            (None, None) => {
                let (from, to) = (memory(from), memory(to));
                let (from, to) = (ptr::with_exposed_provenance(from), ptr::with_exposed_provenance_mut(to));
                // SAFETY: by the contract both ranges are allocated, in memory of this process, do not overlap, and
                // nothing else writes them, or reads the destination.
                unsafe { strided::copy(from, to, bytes.get() as usize) };
                Ok(())
            }
            (Some(_), Some(_)) => Err(Error::internal("arrays in files are not copied to files")),
        }
    }

    fn check_readable(&self, from: Address, bytes: Bytes) -> Result<()> {
        let Some((file, offset)) = self.folder.file_at(from) else { return Ok(()) };
        let page = self.granularity();
        let start = Bytes::new(from.get()).round_down(page);
        let length = (from.get() + bytes.get()).saturating_sub(start.get()) as usize;
        let pages = ptr::with_exposed_provenance_mut(start.get() as usize);
        // SAFETY: the pages are those of one region of a file, which stays mapped while the caller's block lives; they
        // are made present, and nothing is written.
        match unsafe { madvise(pages, length, Advice::LinuxPopulateRead) } {
            Ok(()) => Ok(()),
            // A kernel before 5.14. Read with errors in place of signals, the pages are in the kernel's cache.
            Err(Errno::INVAL) => {
                let mut piece = vec![0; (1 << 20).min(bytes.get() as usize)];
                let mut at = 0;
                while at < bytes.get() {
                    let length = (bytes.get() - at).min(piece.len() as u64) as usize;
                    let read = file.file.read_exact_at(&mut piece[..length], offset + at);
                    read.map_err(|error| self.folder.failed("reading", bytes, &error))?;
                    at += length as u64;
                }
                Ok(())
            }
            Err(errno) => Err(self.folder.failed("reading", bytes, &errno.into())),
        }
    }

    unsafe fn order(&self, _: isize) -> Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}

#[cfg(test)]
mod tests;
