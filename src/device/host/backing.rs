//! The host as a device: regions of its memory.

use std::{ffi::c_void, ptr, sync::Arc};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::{
    device::{
        host::{
            capacity::left_to_map,
            exchanges::Exchanges,
            huge::{self, HugePages, huge_pages},
            pages::HUGE_PAGE,
        },
        shift::Extent,
    },
    error::{Code, Error, Result},
    memory::{AddressRange, Backing, Region},
    units::{Address, Bytes},
};

/// The host as a device. Clones are the same device: one gives regions to an arena while another moves blocks in them.
#[derive(Clone, Debug)]
pub struct HostBacking {
    pub(super) page: Bytes,
    /// Memory is returned to the system in whole units of this: a page, or a huge page where regions ask for those.
    pub(super) grain: Bytes,
    pub(super) exchanges: Arc<Exchanges>,
}

impl HostBacking {
    /// The host, with the page size of the running kernel.
    pub fn new() -> Self {
        let page = Bytes::new(rustix::param::page_size() as u64);
        let unit = if huge_pages() == HugePages::Always { HUGE_PAGE.max(page) } else { page };
        Self { page, grain: page, exchanges: Arc::new(Exchanges::new(unit)) }
    }

    /// The host, whose regions of 2 MiB and more ask for huge pages.
    pub fn with_huge_pages() -> Self {
        let Self { page, .. } = Self::new();
        let grain = HUGE_PAGE.max(page);
        Self { page, grain, exchanges: Arc::new(Exchanges::new(grain)) }
    }

    /// Asks for huge pages, if this device is to have them.
    pub(super) fn advise(&self, extent: Extent) {
        if self.grain > self.page && extent.bytes >= self.grain {
            huge::advise(extent);
        }
    }
}

impl Default for HostBacking {
    fn default() -> Self {
        Self::new()
    }
}

impl Backing for HostBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let refuse = |why: String| {
            Error::new(Code::ResourceExhausted, format!("mmap of {bytes} ({} bytes) failed: {why}", bytes.get()))
        };
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE.max(self.page) } else { self.page };
        let margins = self.page + self.page;
        let padded = bytes.checked_add(margins + align - self.page).and_then(to_len);
        let padded = padded.ok_or_else(|| refuse("more than the address space".into()))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint and no MAP_FIXED: the kernel chooses a range that nothing else uses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), padded, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let start = start.map_err(|errno| refuse(errno.to_string()))?;
        let mapped = Address::new(start.expose_provenance() as u64);
        let first = Bytes::new(mapped.get()).checked_add(self.page);
        let address = first.and_then(|first| first.checked_round_up(align)).map(|start| Address::new(start.get()));
        let address = address.ok_or_else(|| refuse("a mapping at the end of the address space".into()))?;
        let head = (address - mapped) - self.page;
        let tail = Bytes::new(padded as u64) - head - bytes - margins;
        for (from, len) in [(mapped, head), (address + bytes + self.page, tail)] {
            if !len.is_zero() {
                // SAFETY: head and tail are whole pages of the mapping just made, outside of the region and its
                // margins, and no address in them has left this function.
                unsafe { unmap(from, len) }?;
            }
        }
        if bytes >= HUGE_PAGE {
            // With the margins: they stay one mapping with the region, and mappings are few.
            self.advise(Extent { start: Address::new(address.get() - self.page.get()), bytes: bytes + margins });
        }
        // SAFETY: the region and its margins are what is left of a mapping that only this call knows, so no other
        // `Region` covers any of it; `release` unmaps the region with a page on either side, which are the margins.
        Ok(unsafe { Region::new(AddressRange { address, bytes }) })
    }

    /// Where the process may not map all it wants (`ulimit -v`, `-d`), a quarter of what is left stays to threads,
    /// malloc and the engine: a process without a place for a thread's stack ends.
    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        if let Some(left) = left_to_map()
            && bytes.get() > left.get() / 4 * 3
        {
            let why = format!(
                "a region of {bytes} would leave others too little of the {left} that ulimit lets the process map"
            );
            return Err(Error::new(Code::ResourceExhausted, why));
        }
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        let AddressRange { address, bytes } = *region;
        // Before the kernel can map something else there.
        self.exchanges.released(Extent { start: address, bytes });
        let margined = Address::new(address.get() - self.page.get());
        // SAFETY: the token is the only one for this memory, and is consumed here; `reserve` made it with a page of
        // margin on either side. That nothing uses the region any more is what giving up its token says.
        unsafe { unmap(margined, bytes + self.page + self.page) }
    }

    fn granularity(&self) -> Bytes {
        self.page
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        None
    }
}

fn to_len(bytes: Bytes) -> Option<usize> {
    usize::try_from(bytes.get()).ok()
}

/// Ends the mapping of whole pages.
///
/// # Safety
/// The range is mapped by [`HostBacking::reserve`], the caller owns it, and nothing refers to it any more.
unsafe fn unmap(address: Address, bytes: Bytes) -> Result<()> {
    let failed = |why: String| Error::internal(format!("munmap of {} bytes at {address} failed: {why}", bytes.get()));
    let len = to_len(bytes).ok_or_else(|| failed("more than the address space".into()))?;
    let start = ptr::with_exposed_provenance_mut::<c_void>(address.get() as usize);
    // SAFETY: whole pages of an anonymous mapping that the caller owns and nothing refers to, by the contract above, so
    // no live object lies in them.
    unsafe { munmap(start, len) }.map_err(|errno| failed(errno.to_string()))
}

/// Copies bytes into the host's memory.
///
/// # Safety
/// `to` lies in a live block with at least `from.len()` bytes from there on, which no other thread reads or writes
/// meanwhile.
pub unsafe fn write(to: Address, from: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to.get() as usize);
    // SAFETY: `from` is a slice, so readable for its length; `to` is writable for as much by the contract, and no other
    // access is made to it, so the two do not overlap. Bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Copies bytes out of the host's memory.
///
/// # Safety
/// `from` lies in a live block with at least `to.len()` bytes from there on, which no other thread writes meanwhile.
pub unsafe fn read(from: Address, to: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(from.get() as usize);
    // SAFETY: `to` is a slice that is borrowed alone, so writable for its length and apart from `from`, which is
    // readable for as much by the contract. Bytes need no alignment.
    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
}
