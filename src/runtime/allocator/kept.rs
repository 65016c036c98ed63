//! Lists of what is kept for later, until somebody needs its memory.

use crate::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

/// A list for each of several places. Once it is closed it keeps nothing more.
pub(super) struct Kept<L> {
    lists: Box<[Mutex<L>]>,
    closed: AtomicBool,
}

impl<L: Default> Kept<L> {
    /// Empty lists.
    pub(super) fn new(places: usize) -> Self {
        Self { lists: (0..places).map(|_| Mutex::default()).collect(), closed: AtomicBool::new(false) }
    }

    /// How many lists there are.
    pub(super) fn places(&self) -> usize {
        self.lists.len()
    }

    /// The list of `place`, locked, for something to be put in; `None` if it is closed or somebody `waits` for memory.
    #[inline]
    pub(super) fn open(&self, place: usize, waits: impl FnOnce() -> bool) -> Option<MutexGuard<'_, L>> {
        let list = self.list(place)?;
        // Read under the lock: a thread that waits or closes after this clears the list.
        (!(self.closed.load(Ordering::Acquire) || waits())).then_some(list)
    }

    /// The list of `place`, locked, for something to be taken out.
    #[inline]
    pub(super) fn list(&self, place: usize) -> Option<MutexGuard<'_, L>> {
        Some(self.lists.get(place)?.lock())
    }

    /// Drops what is kept.
    pub(super) fn clear(&self) {
        for list in &self.lists {
            // No lock is held while the engine destroys handles.
            let kept = std::mem::take(&mut *list.lock());
            drop(kept);
        }
    }

    /// Drops what is kept, and keeps nothing more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.clear();
    }
}
