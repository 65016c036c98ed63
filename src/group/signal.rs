//! A word in shared memory that says that something has changed, and on which processes sleep until it does.
//!
//! Who waits reads the word, then looks whether it has what it waits for, then sleeps. Who changes something changes
//! it, and then the word. So either the look sees the change, or the word is another one than was read, and the sleep
//! ends at once.

use std::time::Duration;

use crate::sync::{
    atomic::{AtomicU32, Ordering},
    futex,
};

/// See the module's documentation.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct Signal(AtomicU32);

impl Signal {
    /// The word, to be read before a look at what it tells of.
    pub(super) fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Tells everybody that something has changed.
    pub(super) fn tell(&self) {
        self.0.fetch_add(1, Ordering::Release);
        futex::wake(&self.0);
    }

    /// Sleeps until something changes after `seen` was read, for `at_most`; returns the word now.
    pub(super) fn wait(&self, seen: u32, at_most: Duration) -> u32 {
        if self.seen() == seen {
            futex::wait(&self.0, seen, at_most);
        }
        self.seen()
    }
}
