//! Numbers for arrays that no program made, by which the past of launches knows them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no other buffer of the process has, from when it is first asked for; zero before.
#[derive(Debug, Default)]
pub struct ArrayNumber(AtomicU64);

impl ArrayNumber {
    /// The number.
    pub fn get(&self) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                self.0
                    .compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|first| first, |_| fresh)
            }
            known => known,
        }
    }
}
