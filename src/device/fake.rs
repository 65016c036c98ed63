//! A device of addresses without memory: for tests of policy, and for faults that a real device shows rarely.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use crate::{
    error::{Code, Error, Result},
    memory::{Backing, Region},
    units::{Address, Bytes},
};

/// A device that only keeps books. Clones are the same device, so that a test keeps one beside its arena.
///
/// A region that is released twice, or that was never reserved, is an error and counted as a
/// [violation](Self::violations).
#[derive(Clone, Debug)]
pub struct FakeBacking {
    granularity: Bytes,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    capacity: Bytes,
    regions: BTreeMap<Address, Bytes>,
    reserves: u64,
    refuse_at: Option<u64>,
    violations: u64,
    next: Address,
}

impl FakeBacking {
    /// A device of `capacity` whose regions are multiples of `granularity`.
    pub fn new(capacity: Bytes, granularity: Bytes) -> Self {
        let state = State {
            capacity,
            regions: BTreeMap::new(),
            reserves: 0,
            refuse_at: None,
            violations: 0,
            next: Address::new(1 << 32),
        };
        Self { granularity, state: Arc::new(Mutex::new(state)) }
    }

    /// Lets the `n`th reservation from now on fail; zero is the next one.
    pub fn refuse_nth(&self, n: u64) {
        let mut state = self.state.lock();
        state.refuse_at = Some(state.reserves + n);
    }

    /// Changes the capacity, as another process on the device would. What is reserved stays.
    pub fn set_capacity(&self, capacity: Bytes) {
        self.state.lock().capacity = capacity;
    }

    /// The regions that are reserved now, by address.
    pub fn regions(&self) -> Vec<Region> {
        let state = self.state.lock();
        state.regions.iter().map(|(&address, &bytes)| Region { address, bytes }).collect()
    }

    /// Reservations asked for so far, refused ones included.
    pub fn reserves(&self) -> u64 {
        self.state.lock().reserves
    }

    /// Calls that a device must never see.
    pub fn violations(&self) -> u64 {
        self.state.lock().violations
    }
}

impl Backing for FakeBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let mut state = self.state.lock();
        let number = state.reserves;
        state.reserves += 1;
        if bytes.is_zero() || !bytes.is_multiple_of(self.granularity) {
            state.violations += 1;
            return Err(Error::internal(format!("{} bytes are no multiple of {}", bytes.get(), self.granularity)));
        }
        let refuse = |why: String| Err(Error::new(Code::ResourceExhausted, format!("fake device: {why}")));
        if state.refuse_at == Some(number) {
            return refuse(format!("reservation {number} of {bytes} is refused by order"));
        }
        let used: Bytes = state.regions.values().copied().sum();
        if used.checked_add(bytes).is_none_or(|total| total > state.capacity) {
            return refuse(format!(
                "{bytes} asked for, {} of {} left",
                state.capacity.saturating_sub(used),
                state.capacity
            ));
        }
        let address = state.next;
        // The unit between two regions shows up whoever writes, or coalesces, past an end.
        state.next = address + bytes + self.granularity;
        state.regions.insert(address, bytes);
        Ok(Region { address, bytes })
    }

    fn release(&self, region: Region) -> Result<()> {
        let mut state = self.state.lock();
        if state.regions.get(&region.address) == Some(&region.bytes) {
            state.regions.remove(&region.address);
            return Ok(());
        }
        state.violations += 1;
        Err(Error::internal(format!("{} at {} is no region of this device", region.bytes, region.address)))
    }

    fn granularity(&self) -> Bytes {
        self.granularity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refuses_by_order_and_by_capacity_and_notices_misuse() {
        let page = Bytes::kib(4);
        let device = FakeBacking::new(Bytes::kib(12), page);
        device.refuse_nth(1);
        let region = device.reserve(Bytes::kib(8)).expect("room");
        assert!(device.reserve(page).is_err());
        assert!(device.reserve(page).is_ok());
        assert_eq!(device.reserve(page).map_err(|error| error.code), Err(Code::ResourceExhausted));
        assert_eq!(device.violations(), 0);
        assert!(device.release(region).is_ok());
        assert!(device.release(region).is_err());
        assert!(device.reserve(Bytes::new(100)).is_err());
        assert_eq!((device.violations(), device.regions().len(), device.reserves()), (2, 1, 5));
    }
}
