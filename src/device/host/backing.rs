//! The host as a device: regions of its memory.

use std::sync::Arc;

use rustix::mm::ProtFlags;

use crate::{
    device::{
        host::{
            exchanges::Exchanges,
            huge::{self, HugePages, huge_pages},
            mappable::Mappable,
            mapping::Mapping,
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
        let padded = bytes.checked_add(margins + align - self.page);
        let padded = padded.ok_or_else(|| refuse("more than the address space".into()))?;
        let mapping = Mapping::new(padded, ProtFlags::READ | ProtFlags::WRITE);
        let mapping = mapping.map_err(|errno| refuse(errno.to_string()))?;
        let mapped = mapping.extent().start;
        let first = Bytes::new(mapped.get()).checked_add(self.page);
        let address = first.and_then(|first| first.checked_round_up(align)).map(|start| Address::new(start.get()));
        let address = address.ok_or_else(|| refuse("a mapping at the end of the address space".into()))?;
        let (head, rest) = mapping.split((address - mapped) - self.page);
        let (margined, tail) = rest.split(bytes + margins);
        // Where the kernel refuses to take one back it stays reserved: addresses without memory, no reason to refuse.
        drop((head, tail));
        if bytes >= HUGE_PAGE {
            // With the margins: they stay one mapping with the region, and mappings are few.
            self.advise(margined.extent());
        }
        margined.leak();
        // SAFETY: the region and its margins are what is left of a mapping that only this call knows, so no other
        // `Region` covers any of it; `release` unmaps the region with a page on either side, which are the margins.
        Ok(unsafe { Region::new(AddressRange { address, bytes }) })
    }

    /// Where the process may not map all it wants (`ulimit -v`, `-d`), threads, malloc and the engine keep what they
    /// need.
    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        if let Some(mappable) = Mappable::now()
            && bytes > mappable.free()
        {
            let why = format!("a region of {bytes} would leave threads and malloc too little: {mappable}");
            return Err(Error::new(Code::ResourceExhausted, why));
        }
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        let AddressRange { address, bytes } = *region;
        // Before the kernel can map something else there.
        self.exchanges.released(Extent { start: address, bytes });
        let margined =
            Extent { start: Address::new(address.get() - self.page.get()), bytes: bytes + self.page + self.page };
        // SAFETY: the token is the only one for this memory, and is consumed here; `reserve` leaked it with a page of
        // margin on either side. That nothing uses the region any more is what giving up its token says.
        unmap(unsafe { Mapping::own(margined) })
    }

    fn granularity(&self) -> Bytes {
        self.page
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        None
    }
}

/// Unmaps.
fn unmap(mapping: Mapping) -> Result<()> {
    let Extent { start, bytes } = mapping.extent();
    let failed = |errno| Error::internal(format!("munmap of {} bytes at {start} failed: {errno}", bytes.get()));
    mapping.unmap().map_err(failed)
}
