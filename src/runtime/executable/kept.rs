//! Lists of what is kept for later, until somebody needs its memory.

use crate::sync::{
    Mutex,
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

    /// Lets `keep` put `value` into the list of `place`, unless it is closed or somebody `waits` for memory. Gives back
    /// what is not kept: no lock is held while the engine destroys handles.
    pub(super) fn add<T>(
        &self,
        place: usize,
        value: T,
        waits: impl FnOnce() -> bool,
        keep: impl FnOnce(&mut L, T) -> Option<T>,
    ) -> Option<T> {
        let Some(list) = self.lists.get(place) else { return Some(value) };
        let mut list = list.lock();
        // Read under the lock: a thread that waits or closes after this clears the list.
        if self.closed.load(Ordering::Acquire) || waits() { Some(value) } else { keep(&mut list, value) }
    }

    /// What `choose` takes out of the list of `place`.
    #[inline]
    pub(super) fn take<T>(&self, place: usize, choose: impl FnOnce(&mut L) -> Option<T>) -> Option<T> {
        choose(&mut *self.lists.get(place)?.lock())
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
