//! Pages of the host that play the memory of GPUs.
//!
//! ```text
//!  addresses   | reserved, PROT_NONE |  mapped: pages of the GPU's file  | reserved |   anonymous pages   |
//!                                         |
//!  file        ...........| 2 MiB |.......v.........   one a GPU, sparse: an allocation is a range of it
//! ```
//!
//! A physical allocation of the VMM functions is a range of a file in memory, so that its contents are there wherever
//! it is mapped, also twice. Fresh memory is zero and takes no pages before it is touched.

use std::{ffi::c_void, io, os::fd::OwnedFd, ptr};

use rustix::{
    fs::{FallocateFlags, MemfdFlags},
    mm::{MapFlags, MprotectFlags, ProtFlags},
};

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// Nothing: what every new mapping begins with.
    Nothing,
    /// Reading.
    Read,
    /// Reading and writing.
    Write,
}

impl Protection {
    fn map_flags(self) -> ProtFlags {
        match self {
            Self::Nothing => ProtFlags::empty(),
            Self::Read => ProtFlags::READ,
            Self::Write => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// The physical memory of one GPU that the VMM functions give out.
#[derive(Debug)]
pub struct File {
    file: OwnedFd,
    /// Where the next allocation begins. Offsets are not used twice: the file is sparse.
    end: u64,
}

impl File {
    /// A new one.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        Ok(Self { file: rustix::fs::memfd_create(c"fake-gpu", MemfdFlags::CLOEXEC)?, end: 0 })
    }

    /// A range of `bytes` that holds zeros.
    ///
    /// # Errors
    /// The system's.
    pub fn grow(&mut self, bytes: u64) -> io::Result<u64> {
        let offset = self.end;
        rustix::fs::ftruncate(&self.file, offset + bytes)?;
        self.end += bytes;
        Ok(offset)
    }

    /// Gives the pages of a range back to the system.
    pub fn discard(&self, offset: u64, bytes: u64) {
        // A system that cannot do this keeps the pages; nothing reads them any more.
        let _ =
            rustix::fs::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes);
    }

    /// Puts a range at `address`, which must be reserved by [`reserve`], for what `protection` says.
    ///
    /// # Errors
    /// The system's.
    pub fn map(&self, address: u64, bytes: u64, offset: u64, protection: Protection) -> io::Result<()> {
        let flags = protection.map_flags();
        // SAFETY: the caller has reserved these addresses, so that nothing but a reservation of ours is replaced.
        unsafe {
            rustix::mm::mmap(at(address), bytes as usize, flags, MapFlags::SHARED | MapFlags::FIXED, &self.file, offset)
        }?;
        Ok(())
    }
}

fn at(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

fn anonymous(hint: u64, bytes: u64, protection: ProtFlags, flags: MapFlags) -> io::Result<u64> {
    // SAFETY: new pages at a place that the system chooses, or over a reservation of ours where `flags` say FIXED.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            at(hint),
            bytes as usize,
            protection,
            flags | MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?;
    Ok(start.expose_provenance() as u64)
}

/// New memory, zero at first.
///
/// # Errors
/// The system's.
pub fn allocate(bytes: u64) -> io::Result<u64> {
    anonymous(0, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
}

/// Addresses that are a multiple of `alignment`, a power of two, and may not be touched. At `hint` where that is free.
///
/// # Errors
/// The system's.
pub fn reserve(bytes: u64, alignment: u64, hint: u64) -> io::Result<u64> {
    if hint != 0 && hint.is_multiple_of(alignment) {
        match anonymous(hint, bytes, ProtFlags::empty(), MapFlags::FIXED_NOREPLACE) {
            Ok(start) if start == hint => return Ok(start),
            // An old kernel takes the flag for a mere hint.
            Ok(start) => give_back(start, bytes),
            Err(_) => {}
        }
    }
    let whole = bytes.checked_add(alignment).ok_or(io::ErrorKind::OutOfMemory)?;
    let found = anonymous(0, whole, ProtFlags::empty(), MapFlags::empty())?;
    let start = found.next_multiple_of(alignment);
    let end = found + whole;
    for (from, to) in [(found, start), (start + bytes, end)] {
        if from < to {
            give_back(from, to - from);
        }
    }
    Ok(start)
}

/// Makes a range of a reservation what it was at first.
pub fn detach(address: u64, bytes: u64) {
    // What was mapped stays if the system refuses; the books know better than the pages.
    let _ = anonymous(address, bytes, ProtFlags::empty(), MapFlags::FIXED);
}

/// Sets what mapped pages may be used for.
///
/// # Errors
/// The system's.
pub fn protect(address: u64, bytes: u64, protection: Protection) -> io::Result<()> {
    let flags = MprotectFlags::from_bits_truncate(protection.map_flags().bits());
    // SAFETY: the pages are a mapping of this module's; nothing in Rust refers to what they hold.
    unsafe { rustix::mm::mprotect(at(address), bytes as usize, flags) }?;
    Ok(())
}

/// Gives addresses and all that lies there back to the system.
pub fn give_back(address: u64, bytes: u64) {
    // SAFETY: the pages are this module's, and the books have dropped them.
    let _ = unsafe { rustix::mm::munmap(at(address), bytes as usize) };
}
