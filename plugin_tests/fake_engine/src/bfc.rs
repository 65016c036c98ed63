//! XLA's `bfc` allocator: one region of the GPU's memory that nothing leaves, divided by best fit.
//!
//! What is freed may be given out again at once: users take and free in the order of the compute stream, and whoever
//! used memory on another stream lets the compute stream wait for that first.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// What sizes and addresses are multiples of.
const UNIT: u64 = 256;

/// A region that threads share: who finds no room waits for what others free.
#[derive(Debug)]
pub struct Region {
    bfc: Mutex<Bfc>,
    freed: Condvar,
}

/// See the module.
#[derive(Debug)]
pub struct Bfc {
    start: u64,
    /// Its size.
    pub bytes: u64,
    /// Holes by their address, no two of them side by side.
    holes: BTreeMap<u64, u64>,
    /// Sizes of what is given out, by address.
    given: HashMap<u64, u64>,
    /// What is given out.
    pub in_use: u64,
    /// The most that was.
    pub peak: u64,
}

impl Bfc {
    /// All of a region is free.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self { start, bytes, holes: BTreeMap::from([(start, bytes)]), given: HashMap::new(), in_use: 0, peak: 0 }
    }

    /// The region's first byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The lowest of the smallest holes that have room.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(UNIT)?;
        let fitting = self.holes.iter().filter(|(_, size)| **size >= bytes);
        let (&at, &size) = fitting.min_by_key(|(at, size)| (**size, **at))?;
        self.holes.remove(&at);
        if size > bytes {
            self.holes.insert(at + bytes, size - bytes);
        }
        self.given.insert(at, bytes);
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        Some(at)
    }

    /// Takes back what was given out at `at`; whether there was anything.
    pub fn free(&mut self, at: u64) -> bool {
        let Some(bytes) = self.given.remove(&at) else { return false };
        self.in_use -= bytes;
        let (mut at, mut bytes) = (at, bytes);
        if let Some(behind) = self.holes.remove(&(at + bytes)) {
            bytes += behind;
        }
        if let Some((&before, &size)) = self.holes.range(..at).next_back()
            && before + size == at
        {
            self.holes.remove(&before);
            (at, bytes) = (before, size + bytes);
        }
        self.holes.insert(at, bytes);
        true
    }
}

impl Region {
    /// All of it is free.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self { bfc: Mutex::new(Bfc::new(start, bytes)), freed: Condvar::new() }
    }

    /// As [`Bfc::allocate`], after `at_most` where there is no room at first.
    pub fn allocate(&self, bytes: u64, at_most: Duration) -> Option<u64> {
        let until = Instant::now() + at_most;
        let mut bfc = self.bfc.lock();
        loop {
            let found = bfc.allocate(bytes);
            // Nothing can come, or nothing came.
            if found.is_some() || bytes > bfc.bytes || self.freed.wait_until(&mut bfc, until).timed_out() {
                return found;
            }
        }
    }

    /// As [`Bfc::free`].
    pub fn free(&self, at: u64) {
        if self.bfc.lock().free(at) {
            self.freed.notify_all();
        }
    }

    /// Asks it something.
    pub fn with<T>(&self, ask: impl FnOnce(&Bfc) -> T) -> T {
        ask(&self.bfc.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_room_waits_for_a_free() {
        let region = Region::new(4096, 4096);
        let all = region.allocate(4096, Duration::ZERO).expect("room");
        assert_eq!(region.allocate(1, Duration::ZERO), None);
        assert_eq!(region.allocate(4097, Duration::from_secs(600)), None, "at once");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| region.allocate(4096, Duration::from_secs(600)));
            // Long enough for the other thread to wait, as a rule; if it comes later it finds room at once.
            std::thread::sleep(Duration::from_millis(50));
            region.free(all);
            assert_eq!(waiter.join().expect("no panic"), Some(all));
        });
    }

    #[test]
    fn holes_are_joined_and_the_smallest_is_taken() {
        let mut bfc = Bfc::new(4096, 4096);
        let [a, b, c] = [1000, 1, 2000].map(|bytes| bfc.allocate(bytes).expect("room"));
        assert_eq!((a, b, c, bfc.in_use), (4096, 5120, 5376, 1024 + 256 + 2048));
        assert!(bfc.free(a) && !bfc.free(a));
        // 1024 bytes in front, 768 behind.
        assert_eq!(bfc.allocate(700), Some(7424));
        assert_eq!(bfc.allocate(1025), None);
        assert!(bfc.free(b));
        assert_eq!(bfc.allocate(1025), Some(4096));
        assert!(bfc.free(7424) && bfc.free(c) && bfc.free(4096));
        assert_eq!((bfc.allocate(4097), bfc.allocate(4096), bfc.peak), (None, Some(4096), 4096));
    }
}
