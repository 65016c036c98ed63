//! Slots for small results, so that scalars never punch holes into the space of the large ones.
//!
//! ```text
//!  extent (up to 2 MiB, from the strategy)
//!  | page 0        | page 1        | page 2        | ...            pages of 64 KiB, each of one class or of none
//!  | 256 slots     | 16 slots      |    no class   |
//!  | of 256 bytes  | of 4 KiB      |               |
//!      ^ vacant: one bit per slot
//!
//!  lists[0..5]  pages of a class that have a vacant slot      lists[NO_CLASS]  pages without a class
//! ```
//!
//! A training step makes thousands of results of 4 bytes to 1 KiB (losses, counters, keys) between results of many
//! MiB; jax#9064 is what becomes of the holes between them. Here 4,096 of them share one extent of 1 MiB.
//!
//! *Hysteresis*: a class keeps its last page when that page becomes empty, and the manager keeps one extent without
//! slots in use. A loop over one scalar therefore touches one bit and no list.
//!
//! *Last resort*: when no extent can be had, a small block takes a vacant slot of a larger class.
//!
//! All operations are O(1), [`Slabs::adopt`] and [`Slabs::remove`] in the number of an extent's pages (at most 32).
//! Classes are powers of two: the slack of a slot is below half of it, and a page has no tail.

use std::num::NonZeroU32;

use crate::{
    memory::space::node::SpanState,
    units::{Address, Bytes},
};

/// The largest request that gets a slot.
pub(crate) const LARGEST_SLOT: Bytes = Bytes::kib(4);
/// The unit that extents are made of.
pub(crate) const PAGE: Bytes = Bytes::kib(64);
/// The largest extent.
pub(crate) const MAX_EXTENT: Bytes = Bytes::mib(2);

const SMALLEST_SLOT: Bytes = Bytes::new(256);
const PAGES_PER_EXTENT: usize = (MAX_EXTENT.get() / PAGE.get()) as usize;
const CLASSES: usize = 5;
/// The list of pages that have no class.
const NO_CLASS: usize = CLASSES;
const WORDS: usize = 4;

const _: () = assert!(SMALLEST_SLOT.get() << (CLASSES - 1) == LARGEST_SLOT.get());
const _: () = assert!(PAGE.get() / SMALLEST_SLOT.get() == (WORDS * 64) as u64);

/// The size class of a slot: 256 bytes shifted left by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

/// An extent's number; numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentId(u16);

/// A slot: extent, page in the extent, slot in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId {
    extent: ExtentId,
    page: u8,
    slot: u8,
}

/// A page's number plus one, so that an optional link takes four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageId(NonZeroU32);

#[derive(Clone, Copy, Debug)]
struct Page {
    /// A set bit is a vacant slot.
    vacant: [u64; WORDS],
    /// The page's class, or [`NO_CLASS`]: also the list that it is in, unless it is full.
    list: u8,
    /// The slot freed last: taken again first, so that a block comes back at its address.
    warm: u8,
    used: u16,
    retired: u16,
    prev: Option<PageId>,
    next: Option<PageId>,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    address: Address,
    bytes: Bytes,
    used: u32,
    retired: u32,
}

/// All extents, their pages and slots.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    extents: Vec<Option<Extent>>,
    /// [`PAGES_PER_EXTENT`] elements for each extent.
    pages: Vec<Page>,
    lists: [Option<PageId>; CLASSES + 1],
    /// Extents without a slot in use.
    idle: u32,
    extent_bytes: Bytes,
    held: Bytes,
}

impl Class {
    /// The class whose slots hold `size`; `None` for what is too large for any.
    pub(crate) fn of(size: Bytes) -> Option<Self> {
        let slot = size.max(SMALLEST_SLOT).get().checked_next_power_of_two()?;
        (slot <= LARGEST_SLOT.get()).then(|| Self((slot.ilog2() - SMALLEST_SLOT.get().ilog2()) as u8))
    }

    /// The size of a slot.
    pub(crate) fn size(self) -> Bytes {
        Bytes::new(SMALLEST_SLOT.get() << self.0)
    }

    fn list(self) -> usize {
        usize::from(self.0)
    }

    fn slots(self) -> u16 {
        256 >> self.0
    }
}

impl ExtentId {
    /// The number, for tables beside this one.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl SlotId {
    fn page_id(self) -> PageId {
        PageId::new(self.extent, usize::from(self.page))
    }
}

impl PageId {
    fn new(extent: ExtentId, page: usize) -> Self {
        let number = extent.index() * PAGES_PER_EXTENT + page;
        Self(NonZeroU32::MIN.saturating_add(number as u32))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    fn extent(self) -> ExtentId {
        ExtentId((self.index() / PAGES_PER_EXTENT) as u16)
    }

    fn page(self) -> u8 {
        (self.index() % PAGES_PER_EXTENT) as u8
    }
}

impl Page {
    fn unclassed() -> Self {
        Self { vacant: [0; WORDS], list: NO_CLASS as u8, warm: 0, used: 0, retired: 0, prev: None, next: None }
    }

    fn has(&self, slot: u8) -> bool {
        self.vacant[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
    }

    fn flip(&mut self, slot: u8) {
        self.vacant[usize::from(slot / 64)] ^= 1 << (slot % 64);
    }

    fn first_vacant(&self) -> Option<u8> {
        let word = self.vacant.iter().position(|&word| word != 0)?;
        Some((word * 64) as u8 + self.vacant[word].trailing_zeros() as u8)
    }
}

impl Slabs {
    pub(crate) fn new() -> Self {
        Self {
            extents: Vec::new(),
            pages: Vec::new(),
            lists: [None; CLASSES + 1],
            idle: 0,
            extent_bytes: Bytes::ZERO,
            held: Bytes::ZERO,
        }
    }

    /// Bytes of all extents.
    pub(crate) fn bytes(&self) -> Bytes {
        self.extent_bytes
    }

    /// Bytes of the extents that are in no slot in use.
    pub(crate) fn free_bytes(&self) -> Bytes {
        self.extent_bytes - self.held
    }

    /// Takes a vacant slot of `class`; `None` when another extent is needed.
    pub(crate) fn allocate(&mut self, class: Class) -> Option<SlotId> {
        let id = self.lists[class.list()].or_else(|| self.classify_page(class))?;
        self.take_slot(class, id)
    }

    /// Takes a vacant slot of a class above `class`: when no extent can be had, a larger slot beats none.
    pub(crate) fn allocate_larger(&mut self, class: Class) -> Option<SlotId> {
        let larger = (class.0 + 1..CLASSES as u8).map(Class);
        let (class, id) = larger.into_iter().find_map(|class| Some((class, self.lists[class.list()]?)))?;
        self.take_slot(class, id)
    }

    fn take_slot(&mut self, class: Class, id: PageId) -> Option<SlotId> {
        let page = &mut self.pages[id.index()];
        let slot = if page.has(page.warm) { page.warm } else { page.first_vacant()? };
        page.flip(slot);
        page.used += 1;
        if page.used == class.slots() {
            self.unlink(id);
        }
        if let Some(extent) = &mut self.extents[id.extent().index()] {
            extent.used += 1;
            self.idle -= u32::from(extent.used == 1);
        }
        self.held += class.size();
        Some(SlotId { extent: id.extent(), page: id.page(), slot })
    }

    /// Marks a slot in use as retired.
    pub(crate) fn retire(&mut self, slot: SlotId) {
        self.pages[slot.page_id().index()].retired += 1;
        if let Some(extent) = &mut self.extents[slot.extent.index()] {
            extent.retired += 1;
        }
    }

    /// Takes back what [`Self::retire`] said: the slot has an owner again.
    pub(crate) fn reuse(&mut self, slot: SlotId) {
        self.pages[slot.page_id().index()].retired -= 1;
        if let Some(extent) = &mut self.extents[slot.extent.index()] {
            extent.retired -= 1;
        }
    }

    /// Frees a slot whose state was `was`; returns an extent to remove when there is now a second idle one.
    pub(crate) fn free(&mut self, slot: SlotId, was: SpanState) -> Option<ExtentId> {
        let class = self.class(slot);
        let id = slot.page_id();
        let retired = u16::from(was == SpanState::Retired);
        let page = &mut self.pages[id.index()];
        page.flip(slot.slot);
        page.warm = slot.slot;
        page.used -= 1;
        page.retired -= retired;
        if page.used + 1 == class.slots() {
            self.link(class.list(), id);
        }
        let page = &self.pages[id.index()];
        if page.used == 0 && (page.prev.is_some() || page.next.is_some()) {
            self.unlink(id);
            self.link(NO_CLASS, id);
        }
        self.held -= class.size();
        let extent = self.extents[slot.extent.index()].as_mut()?;
        extent.used -= 1;
        extent.retired -= u32::from(retired);
        if extent.used != 0 {
            return None;
        }
        self.idle += 1;
        (self.idle > 1).then_some(slot.extent)
    }

    /// The address of a slot.
    pub(crate) fn address(&self, slot: SlotId) -> Address {
        let base = self.extents[slot.extent.index()].map_or(Address::new(0), |extent| extent.address);
        let offset = u64::from(slot.page) * PAGE.get() + u64::from(slot.slot) * self.size(slot).get();
        base + Bytes::new(offset)
    }

    /// The size of a slot in use.
    pub(crate) fn size(&self, slot: SlotId) -> Bytes {
        self.class(slot).size()
    }

    /// Makes slots of `bytes` at `address`: whole pages, at most [`MAX_EXTENT`]; `None` when 65,536 extents exist.
    pub(crate) fn adopt(&mut self, address: Address, bytes: Bytes) -> Option<ExtentId> {
        let index = self.extents.iter().position(Option::is_none).unwrap_or(self.extents.len());
        let id = ExtentId(u16::try_from(index).ok()?);
        if index == self.extents.len() {
            self.extents.push(None);
            self.pages.resize(self.pages.len() + PAGES_PER_EXTENT, Page::unclassed());
        }
        self.extents[index] = Some(Extent { address, bytes, used: 0, retired: 0 });
        let count = ((bytes.get() / PAGE.get()) as usize).min(PAGES_PER_EXTENT);
        for page in (0..count).rev() {
            let page = PageId::new(id, page);
            self.pages[page.index()] = Page::unclassed();
            self.link(NO_CLASS, page);
        }
        self.idle += 1;
        self.extent_bytes += bytes;
        Some(id)
    }

    /// Forgets an extent without slots in use; whether it was one.
    pub(crate) fn remove(&mut self, id: ExtentId) -> bool {
        let Some(extent) = self.extents[id.index()].take_if(|extent| extent.used == 0) else { return false };
        // No page of an idle extent is full, so every one of them is in a list.
        for page in 0..(extent.bytes.get() / PAGE.get()) as usize {
            self.unlink(PageId::new(id, page));
        }
        self.idle -= 1;
        self.extent_bytes -= extent.bytes;
        true
    }

    /// Forgets an extent with all its slots: their bytes stay, as blocks of another kind.
    pub(crate) fn dissolve(&mut self, id: ExtentId) {
        let Some(extent) = self.extents[id.index()].take() else { return };
        for number in 0..(extent.bytes.get() / PAGE.get()) as usize {
            let id = PageId::new(id, number);
            let page = &self.pages[id.index()];
            let class = (usize::from(page.list) < CLASSES).then_some(Class(page.list));
            self.held -= class.map_or(Bytes::ZERO, |class| Bytes::new(class.size().get() * u64::from(page.used)));
            // A full page is in no list.
            if class.is_none_or(|class| page.used < class.slots()) {
                self.unlink(id);
            }
            self.pages[id.index()] = Page::unclassed();
        }
        self.idle -= u32::from(extent.used == 0);
        self.extent_bytes -= extent.bytes;
    }

    /// The extent that a slot lies in, and where.
    pub(crate) fn position(&self, slot: SlotId) -> (ExtentId, Bytes) {
        let base = self.extents[slot.extent.index()].map_or(Address::new(0), |extent| extent.address);
        (slot.extent, self.address(slot) - base)
    }

    /// The extents without slots in use: at most one between two operations.
    pub(crate) fn idle_extents(&self) -> impl Iterator<Item = ExtentId> {
        let idle = |extent: &Option<Extent>| extent.is_some_and(|extent| extent.used == 0);
        let none = self.idle == 0;
        let slots = self.extents.iter().enumerate().filter(move |(_, extent)| !none && idle(extent));
        slots.map(|(index, _)| ExtentId(index as u16))
    }

    /// Every extent, and whether a live block lies in it: one that is not live only waits for retired ones.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (ExtentId, Bytes, SpanState)> {
        let present =
            self.extents.iter().enumerate().filter_map(|(index, extent)| extent.map(|extent| (index, extent)));
        present.map(|(index, extent)| {
            let state = if extent.used > extent.retired { SpanState::Live } else { SpanState::Retired };
            (ExtentId(index as u16), extent.bytes, state)
        })
    }

    /// The largest slot that can be had without another extent.
    pub(crate) fn largest_vacant(&self) -> Option<Bytes> {
        if self.lists[NO_CLASS].is_some() || self.empty_page().is_some() {
            return Some(LARGEST_SLOT);
        }
        let classes = (0..CLASSES as u8).rev().map(Class);
        classes.into_iter().find(|class| self.lists[class.list()].is_some()).map(Class::size)
    }

    fn class(&self, slot: SlotId) -> Class {
        Class(self.pages[slot.page_id().index()].list)
    }

    /// A page that a class keeps though none of its slots is in use.
    fn empty_page(&self) -> Option<PageId> {
        self.lists[..CLASSES].iter().flatten().copied().find(|id| self.pages[id.index()].used == 0)
    }

    fn classify_page(&mut self, class: Class) -> Option<PageId> {
        let id = self.lists[NO_CLASS].or_else(|| self.empty_page())?;
        self.unlink(id);
        let mut vacant = [0; WORDS];
        for (word, bits) in vacant.iter_mut().enumerate() {
            let slots = usize::from(class.slots()).saturating_sub(word * 64).min(64);
            *bits = u64::MAX.checked_shr(64 - slots as u32).unwrap_or(0);
        }
        self.pages[id.index()].vacant = vacant;
        self.pages[id.index()].warm = 0;
        self.link(class.list(), id);
        Some(id)
    }

    fn link(&mut self, list: usize, id: PageId) {
        let head = self.lists[list].replace(id);
        if let Some(head) = head {
            self.pages[head.index()].prev = Some(id);
        }
        let page = &mut self.pages[id.index()];
        (page.list, page.prev, page.next) = (list as u8, None, head);
    }

    fn unlink(&mut self, id: PageId) {
        let page = &mut self.pages[id.index()];
        let (list, prev, next) = (usize::from(page.list), page.prev.take(), page.next.take());
        match prev {
            Some(before) => self.pages[before.index()].next = next,
            None => self.lists[list] = next,
        }
        if let Some(after) = next {
            self.pages[after.index()].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests;
