//! What a read allocates: the system's allocator, counted, for programs that say
//! `#[global_allocator] static ALLOCATOR: Counting = Counting;`.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed, and the most of that. Of each thread by
    /// itself, because tests run side by side.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let now = NOW.get().wrapping_add(bytes);
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

/// The system's allocator, counted.
pub struct Counting;

// SAFETY: every block comes from the system's allocator, and goes back to it with the same layout; counting neither
// allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the block came from the system's allocator with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    /// Old and new count together for the peak, as where the block has to move.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller's contract is the same, and the block came from the system's allocator.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// What `read` gives, and the most bytes that it had allocated at once.
pub fn peak_of<T>(read: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = read();
    (result, PEAK.get().saturating_sub(before).unsigned_abs())
}
