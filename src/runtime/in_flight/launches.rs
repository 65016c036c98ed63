//! Whether a launch's program is over when the engine returns from it, without an event that says so.
//!
//! An engine that runs programs in the caller's thread has run one then, unless it had to wait: for an argument, or for
//! a program that the device was given before and that is on another thread (engine behaviour T44). Such a program may
//! be another thread's launch, which itself had to wait. So each launch is counted from before the engine is called
//! until its program is over, or an operation in flight:
//!
//! ```text
//!   begin ------> Execute ------> was it alone? -- yes: the program is over -----------------------------------> end
//!                                               `- no:  it may have had to wait: it is an operation in flight -> end
//! ```
//!
//! A launch was alone if none was under way when it began, and none has begun since: if the engine had its program wait
//! for another launch's, that launch began before the engine was called for this one, and had not ended.

use crate::sync::atomic::{AtomicU64, Ordering};

/// What a launch that begins adds: one that has begun, and one that has not ended.
const BEGUN: u64 = 1 << 32 | 1;
/// What a launch that ends takes away.
const ENDED: u64 = 1;
/// The part of the number that counts launches that have not ended.
const UNENDED: u64 = u32::MAX as u64;

/// See the module's documentation: how many launches have begun in the upper half, and have not ended in the lower.
#[derive(Debug, Default)]
pub struct Launches(AtomicU64);

/// A launch under way. Dropped, its program is over, or known to be under way.
pub struct Begun<'a> {
    launches: &'a Launches,
    /// The number when it had begun.
    at: u64,
}

impl Launches {
    /// Before the engine is called.
    #[inline]
    pub fn begin(&self) -> Begun<'_> {
        // What launches that have ended left under way is seen by the caller from here on. What the engine does next in
        // this thread comes after it for each thread that sees what the engine did.
        let before = self.0.fetch_add(BEGUN, Ordering::Acquire);
        Begun { launches: self, at: before.wrapping_add(BEGUN) }
    }
}

impl Begun<'_> {
    /// Whether no launch was under way when this one began, and none has begun since.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.at & UNENDED == 1 && self.launches.0.load(Ordering::Relaxed) == self.at
    }
}

impl Drop for Begun<'_> {
    #[inline]
    fn drop(&mut self) {
        self.launches.0.fetch_sub(ENDED, Ordering::Release);
    }
}
