//! Anonymous mappings, owned.

use std::{mem, ptr};

use rustix::{
    io::Result,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
    param::page_size,
};

use crate::{
    device::shift::Extent,
    units::{Address, Bytes},
};

/// Whole pages of an anonymous mapping that nothing else covers. Dropping it unmaps them.
#[derive(Debug)]
pub(super) struct Mapping(Extent);

impl Mapping {
    /// A new one of so many bytes, where the kernel has room: a promise of memory, not memory.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(bytes: Bytes, protection: ProtFlags) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        #[cfg(test)]
        faults::next()?;
        // SAFETY: a null hint and no MAP_FIXED: the kernel chooses a range that nothing else uses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes.get() as usize, protection, flags) }?;
        Ok(Self(Extent { start: Address::new(start.expose_provenance() as u64), bytes }))
    }

    /// The owner of pages that another one was [leaked](Self::leak) with.
    ///
    /// # Safety
    /// The pages are all or a part of one that was leaked, no other owner covers any of them, and nothing refers to
    /// them any more when the owner is dropped.
    pub(super) unsafe fn own(pages: Extent) -> Self {
        Self(pages)
    }

    /// Where it lies.
    pub(super) fn extent(&self) -> Extent {
        self.0
    }

    /// The first `bytes` of it, whole pages, and the rest.
    pub(super) fn split(self, bytes: Bytes) -> (Self, Self) {
        assert!(bytes <= self.0.bytes && bytes.is_multiple_of(Bytes::new(page_size() as u64)), "whole pages of it");
        let all = self.leak();
        (Self(all.first(bytes)), Self(all.last(all.bytes - bytes)))
    }

    /// Leaves the pages mapped, without an owner.
    pub(super) fn leak(self) -> Extent {
        mem::ManuallyDrop::new(self).0
    }

    /// Ends it.
    ///
    /// # Errors
    /// The kernel's; the pages stay mapped then.
    pub(super) fn unmap(self) -> Result<()> {
        let pages = self.leak();
        if pages.bytes.is_zero() {
            return Ok(());
        }
        #[cfg(test)]
        faults::next()?;
        // SAFETY: this value owned the pages and is gone, so that no live object lies in them.
        unsafe { munmap(pages.pointer(), pages.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Extent { start, bytes } = self.0;
        if let Err(errno) = mem::replace(self, Self(Extent { start, bytes: Bytes::ZERO })).unmap() {
            log::warn!("munmap of {} bytes at {start} failed: {errno}; they stay reserved", bytes.get());
        }
    }
}

/// Refusals of the kernel's, by order of a test, on its own thread.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::Cell;

    use rustix::io::{Errno, Result};

    thread_local! {
        /// Calls until one fails.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Lets the `n`th call from now on fail; zero is the next one.
    pub(in crate::device::host) fn fail_nth(n: u64) {
        LEFT.set(Some(n));
    }

    /// Takes the order back; whether it was still to come.
    pub(in crate::device::host) fn countermand() -> bool {
        LEFT.take().is_some()
    }

    /// Asked before each call.
    pub(in crate::device::host) fn next() -> Result<()> {
        match LEFT.get() {
            Some(0) => {
                LEFT.set(None);
                Err(Errno::NOMEM)
            }
            left => {
                LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}
