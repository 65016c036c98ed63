//! The size of the largest hole, for statistics: known as holes come and go, and looked up again where the last one of
//! that size went.
//!
//! ```text
//!  holes 7 9 9     size 9, holes 2        one of 9 goes    size 9, holes 1        it is known
//!  holes 7         size 9, holes 0        the other, too: no hole is larger than 9, and how large one is nobody counted
//! ```

use std::cell::Cell;

/// Sizes are in granules.
#[derive(Clone, Debug, Default)]
pub(super) struct Largest {
    /// No hole is larger.
    size: Cell<u32>,
    /// Holes of just that size; with none, the largest one is smaller.
    holes: Cell<u32>,
}

impl Largest {
    /// A hole comes.
    #[inline(always)]
    pub(super) fn came(&self, size: u32) {
        if size >= self.size.get() {
            self.came_first(size);
        }
    }

    #[inline(never)]
    fn came_first(&self, size: u32) {
        let holes = if size == self.size.get() { self.holes.get() } else { 0 };
        self.set(size, holes + 1);
    }

    /// A hole goes.
    #[inline(always)]
    pub(super) fn went(&self, size: u32) {
        if size == self.size.get() {
            self.holes.set(self.holes.get() - 1);
        }
    }

    /// The size, if it is known.
    pub(super) fn get(&self) -> Option<u32> {
        (self.holes.get() != 0).then(|| self.size.get())
    }

    /// Says that of all sizes `size` is the largest, and that `holes` have it.
    pub(super) fn set(&self, size: u32, holes: u32) {
        self.size.set(size);
        self.holes.set(holes);
    }
}
