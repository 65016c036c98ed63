//! Whether a launch's program is over when the engine returns from it, without an event that says so.
//!
//! An engine that runs programs in the caller's thread has run one then, unless it had to wait: for an argument, or for
//! a program on another thread that the device was given before (engine behaviour T44). So each launch that may leave a
//! program under way is counted before the engine is called:
//!
//! ```text
//!  may outlast the call     begin ------> Execute ------> an operation in flight, or over ------> end
//!  does not, if alone       stillness --> Execute ------> still?  yes: the program is over
//!                                                                 no:  another launch may have come before it
//! ```
//!
//! If the engine had a program wait for another launch, that launch began before it, and is seen afterwards.

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

/// A launch that may outlast its call. Dropped, it has ended, or what it left under way is known elsewhere.
pub struct Launch<'a>(&'a Launches);

/// A moment at which no launch was under way.
#[derive(Clone, Copy, Debug)]
pub struct Stillness(u64);

impl Launches {
    /// Before the engine is called for a launch that may outlast its call.
    pub fn begin(&self) -> Launch<'_> {
        // What the engine does next in this thread comes after it for each thread that sees what the engine did.
        self.0.fetch_add(BEGUN, Ordering::Relaxed);
        Launch(self)
    }

    /// `None` while a launch is under way. What one that has ended left under way is seen by the caller from here on.
    #[inline]
    pub fn stillness(&self) -> Option<Stillness> {
        let now = self.0.load(Ordering::Acquire);
        (now & UNENDED == 0).then_some(Stillness(now))
    }

    /// Whether no launch has begun since.
    #[inline]
    pub fn is_still(&self, since: Stillness) -> bool {
        self.0.load(Ordering::Relaxed) == since.0
    }
}

impl Drop for Launch<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(ENDED, Ordering::Release);
    }
}
