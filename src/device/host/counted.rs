//! The host's memory, bound by a budget: regions count in it as a whole, whether their pages were touched or not.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    error::{Error, Result},
    memory::{
        Backing, Region,
        budget::{Budget, Charge},
    },
    units::{Address, Bytes},
};

/// An arena whose regions count for other processes, too, takes at most so much more at once than it needs.
const IN_ADVANCE: Bytes = Bytes::mib(32);

/// See the module's documentation.
#[derive(Debug)]
pub struct CountedBacking<B> {
    host: B,
    budget: Arc<Budget>,
    charges: Mutex<FxHashMap<Address, Charge>>,
}

impl<B: Backing> CountedBacking<B> {
    /// Regions of `host`, as far as `budget` has room.
    pub fn new(host: B, budget: Arc<Budget>) -> Self {
        Self { host, budget, charges: Mutex::default() }
    }
}

impl<B: Backing> Backing for CountedBacking<B> {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        // Counted before it is mapped, and until it is unmapped.
        let charge = self.budget.take(bytes).map_err(|over| Error::new(over.code(), over.to_string()))?;
        let region = self.host.reserve(bytes)?;
        self.charges.lock().insert(region.address, charge);
        Ok(region)
    }

    fn reserve_up_front(&self, bytes: Bytes) -> Result<Region> {
        self.reserve(bytes)
    }

    fn release(&self, region: Region) -> Result<()> {
        let charge = self.charges.lock().remove(&region.address);
        let released = self.host.release(region);
        if released.is_err()
            && let Some(charge) = charge
        {
            // The memory is still there.
            charge.keep_for_good();
        }
        released
    }

    fn granularity(&self) -> Bytes {
        self.host.granularity()
    }

    fn most_in_advance(&self) -> Option<Bytes> {
        Some(IN_ADVANCE.min(Bytes::new(self.budget.limit().get() / 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::fake::{Call, FakeBacking, Fault},
        error::Code,
    };

    const LIMIT: Bytes = Bytes::mib(8);

    fn memory() -> (FakeBacking, CountedBacking<FakeBacking>) {
        let fake = FakeBacking::new(Bytes::mib(64), Bytes::kib(4));
        (fake.clone(), CountedBacking::new(fake, Arc::new(Budget::new(LIMIT))))
    }

    #[test]
    fn what_cannot_be_had_or_was_given_back_is_not_counted() {
        let (fake, memory) = memory();
        fake.order(Call::Reserve, 0, Fault::Error);
        assert!(memory.reserve(LIMIT).is_err());
        let region = memory.reserve(LIMIT).expect("the refused region is not counted");
        let over = memory.reserve(Bytes::kib(4)).expect_err("the limit is reached");
        assert_eq!((over.code, fake.reserves()), (Code::ResourceExhausted, 2), "{over}");
        memory.release(region).expect("the fake takes it back");
        assert!(memory.reserve(LIMIT).is_ok(), "all is free again");
    }

    #[test]
    fn what_the_system_does_not_take_back_stays_counted() {
        let (fake, memory) = memory();
        let region = memory.reserve(Bytes::mib(3)).expect("there is room");
        fake.order(Call::Release, 0, Fault::Error);
        assert!(memory.release(region).is_err());
        assert!(memory.reserve(Bytes::mib(6)).is_err(), "3 of 8 MiB are still there");
        assert!(memory.reserve(Bytes::mib(5)).is_ok(), "no more than 3 MiB are");
        assert_eq!(memory.budget.taken().0, LIMIT);
    }
}
