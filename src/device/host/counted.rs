//! The host's memory, bound by a budget: regions count in it as a whole, whether their pages were touched or not.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{
    device::host::HostBacking,
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
pub struct CountedBacking {
    host: HostBacking,
    budget: Arc<Budget>,
    charges: Mutex<FxHashMap<Address, Charge>>,
}

impl CountedBacking {
    /// Regions of `host`, as far as `budget` has room.
    pub fn new(host: HostBacking, budget: Arc<Budget>) -> Self {
        Self { host, budget, charges: Mutex::default() }
    }
}

impl Backing for CountedBacking {
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
