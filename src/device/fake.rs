//! A device of addresses without memory: for tests of policy, and for faults that a real device shows rarely.
//!
//! ```text
//!  FakeBacking::new          addresses only: what moves is counted
//!  FakeBacking::with_bytes   every byte is there, and one that must not be read looks like none that was written:
//!                            NEW       never written
//!                            LEFT      a block was here, and has moved
//!                            DISCARDED returned to the system
//! ```

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use parking_lot::Mutex;

use crate::{
    device::Mover,
    error::{Code, Error, Result},
    memory::{AddressRange, Backing, Region, compaction::Costs},
    units::{Address, Bytes},
};

/// What a byte of a region holds at first.
pub const NEW: u8 = 0xcd;
/// What a byte holds after a block has moved away from it.
pub const LEFT: u8 = 0xee;
/// What a byte holds after it was returned to the system.
pub const DISCARDED: u8 = 0xdd;

/// What a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Backing::reserve`] and [`Backing::reserve_up_front`].
    Reserve,
    /// [`Backing::release`].
    Release,
    /// [`Mover::relocate`].
    Relocate,
    /// [`Mover::discard`].
    Discard,
}

impl Call {
    /// Every call.
    pub const ALL: [Self; 4] = [Self::Reserve, Self::Release, Self::Relocate, Self::Discard];
}

/// What happens at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and nothing has changed; a region that is to be released stays the device's.
    Error,
    /// It panics, and nothing has changed.
    Panic,
}

/// A device that counts what it is asked for, and holds bytes if it is told to. Clones are the same device, so that a
/// test keeps one beside its arena.
///
/// A region that is released twice, or that was never reserved, is an error and counted as a
/// [violation](Self::violations); so is every range that does not lie in one region.
#[derive(Clone, Debug)]
pub struct FakeBacking {
    granularity: Bytes,
    in_advance: Option<Bytes>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    capacity: Bytes,
    regions: BTreeMap<Address, Bytes>,
    /// How often each call was made.
    calls: [u64; Call::ALL.len()],
    /// The call, which of them, and what happens then.
    order: Option<(Call, u64, Fault)>,
    violations: u64,
    next: Address,
    /// What each region holds, where bytes are kept.
    contents: Option<BTreeMap<Address, Vec<u8>>>,
    moves: u64,
    moved: Bytes,
    discarded: Bytes,
}

impl FakeBacking {
    /// A device of `capacity` whose regions are multiples of `granularity`.
    pub fn new(capacity: Bytes, granularity: Bytes) -> Self {
        Self::holding(capacity, granularity, None)
    }

    /// The same, where an arena is to take no more in advance.
    pub fn with_most_in_advance(self, bytes: Bytes) -> Self {
        Self { in_advance: Some(bytes), ..self }
    }

    /// [`Self::new`] that holds bytes as well; each reserved region takes as much of the host's memory.
    pub fn with_bytes(capacity: Bytes, granularity: Bytes) -> Self {
        Self::holding(capacity, granularity, Some(BTreeMap::new()))
    }

    fn holding(capacity: Bytes, granularity: Bytes, contents: Option<BTreeMap<Address, Vec<u8>>>) -> Self {
        let state = State {
            capacity,
            regions: BTreeMap::new(),
            calls: [0; Call::ALL.len()],
            order: None,
            violations: 0,
            next: Address::new(1 << 32),
            contents,
            moves: 0,
            moved: Bytes::ZERO,
            discarded: Bytes::ZERO,
        };
        Self { granularity, in_advance: None, state: Arc::new(Mutex::new(state)) }
    }

    /// Lets something happen at the `n`th of such calls from now on; zero is the next one. There is one order at a
    /// time.
    pub fn order(&self, call: Call, n: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.order = Some((call, state.calls[call as usize] + n, fault));
    }

    /// Takes the order back; whether it was still to come.
    pub fn countermand(&self) -> bool {
        self.state.lock().order.take().is_some()
    }

    /// Changes the capacity, as another process on the device would. What is reserved stays.
    pub fn set_capacity(&self, capacity: Bytes) {
        self.state.lock().capacity = capacity;
    }

    /// The regions that are reserved now, by address.
    pub fn regions(&self) -> Vec<AddressRange> {
        let state = self.state.lock();
        state.regions.iter().map(|(&address, &bytes)| AddressRange { address, bytes }).collect()
    }

    /// Reservations asked for so far, refused ones included.
    pub fn reserves(&self) -> u64 {
        self.state.lock().calls[Call::Reserve as usize]
    }

    /// Calls that a device must never see.
    pub fn violations(&self) -> u64 {
        self.state.lock().violations
    }

    /// Moves done so far.
    pub fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// Bytes moved so far.
    pub fn moved(&self) -> Bytes {
        self.state.lock().moved
    }

    /// Bytes discarded so far, each as often as it was.
    pub fn discarded(&self) -> Bytes {
        self.state.lock().discarded
    }

    /// [`Mover::discard`]. A page is the unit of regions; each one inside of the range is discarded, used or not.
    ///
    /// # Errors
    /// The range does not lie in a region, which is a violation; or an order.
    pub fn discard_pages(&self, from: Address, bytes: Bytes) -> Result<Bytes> {
        let mut state = self.state.lock();
        state.count(Call::Discard)?;
        let (region, range) = state.locate(from, bytes)?;
        let start = Bytes::new(range.start as u64).checked_round_up(self.granularity);
        let end = Bytes::new(range.end as u64).round_down(self.granularity);
        let Some((start, pages)) = start.and_then(|start| Some((start, end.checked_sub(start)?))) else {
            return Ok(Bytes::ZERO);
        };
        state.fill(region + start, pages, DISCARDED)?;
        state.discarded += pages;
        Ok(pages)
    }

    /// Writes `bytes` at `to`.
    ///
    /// # Errors
    /// The range does not lie in a region, which is a violation; or the device holds no bytes.
    pub fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.state.lock().held(to, Bytes::new(bytes.len() as u64))?.copy_from_slice(bytes);
        Ok(())
    }

    /// What `bytes` from `from` on hold.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn read(&self, from: Address, bytes: Bytes) -> Result<Vec<u8>> {
        self.state.lock().held(from, bytes).map(|held| held.to_vec())
    }
}

impl State {
    /// Counts a call, and does what was ordered for it.
    fn count(&mut self, call: Call) -> Result<()> {
        let number = self.calls[call as usize];
        self.calls[call as usize] += 1;
        let Some((_, _, fault)) = self.order.take_if(|(of, at, _)| (*of, *at) == (call, number)) else { return Ok(()) };
        let text = format!("fake device: {call:?} {number} fails by order");
        let code = if call == Call::Reserve { Code::ResourceExhausted } else { Code::Internal };
        match fault {
            Fault::Error => Err(Error::new(code, text)),
            Fault::Panic => panic!("{text}"),
        }
    }

    /// The region in which a range lies, and where in it. A range that lies in none is a violation.
    fn locate(&mut self, from: Address, bytes: Bytes) -> Result<(Address, Range<usize>)> {
        if let Some((&start, &size)) = self.regions.range(..=from).next_back() {
            let offset = from - start;
            if let Some(end) = offset.checked_add(bytes).filter(|&end| end <= size) {
                return Ok((start, offset.get() as usize..end.get() as usize));
            }
        }
        self.violations += 1;
        Err(Error::internal(format!("{} bytes at {from} lie in no region of this device", bytes.get())))
    }

    /// The bytes of a range.
    fn held(&mut self, from: Address, bytes: Bytes) -> Result<&mut [u8]> {
        let (region, range) = self.locate(from, bytes)?;
        let contents = self.contents.as_mut().and_then(|contents| contents.get_mut(&region));
        contents.and_then(|held| held.get_mut(range)).ok_or_else(|| {
            Error::failed_precondition("this fake device holds no bytes: it was not made by with_bytes".to_owned())
        })
    }

    /// Fills a range, if bytes are kept.
    fn fill(&mut self, from: Address, bytes: Bytes, pattern: u8) -> Result<()> {
        if self.contents.is_some() {
            self.held(from, bytes)?.fill(pattern);
        }
        Ok(())
    }
}

impl Mover for FakeBacking {
    fn costs(&self) -> Costs {
        Costs::COPY
    }

    /// Nothing here is unsafe: a range that lies in no region is an error and a violation.
    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let mut state = self.state.lock();
        let ordered = state.count(Call::Relocate);
        // Both are looked at, so that each one that is wrong counts.
        let source = state.locate(from, bytes);
        let destination = state.locate(to, bytes);
        source.and(destination)?;
        ordered?;
        if state.contents.is_some() {
            let block = state.held(from, bytes)?.to_vec();
            state.fill(from, bytes, LEFT)?;
            state.held(to, bytes)?.copy_from_slice(&block);
        }
        state.moves += 1;
        state.moved += bytes;
        Ok(())
    }

    /// Nothing here is unsafe, as for `relocate`.
    unsafe fn discard(&self, from: Address, bytes: Bytes) -> Result<Bytes> {
        self.discard_pages(from, bytes)
    }
}

impl Backing for FakeBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let mut state = self.state.lock();
        state.count(Call::Reserve)?;
        if bytes.is_zero() || !bytes.is_multiple_of(self.granularity) {
            state.violations += 1;
            return Err(Error::internal(format!("{} bytes are no multiple of {}", bytes.get(), self.granularity)));
        }
        let refuse = |why: String| Err(Error::new(Code::ResourceExhausted, format!("fake device: {why}")));
        let used: Bytes = state.regions.values().copied().sum();
        if used.checked_add(bytes).is_none_or(|total| total > state.capacity) {
            return refuse(format!(
                "{bytes} asked for, {} of {} left",
                state.capacity.saturating_sub(used),
                state.capacity
            ));
        }
        let address = state.next;
        // The unit between two regions shows code that writes, or coalesces, past an end.
        state.next = address + bytes + self.granularity;
        state.regions.insert(address, bytes);
        if let Some(contents) = &mut state.contents {
            contents.insert(address, vec![NEW; bytes.get() as usize]);
        }
        // SAFETY: the addresses were never given before, and the book has them until the region is released.
        Ok(unsafe { Region::new(AddressRange { address, bytes }) })
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        let region = *region;
        let mut state = self.state.lock();
        state.count(Call::Release)?;
        if state.regions.get(&region.address) == Some(&region.bytes) {
            state.regions.remove(&region.address);
            if let Some(contents) = &mut state.contents {
                contents.remove(&region.address);
            }
            return Ok(());
        }
        state.violations += 1;
        Err(Error::internal(format!("{} at {} is no region of this device", region.bytes, region.address)))
    }

    fn granularity(&self) -> Bytes {
        self.granularity
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        self.in_advance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refuses_by_order_and_by_capacity_and_notices_misuse() {
        let page = Bytes::kib(4);
        let device = FakeBacking::new(Bytes::kib(12), page);
        device.order(Call::Reserve, 1, Fault::Error);
        let region = device.reserve(Bytes::kib(8)).expect("room");
        assert!(device.reserve(page).is_err());
        assert!(device.reserve(page).is_ok());
        assert_eq!(device.reserve(page).map_err(|error| error.code), Err(Code::ResourceExhausted));
        assert_eq!(device.violations(), 0);
        // SAFETY: there is no memory behind it, and a fake device checks what it is given: this is the misuse.
        let copy = unsafe { Region::new(*region) };
        assert!(device.release(region).is_ok());
        assert!(device.release(copy).is_err());
        assert!(device.reserve(Bytes::new(100)).is_err());
        assert_eq!((device.violations(), device.regions().len(), device.reserves()), (2, 1, 5));
    }

    /// Unsafe in name only, see there.
    fn relocate(device: &FakeBacking, from: Address, to: Address, bytes: u64) -> Result<()> {
        // SAFETY: a fake device checks what it is asked for.
        unsafe { device.relocate(from, to, Bytes::new(bytes)) }
    }

    #[test]
    fn blocks_move_and_what_they_leave_shows() {
        let device = FakeBacking::with_bytes(Bytes::mib(1), Bytes::kib(4));
        let [a, b] = [8, 4].map(|kib| device.reserve(Bytes::kib(kib)).expect("room").address);
        assert_eq!(device.write(a, &[1, 2, 3, 4]), Ok(()));
        let at = |start: Address, offset| start + Bytes::new(offset);
        assert_eq!(relocate(&device, a, at(a, 2), 4), Ok(()));
        assert_eq!(device.read(a, Bytes::new(7)), Ok(vec![LEFT, LEFT, 1, 2, 3, 4, NEW]));
        device.order(Call::Relocate, 1, Fault::Error);
        assert_eq!(relocate(&device, at(a, 2), b, 4), Ok(()));
        assert!(relocate(&device, b, a, 4).is_err());
        assert_eq!(device.read(b, Bytes::new(5)), Ok(vec![1, 2, 3, 4, NEW]));
        assert_eq!(relocate(&device, b, at(a, 4094), 4), Ok(()));
        assert_eq!(device.read(at(a, 4094), Bytes::new(4)), Ok(vec![1, 2, 3, 4]));
        assert_eq!((device.moves(), device.moved(), device.violations()), (3, Bytes::new(12), 0));
    }

    #[test]
    fn what_was_discarded_shows() {
        let device = FakeBacking::with_bytes(Bytes::mib(1), Bytes::kib(4));
        let region = device.reserve(Bytes::kib(16)).expect("room");
        // SAFETY: a fake device checks what it is asked for.
        let discard = |offset, bytes| unsafe { device.discard(region.address + Bytes::new(offset), Bytes::new(bytes)) };
        assert_eq!(discard(1, 8190), Ok(Bytes::ZERO));
        assert_eq!(discard(1, 8191), Ok(Bytes::kib(4)));
        let held = device.read(region.address, region.bytes).expect("inside");
        let pages: Vec<_> = held.chunks(4096).map(|page| (page[0], page[4095])).collect();
        assert_eq!(pages, [(NEW, NEW), (DISCARDED, DISCARDED), (NEW, NEW), (NEW, NEW)]);
        assert_eq!((device.discarded(), device.violations()), (Bytes::kib(4), 0));
        assert!(discard(8192, 8193).is_err());
        assert_eq!(device.violations(), 1);
    }

    #[test]
    fn ranges_outside_of_regions_are_violations() {
        let device = FakeBacking::new(Bytes::mib(1), Bytes::kib(4));
        let [first, second] = [4, 4].map(|kib| device.reserve(Bytes::kib(kib)).expect("room"));
        let (a, b) = (*first, *second);
        assert_eq!(relocate(&device, a.address, b.address, 4096), Ok(()));
        // Over the end, across the gap between two regions, and both ranges at once.
        assert!(relocate(&device, a.address, b.address, 4097).is_err());
        assert_eq!(device.violations(), 2);
        assert!(relocate(&device, a.address, a.address + Bytes::kib(4), 1).is_err());
        assert!(relocate(&device, Address::new(1), b.address, 1).is_err());
        assert_eq!(device.release(second), Ok(()));
        assert!(relocate(&device, a.address, b.address, 1).is_err());
        assert_eq!((device.violations(), device.moves()), (5, 1));
        // It holds no bytes, which is no violation.
        assert!(device.read(a.address, Bytes::new(1)).is_err());
        assert_eq!(device.violations(), 5);
    }
}
