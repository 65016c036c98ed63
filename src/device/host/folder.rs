//! Files of a folder as memory: for arrays that the machine's memory has no room for.
//!
//! ```text
//!  addresses:  |page|           region           |page|     the pages beside it are margins, as of `HostBacking`
//!                   |  mapped, shared, from 0 on |
//!  disk:            | a file without a name, 0600|          taken by `reserve`, free after `release`
//!
//!  copies in and out:  pwrite, pread     a disk that is full or fails is an error
//!  reads in place:     the mapping       a disk that fails is a signal, so `check_readable` comes before
//! ```
//!
//! Copies go by the file and not by the mapping: the process's own memory does not grow by what it copies, and the
//! kernel may write the pages out and forget them as it likes.
//!
//! A file has no name, so nobody finds one in the folder, and none is left over, even after `kill -9`. Where the file
//! system makes no such files, a file has a name until it is unlinked at once.
//!
//! A child after `fork` shares the files with its parent, which may give an array's place to another one at any time.
//! So what would copy or check there is an error.

mod file;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fs, path::Path, ptr, sync::Arc};

use parking_lot::Mutex;
use rustix::{
    fs::{Mode, OFlags, fstatfs},
    io::retry_on_intr,
    param::page_size,
};

use crate::{
    device::{
        Carrier, HostArray, Mover,
        host::folder::file::{FileRegion, Folder, bytes_at, space_at},
        shift::{Extent, Shift},
        strided,
    },
    error::{Error, Result},
    fork,
    memory::{AddressRange, Backing, Region, compaction::Costs},
    units::{Address, Bytes},
};

/// File systems whose files are memory (`statfs(2)`): tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// What an arena may take in advance: no other file can have it then. Not much less, because each region is an open
/// file, and a process may have a thousand as a rule.
const IN_ADVANCE: Bytes = Bytes::gib(4);

/// A folder as a device: regions are files in it. Clones are the same device.
#[derive(Clone, Debug)]
pub struct FolderBacking(Arc<Device>);

#[derive(Debug)]
struct Device {
    folder: Arc<Folder>,
    /// By their first address. No lock is held while a file is read or written.
    files: Mutex<BTreeMap<Address, Arc<FileRegion>>>,
    /// [`fork::generation`] of the process whose files they are.
    generation: u32,
}

/// Where an address lies: in which file, from which byte on.
struct Place {
    file: Arc<FileRegion>,
    at: Bytes,
}

impl FolderBacking {
    /// The device of a folder. It is tried out: a page is taken there, and given back.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the path, the reason and what is allowed.
    pub fn open(folder: &Path) -> Result<Self> {
        // The system follows a link with a slash or a dot behind it.
        let folder = folder.components().as_path();
        let refuse = |why: &str| {
            Error::invalid_argument(format!(
                "arrays cannot go to the folder {}: {why}; allowed is a folder that exists, on a disk with space, that \
                 this process may write to, and not a symbolic link",
                folder.display()
            ))
        };
        let found = fs::symlink_metadata(folder).map_err(|error| refuse(&error.to_string()))?;
        if found.is_symlink() {
            return Err(refuse("it is a symbolic link"));
        }
        if !found.is_dir() {
            return Err(refuse("it is not a folder"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = retry_on_intr(|| rustix::fs::open(folder, flags, Mode::empty()));
        let directory = directory.map_err(|errno| refuse(&errno.to_string()))?;
        let kind = fstatfs(&directory).map_err(|errno| refuse(&errno.to_string()))?.f_type as u32;
        let folder = Arc::new(Folder { path: folder.to_owned(), directory });
        // By the way `reserve` goes, so that what the file system lacks is known now and not when memory is exhausted.
        FileRegion::new(&folder, Bytes::new(page_size() as u64)).map_err(|error| refuse(&error.message))?.end()?;
        if IN_MEMORY.contains(&kind) {
            let path = folder.path.display();
            log::warn!("arrays that go to the folder {path} stay in memory: its files are (tmpfs or ramfs)");
        }
        Ok(Self(Arc::new(Device { folder, files: Mutex::default(), generation: fork::generation() })))
    }

    /// What the folder's file system has left for this user, beside the regions; [`Bytes::MAX`] where it does not say.
    ///
    /// # Errors
    /// `INTERNAL` with the system's reason.
    pub fn free_space(&self) -> Result<Bytes> {
        let failed = |errno| Error::internal(format!("statvfs of {} failed: {errno}", self.0.folder.path.display()));
        self.0.folder.free_space().map_err(failed)
    }

    /// Where a range lies; `None` for memory of somebody else.
    ///
    /// # Errors
    /// `INTERNAL` if it goes beyond its region, FAILED_PRECONDITION in a child of the process whose files they are.
    fn place(&self, address: Address, bytes: Bytes) -> Result<Option<Place>> {
        // Before the lock, which a child may find in the hands of a thread that it lacks.
        if self.0.generation != fork::generation() {
            return Err(Error::failed_precondition(format!(
                "spilled arrays in {} are of the parent of this process, which may write to them",
                self.0.folder.path.display()
            )));
        }
        let file = self.0.files.lock().range(..=address).next_back().map(|(_, file)| Arc::clone(file));
        let Some(file) = file else { return Ok(None) };
        let range = file.range();
        let at = address - range.address;
        if at >= range.bytes {
            return Ok(None);
        }
        if bytes > range.bytes - at {
            return Err(Error::internal(format!(
                "{} bytes at {address} are not in one region: the one at {} has {}",
                bytes.get(),
                range.address,
                range.bytes.get()
            )));
        }
        Ok(Some(Place { file, at }))
    }

    /// Where a range of this device lies.
    ///
    /// # Errors
    /// As [`Self::place`], and for memory of somebody else.
    fn own_place(&self, address: Address, bytes: Bytes) -> Result<Place> {
        self.place(address, bytes)?.ok_or_else(|| self.not_ours(address))
    }

    #[cold]
    fn not_ours(&self, address: Address) -> Error {
        Error::internal(format!("{address} is in no file of {}", self.0.folder.path.display()))
    }
}

impl Backing for FolderBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let file = FileRegion::new(&self.0.folder, bytes)?;
        let range = file.range();
        self.0.files.lock().insert(range.address, Arc::new(file));
        // SAFETY: the file was mapped there just now, so no other `Region` covers any of it; `release` ends the file
        // that is kept for this range.
        Ok(unsafe { Region::new(range) })
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        let AddressRange { address, .. } = *region;
        let file = self.0.files.lock().remove(&address).ok_or_else(|| self.not_ours(address))?;
        // Where another thread checks its pages at the moment, it ends after that.
        Arc::into_inner(file).map_or(Ok(()), FileRegion::end)
    }

    fn granularity(&self) -> Bytes {
        Bytes::new(page_size() as u64)
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        Some(IN_ADVANCE)
    }
}

impl Mover for FolderBacking {
    fn costs(&self) -> Costs {
        Costs::COPY
    }

    /// Ranges that overlap are refused: a disk that failed halfway would leave neither of them whole.
    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let Some(shift) = Shift::new(Extent { start: from, bytes }, to) else { return Ok(()) };
        if shift.hole.bytes < bytes {
            return Err(Error::unimplemented(format!(
                "{} bytes at {from} do not move to {to}: in files a block moves only to where it does not lie already",
                bytes.get()
            )));
        }
        let (source, target) = (self.own_place(from, bytes)?, self.own_place(to, bytes)?);
        source.file.copy(source.at, (&target.file, target.at), bytes)
    }

    /// Nothing: the space of a block that is free is kept for the next one, which must not find the disk full.
    unsafe fn discard(&self, _: Address, _: Bytes) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }
}

impl Carrier for FolderBacking {
    fn is_host(&self) -> bool {
        true
    }

    /// An array that is not dense is made so in memory before.
    unsafe fn upload(&self, from: HostArray<'_>, to: Address) -> Result<()> {
        let size = from.size()?;
        if size == 0 {
            return Ok(());
        }
        let bytes = Bytes::new(size as u64);
        let Place { file, at } = self.own_place(to, bytes)?;
        if from.dense().is_some() {
            let start = Address::new(from.start().expose_provenance() as u64);
            // SAFETY: the dense array is so many bytes, one or more, that are readable and do not change while `from`
            // lives (`HostArray::new`).
            return file.write(at, unsafe { bytes_at(start, bytes) });
        }
        let mut dense = vec![0; size];
        // SAFETY: the vector is as long as the dense array, new, and this call's alone.
        unsafe { strided::copy_to_dense(from, dense.as_mut_ptr()) };
        file.write(at, &dense)
    }

    /// Either range may lie in memory of somebody else in this process, so that it copies from a device of the host to
    /// this one and back.
    unsafe fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        if bytes.is_zero() {
            return Ok(());
        }
        match (self.place(from, bytes)?, self.place(to, bytes)?) {
            (Some(source), Some(target)) => source.file.copy(source.at, (&target.file, target.at), bytes),
            // SAFETY: by the contract both ranges are allocated, so memory of this process, with one byte or more; the
            // destination is this copy's alone.
            (Some(source), None) => source.file.read(source.at, unsafe { space_at(to, bytes) }),
            // SAFETY: by the contract the source is allocated, so memory of this process, with one byte or more, and
            // nothing writes to it meanwhile.
            (None, Some(target)) => target.file.write(target.at, unsafe { bytes_at(from, bytes) }),
            (None, None) => {
                let from = ptr::with_exposed_provenance(from.get() as usize);
                let to = ptr::with_exposed_provenance_mut(to.get() as usize);
                // SAFETY: by the contract both ranges are allocated, so memory of this process, do not overlap, and are
                // neither written nor, the destination, read by others.
                unsafe { strided::copy(from, to, bytes.get() as usize) };
                Ok(())
            }
        }
    }

    /// Brings them into memory. Pages that the kernel takes back before they are read may still end the process with a
    /// signal, if the disk fails then.
    fn check_readable(&self, from: Address, bytes: Bytes) -> Result<()> {
        if bytes.is_zero() {
            return Ok(());
        }
        let Place { file, at } = self.own_place(from, bytes)?;
        file.check_readable(at, bytes)
    }

    unsafe fn order(&self, _: isize) -> Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}
