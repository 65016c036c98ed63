//! Handles of the driver: names, not pointers to memory of ours.

/// A context, stream, event or pool of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle<T>(*mut T);

// SAFETY: the pointer is never followed here. It is passed to the driver, whose functions take any handle from any
// thread and synchronise what is behind it themselves.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for `Send`: a shared reference gives a copy of the pointer and nothing else.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    pub(super) fn new(handle: *mut T) -> Self {
        Self(handle)
    }

    /// As the driver's functions take it.
    pub(super) fn get(self) -> *mut T {
        self.0
    }
}
