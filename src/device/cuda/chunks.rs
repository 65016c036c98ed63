//! Regions made of addresses and of memory that is mapped there in chunks.
//!
//! ```text
//!  addresses, one reservation:   | chunk 0 | chunk 1 | chunk 2 | rest |
//!                                     |                   |       |
//!  physical memory, a handle each:  [ 17 ]              [ 12 ]  [ 31 ]      chunk 1 was discarded
//! ```
//!
//! A chunk's memory comes and goes while its addresses stay. The driver waits for nothing when it unmaps: callers have
//! waited for all work on the range.

use std::{
    ffi::c_int,
    ops::Range,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use cudarc::driver::sys::CUdeviceptr;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    device::cuda::{
        driver::{DriverError, out},
        physical::{PhysicalChunk, PhysicalMemory},
    },
    memory::AddressRange,
    units::{Address, Bytes},
};

/// How many chunks are filled at once where it is not known how many can be.
const FEW: usize = 16;

/// A chunk's memory, or none.
type Slot = Option<PhysicalChunk>;

/// A region of chunks.
#[derive(Debug)]
pub(super) struct Chunks {
    physical: Arc<PhysicalMemory>,
    region: AddressRange,
    chunk: Bytes,
    /// How many chunks of the device, of all its regions, have no memory.
    missing: Arc<AtomicUsize>,
    /// Held while the driver maps and unmaps, which takes about 0.1 ms a chunk: two threads that need the same chunk
    /// must not both map it. Other regions have locks of their own, and copies take none. Empty once the region was
    /// released.
    slots: Mutex<Vec<Slot>>,
}

impl Chunks {
    /// Addresses for `bytes`, whole units of the driver, with memory behind all of them. The last chunk may be a
    /// shorter one.
    pub(super) fn reserve(
        physical: &Arc<PhysicalMemory>,
        bytes: Bytes,
        chunk: Bytes,
        missing: &Arc<AtomicUsize>,
    ) -> Result<Self, DriverError> {
        let chunks = Self::without_memory(physical, bytes, chunk, missing)?;
        let _current = physical.context().enter()?;
        let all = 0..chunks.slots.lock().len();
        // A failure releases the addresses, as every drop does.
        chunks.fill(&mut chunks.slots.lock(), all)?;
        Ok(chunks)
    }

    fn without_memory(
        physical: &Arc<PhysicalMemory>,
        bytes: Bytes,
        chunk: Bytes,
        missing: &Arc<AtomicUsize>,
    ) -> Result<Self, DriverError> {
        let _current = physical.context().enter()?;
        let reserve = |aligned: usize| {
            // The driver chooses addresses that are free, and refuses a size or an alignment that it does not take.
            out(|address| physical.context().driver().mem_address_reserve(address, bytes.get() as usize, aligned, 0, 0))
        };
        // Chunks at multiples of their size: what the arena discards, it discards in pieces that end at such.
        let address: CUdeviceptr = reserve(chunk.get() as usize).or_else(|_| reserve(0))?;
        let count = bytes.get().div_ceil(chunk.get()) as usize;
        let chunks = Self {
            physical: Arc::clone(physical),
            region: AddressRange { address: Address::new(address), bytes },
            chunk,
            missing: Arc::clone(missing),
            slots: Mutex::new(std::iter::repeat_with(|| None).take(count).collect()),
        };
        missing.fetch_add(count, Ordering::AcqRel);
        Ok(chunks)
    }

    /// As [`Self::reserve`], with memory behind no more than the first `filled` bytes: the rest has it when it is used.
    pub(super) fn reserve_part(
        physical: &Arc<PhysicalMemory>,
        bytes: Bytes,
        chunk: Bytes,
        missing: &Arc<AtomicUsize>,
        filled: Bytes,
    ) -> Result<Self, DriverError> {
        let chunks = Self::without_memory(physical, bytes, chunk, missing)?;
        let _current = physical.context().enter()?;
        let filled = (filled.min(bytes).get() / chunk.get()) as usize;
        let mut slots = chunks.slots.lock();
        for first in (0..filled).step_by(FEW) {
            match chunks.fill(&mut slots, first..filled.min(first + FEW)) {
                // Somebody was faster.
                Err(failure) if failure.is_out_of_memory() => break,
                done => done?,
            }
        }
        drop(slots);
        Ok(chunks)
    }

    /// Whether the device of this ordinal reaches its memory.
    pub(super) fn is_open_to(&self, ordinal: c_int) -> bool {
        self.physical.is_open_to(ordinal)
    }

    /// How many of its bytes have memory.
    pub(super) fn filled(&self) -> Bytes {
        let slots = self.slots.lock();
        slots.iter().enumerate().filter(|(_, slot)| slot.is_some()).map(|(at, _)| self.span(at).1).sum()
    }

    pub(super) fn region(&self) -> AddressRange {
        self.region
    }

    /// The size of all chunks but the last.
    pub(super) fn chunk(&self) -> Bytes {
        self.chunk
    }

    /// Makes sure that there is memory behind `bytes` from `offset` on: all of it, or no more than before.
    pub(super) fn populate(&self, offset: Bytes, bytes: Bytes) -> Result<(), DriverError> {
        if self.missing.load(Ordering::Acquire) == 0 || bytes.is_zero() {
            return Ok(());
        }
        let first = (offset.get() / self.chunk.get()) as usize;
        let end = (offset + bytes).get().div_ceil(self.chunk.get()) as usize;
        let mut slots = self.slots.lock();
        if slots[first..end].iter().all(Option::is_some) {
            return Ok(());
        }
        let _current = self.physical.context().enter()?;
        self.fill(&mut slots, first..end)
    }

    /// Releases the memory of all chunks that lie wholly in `bytes` from `offset` on, and says how much it was.
    pub(super) fn discard(&self, offset: Bytes, bytes: Bytes) -> Result<Bytes, DriverError> {
        let first = offset.get().div_ceil(self.chunk.get()) as usize;
        let mut slots = self.slots.lock();
        let _current = self.physical.context().enter()?;
        let mut gone = Bytes::ZERO;
        for at in first..slots.len() {
            let (start, size) = self.span(at);
            if start + size > offset + bytes {
                break;
            }
            if slots[at].is_some() {
                self.unmap(at)?;
                slots[at] = None;
                self.missing.fetch_add(1, Ordering::AcqRel);
                gone += size;
            }
        }
        Ok(gone)
    }

    /// Whether a chunk of a range, which is one of theirs, has no memory.
    pub(super) fn lack(&self, range: Range<usize>) -> bool {
        self.missing.load(Ordering::Acquire) != 0 && self.slots.lock()[range].iter().any(Option::is_none)
    }

    /// Releases the memory and the addresses. The first failure is returned, and what it concerns stays with the
    /// driver.
    pub(super) fn release(&self) -> Result<(), DriverError> {
        let mut slots = self.slots.lock();
        if slots.is_empty() {
            return Ok(());
        }
        let _current = self.physical.context().enter()?;
        let mut done = Ok(());
        for (at, slot) in slots.iter_mut().enumerate() {
            match slot.take() {
                Some(memory) => {
                    let unmapped = self.unmap(at);
                    if unmapped.is_err() {
                        memory.stays();
                    }
                    done = done.and(unmapped);
                }
                None => _ = self.missing.fetch_sub(1, Ordering::AcqRel),
            }
        }
        *slots = Vec::new();
        // Where something is still mapped the addresses stay taken.
        done?;
        let AddressRange { address, bytes } = self.region;
        // SAFETY: the range is the reservation that `without_memory` made. It is freed once, because the slots are
        // empty from here on, and nothing is mapped in it: every chunk was unmapped above, or `done` was an error.
        unsafe { self.physical.context().driver().mem_address_free(address.get(), bytes.get() as usize) }
    }

    /// Maps fresh memory where a range of chunks has none: everywhere, or nowhere.
    fn fill(&self, slots: &mut [Slot], range: Range<usize>) -> Result<(), DriverError> {
        let empty: Vec<usize> = range.filter(|&at| slots[at].is_none()).collect();
        if empty.is_empty() {
            return Ok(());
        }
        // At once: who gets a part asks others for the rest, and has given the part back by then.
        let mut charge = self.physical.charge(empty.iter().map(|&at| self.span(at).1).sum())?;
        let mut made = Vec::with_capacity(empty.len());
        for &at in &empty {
            let bytes = self.span(at).1;
            let charge = charge.as_mut().map(|charge| charge.split_off(bytes));
            made.push(Some(self.physical.create(bytes, charge)?));
        }
        let mut left = made.into_iter();
        for run in empty.chunk_by(|before, after| before + 1 == *after) {
            let memory: Vec<Slot> = left.by_ref().take(run.len()).collect();
            if let Err(failure) = self.map(run[0], &memory) {
                // What earlier runs of this call got goes again.
                for &at in empty.iter().take_while(|&&at| at < run[0]) {
                    self.undo(at, &slots[at]);
                    slots[at] = None;
                    self.missing.fetch_add(1, Ordering::AcqRel);
                }
                return Err(failure);
            }
            for (&at, memory) in run.iter().zip(memory) {
                slots[at] = memory;
                self.missing.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Maps memory at neighbouring chunks from the `first` on and opens it: all of it, or none.
    fn map(&self, first: usize, memory: &[Slot]) -> Result<(), DriverError> {
        let mut mapped = 0;
        let mut done = Ok(());
        for (at, slot) in (first..).zip(memory) {
            let (start, bytes) = self.span(at);
            if let Some(memory) = slot {
                let address = (self.region.address + start).get();
                // SAFETY: the addresses are a chunk of our reservation where nothing is mapped (its slot was empty
                // under the lock that the callers hold), and the memory was made with the chunk's size; zero is the
                // only offset and flag.
                done = unsafe {
                    self.physical.context().driver().mem_map(address, bytes.get() as usize, 0, memory.handle(), 0)
                };
            }
            if done.is_err() {
                break;
            }
            mapped += 1;
        }
        if done.is_ok() {
            let ranges = memory.chunk_by(|before, after| before.is_some() == after.is_some());
            let mut at = first;
            for range in ranges {
                if range[0].is_some() && done.is_ok() {
                    let (start, (last, size)) = (self.span(at).0, self.span(at + range.len() - 1));
                    done = self.physical.open(self.region.address + start, last + size - start);
                }
                at += range.len();
            }
        }
        if done.is_err() {
            (first..).zip(memory).take(mapped).for_each(|(at, slot)| self.undo(at, slot));
        }
        done
    }

    /// Unmaps a chunk with this memory, if it has some, where a failure cannot be returned.
    fn undo(&self, at: usize, slot: &Slot) {
        let Some(memory) = slot else { return };
        if let Err(failure) = self.unmap(at) {
            memory.stays();
            log::error!("chunk {at} of the region at {} stays mapped: {failure}", self.region.address);
        }
    }

    fn unmap(&self, at: usize) -> Result<(), DriverError> {
        let (start, bytes) = self.span(at);
        // SAFETY: the range is one mapping of ours, as `map` made it. No work uses it: `Mover::relocate` and `discard`
        // have waited for the stream, `release` too, and a chunk that `fill` undoes has not been used yet.
        unsafe { self.physical.context().driver().mem_unmap((self.region.address + start).get(), bytes.get() as usize) }
    }

    /// Where a chunk starts in the region, and how long it is.
    fn span(&self, at: usize) -> (Bytes, Bytes) {
        let start = Bytes::new(at as u64 * self.chunk.get());
        (start, self.chunk.min(self.region.bytes - start))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if let Err(failure) = self.release()
            && !failure.is_over()
        {
            log::error!("the region at {} could not be released: {failure}", self.region.address);
        }
    }
}

/// Lets `count` chunks from `from` on, an index in the first region, change places with as many from `to` on, an index
/// in the second, which may be the same one. The two ranges do not overlap, all their chunks are whole, and no work
/// uses them.
///
/// On a failure nothing has moved, but chunks at `to` may have no memory any more.
pub(super) fn exchange(
    (source, from): (&Chunks, usize),
    (target, to): (&Chunks, usize),
    count: usize,
) -> Result<(), DriverError> {
    let _current = source.physical.context().enter()?;
    let mut pair = Pair::lock(source, target);
    let empty = || std::iter::repeat_with(|| None).take(count);
    let holes: Vec<Slot> = pair.target().splice(to..to + count, empty()).collect();
    for (at, _) in holes.iter().enumerate().filter(|(_, slot)| slot.is_some()) {
        if let Err(failure) = target.unmap(to + at) {
            // Those before it are mapped again; this one and the rest still are.
            restore(target, pair.target(), to, holes, at);
            return Err(failure);
        }
    }
    // In both places at once, so that the contents are at one of them whatever happens.
    let block: Vec<Slot> = pair.source().splice(from..from + count, empty()).collect();
    if let Err(failure) = target.map(to, &block) {
        pair.source().splice(from..from + count, block);
        restore(target, pair.target(), to, holes, count);
        return Err(failure);
    }
    for (at, _) in block.iter().enumerate().filter(|(_, slot)| slot.is_some()) {
        if let Err(failure) = source.unmap(from + at) {
            block.iter().enumerate().for_each(|(at, slot)| target.undo(to + at, slot));
            restore(target, pair.target(), to, holes, count);
            restore(source, pair.source(), from, block, at);
            return Err(failure);
        }
    }
    pair.target().splice(to..to + count, block);
    restore(source, pair.source(), from, holes, count);
    Ok(())
}

/// Puts memory at chunks from `first` on, of which the foremost `unmapped` are not mapped there. Where the driver does
/// not map what it has just unmapped, these stay without memory.
fn restore(chunks: &Chunks, slots: &mut [Slot], first: usize, memory: Vec<Slot>, unmapped: usize) {
    let lost = chunks.map(first, &memory[..unmapped]).err();
    for (at, memory) in memory.into_iter().enumerate() {
        if memory.is_some() && at < unmapped && lost.is_some() {
            chunks.missing.fetch_add(1, Ordering::AcqRel);
        } else {
            slots[first + at] = memory;
        }
    }
    if let Some(failure) = lost {
        log::error!("{unmapped} chunks of the region at {} have lost their memory: {failure}", chunks.region.address);
    }
}

/// The slots of two regions, which may be one.
struct Pair<'a> {
    first: MutexGuard<'a, Vec<Slot>>,
    second: Option<MutexGuard<'a, Vec<Slot>>>,
    source_is_first: bool,
}

impl<'a> Pair<'a> {
    /// In the order of the addresses, so that two threads never wait for each other.
    fn lock(source: &'a Chunks, target: &'a Chunks) -> Self {
        let source_is_first = source.region.address <= target.region.address;
        let (low, high) = if source_is_first { (source, target) } else { (target, source) };
        let first = low.slots.lock();
        let second = (!ptr::eq(low, high)).then(|| high.slots.lock());
        Self { first, second, source_is_first }
    }

    fn source(&mut self) -> &mut Vec<Slot> {
        match &mut self.second {
            Some(second) if !self.source_is_first => second,
            _ => &mut self.first,
        }
    }

    fn target(&mut self) -> &mut Vec<Slot> {
        match &mut self.second {
            Some(second) if self.source_is_first => second,
            _ => &mut self.first,
        }
    }
}
