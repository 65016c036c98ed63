//! One limit for two that take a GPU's memory: the arena, and the engine's own pool, where programs' scratch comes
//! from.
//!
//! ```text
//!  |----------------------------- limit -----------------------------|
//!  | held by the arena (holes too)    |   neither    |    granted    |
//!    take -->                 <-- dropped               <-- grant
//!                                                         trim -->
//! ```
//!
//! The engine allocates for itself, and where it finds no memory its arguments are gone (engine behaviour T6). So it is
//! asked here before each execution whether what it may take was granted, and granted memory is taken back only while
//! no execution is on its way into the engine. What was granted stays granted: the engine's pool keeps the memory for
//! the next program, which finds scratch where the last one had it.
//!
//! Where the engine has no pool, it has a share of its own beside the limit, for good: then nothing is granted, and
//! what does not fit the share does not run ([`Budget::with_share`]).
//!
//! A little is granted from the start, beside the limit ([`Budget::new`]): most programs take a few bytes, and they
//! must run when arrays hold all there is.
//!
//! Entering is two atomic operations. Everything else is rare, and locked.
//!
//! Pinned memory of the host has a budget as well: there the arena and arrays that the engine made take, and nothing is
//! granted.

use std::{
    error, fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{
    sync::{Mutex, MutexGuard},
    units::Bytes,
};

/// See the module's documentation.
#[derive(Debug)]
pub struct Budget {
    limit: Bytes,
    /// What is granted beside the limit, for good.
    free: Bytes,
    /// Whether nothing else ever is.
    fixed: bool,
    books: Mutex<Books>,
    /// What is granted, to be looked at without the lock; only what is free while the rest is being taken back.
    open: AtomicU64,
    /// Executions that look, or have looked and are not yet through.
    entering: AtomicUsize,
}

#[derive(Debug, Default)]
struct Books {
    held: Bytes,
    granted: Bytes,
}

/// The limit leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// What was asked for, beyond what is there already.
    pub wanted: Bytes,
    /// By how much it is too much.
    pub missing: Bytes,
    /// What the arena holds.
    pub held: Bytes,
    /// What the engine's pool may have.
    pub granted: Bytes,
    /// The limit of both.
    pub limit: Bytes,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} more would pass the limit of {} by {}: arrays hold {}, programs' scratch {}",
            self.wanted, self.limit, self.missing, self.held, self.granted
        )
    }
}

impl error::Error for Over {}

/// An execution on its way into the engine: what is granted stays granted until this is dropped.
#[derive(Debug)]
pub struct Entered<'a>(&'a Budget);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.entering.fetch_sub(1, Ordering::SeqCst);
    }
}

/// More memory for the engine's pool, within the limit.
#[derive(Debug)]
pub struct Offer<'a> {
    budget: &'a Budget,
    books: MutexGuard<'a, Books>,
    granted: Bytes,
}

impl Offer<'_> {
    /// Grants it.
    pub fn take(mut self) {
        self.books.granted = self.granted;
        self.budget.open.store((self.budget.free + self.granted).get(), Ordering::SeqCst);
    }
}

/// What the arena took, returned to the budget when this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: Bytes,
}

impl Charge {
    /// Returns what is more than `bytes`.
    pub fn trim_to(&mut self, bytes: Bytes) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        self.budget.put_back(surplus);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.put_back(self.bytes);
    }
}

impl Budget {
    /// A budget of `limit`, of which nothing is taken. A 64th of it, at most 32 MiB, is granted beside it.
    pub fn new(limit: Bytes) -> Self {
        let free = Bytes::new(limit.get() / 64).min(Bytes::mib(32));
        let (books, open) = (Mutex::new(Books::default()), AtomicU64::new(free.get()));
        Self { limit, free, fixed: false, books, open, entering: AtomicUsize::new(0) }
    }

    /// A budget of `limit` for the arena alone: the engine has `share` beside it, no more and no less.
    pub fn with_share(limit: Bytes, share: Bytes) -> Self {
        Self { free: share, fixed: true, open: AtomicU64::new(share.get()), ..Self::new(limit) }
    }

    /// What the engine has for good beside the limit, if it has no more.
    pub fn share(&self) -> Option<Bytes> {
        self.fixed.then_some(self.free)
    }

    /// The limit.
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// What the arena holds, and what is granted of the limit.
    pub fn taken(&self) -> (Bytes, Bytes) {
        let books = self.books.lock();
        (books.held, books.granted)
    }

    /// The arena takes `bytes` more.
    ///
    /// # Errors
    /// The numbers, if that passes the limit.
    pub fn take(self: &Arc<Self>, bytes: Bytes) -> Result<Charge, Over> {
        let mut books = self.books.lock();
        books.held = self.fits(bytes, books.held, books.granted, &books)?;
        Ok(Charge { budget: Arc::clone(self), bytes })
    }

    fn put_back(&self, bytes: Bytes) {
        let mut books = self.books.lock();
        debug_assert!(books.held >= bytes, "more is returned than was taken");
        books.held = books.held.saturating_sub(bytes);
    }

    /// What the engine's pool may have, with what is granted beside the limit.
    pub fn open(&self) -> Bytes {
        self.free + self.books.lock().granted
    }

    /// Offers to raise what is granted to `bytes`, if it is less. Nothing is granted until the offer is taken, and the
    /// budget stays locked until then: programs start by the grant alone, so it must never name memory that does not
    /// exist.
    ///
    /// # Errors
    /// The numbers, if that passes the limit.
    pub fn offer(&self, bytes: Bytes) -> Result<Offer<'_>, Over> {
        let books = self.books.lock();
        let more = bytes.saturating_sub(self.free).saturating_sub(books.granted);
        if self.fixed && !more.is_zero() {
            let Books { held, granted } = *books;
            return Err(Over { wanted: more, missing: more, held, granted, limit: self.limit });
        }
        let granted = self.fits(more, books.granted, books.held, &books)?;
        Ok(Offer { budget: self, books, granted })
    }

    /// Whether [`Self::offer`] would offer `bytes` if the arena held no more than `held`.
    pub fn could_grant(&self, bytes: Bytes, held: Bytes) -> bool {
        let more = bytes.saturating_sub(self.free);
        more.is_zero() || !self.fixed && more.checked_add(held).is_some_and(|both| both <= self.limit)
    }

    /// `own + bytes`, if that and `other` stay within the limit.
    fn fits(&self, bytes: Bytes, own: Bytes, other: Bytes, books: &Books) -> Result<Bytes, Over> {
        let after = own.checked_add(bytes).and_then(|own| Some((own, own.checked_add(other)?)));
        match after {
            Some((own, both)) if both <= self.limit => Ok(own),
            after => Err(Over {
                wanted: bytes,
                missing: after.map_or(bytes, |(_, both)| both - self.limit),
                held: books.held,
                granted: books.granted,
                limit: self.limit,
            }),
        }
    }

    /// Lets an execution in that takes up to `bytes` of scratch; `None` if less is granted.
    #[inline]
    pub fn enter(&self, bytes: Bytes) -> Option<Entered<'_>> {
        // Sequentially consistent on both sides: either this sees that the grant is being withdrawn, or the thread that
        // withdraws it sees this.
        self.entering.fetch_add(1, Ordering::SeqCst);
        let entered = Entered(self);
        (self.open.load(Ordering::SeqCst) >= bytes.get()).then_some(entered)
    }

    /// Whether no execution is on its way in.
    pub fn is_quiet(&self) -> bool {
        self.entering.load(Ordering::SeqCst) == 0
    }

    /// Withdraws what is granted, but for what the engine's pool still has once `trim_pool` has trimmed it; returns how
    /// much. Nothing while an execution is entering. The lock is held while `trim_pool` runs.
    pub fn trim(&self, trim_pool: impl FnOnce() -> Bytes) -> Bytes {
        let mut books = self.books.lock();
        self.open.store(self.free.get(), Ordering::SeqCst);
        let before = books.granted;
        if !before.is_zero() && self.entering.load(Ordering::SeqCst) == 0 {
            books.granted = trim_pool().saturating_sub(self.free).min(before);
        }
        self.open.store((self.free + books.granted).get(), Ordering::SeqCst);
        before - books.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(count: u64) -> Bytes {
        Bytes::mib(count)
    }

    #[test]
    fn both_share_one_limit() {
        let budget = Arc::new(Budget { free: Bytes::ZERO, ..Budget::new(mib(100)) });
        let (fifty, ten) = (budget.take(mib(50)).unwrap(), budget.take(mib(10)).unwrap());
        budget.offer(mib(40)).unwrap().take();
        let over = budget.take(mib(1)).unwrap_err();
        assert_eq!((over.wanted, over.missing, over.held, over.granted), (mib(1), mib(1), mib(60), mib(40)));
        assert_eq!(budget.offer(mib(50)).unwrap_err().missing, mib(10));
        assert_eq!(
            over.to_string(),
            "1.00MiB more would pass the limit of 100.00MiB by 1.00MiB: arrays hold 60.00MiB, programs' scratch 40.00MiB"
        );
        drop(ten);
        budget.offer(mib(50)).unwrap().take();
        assert_eq!(budget.taken(), (mib(50), mib(50)));
        // What is granted already is not asked for again.
        budget.offer(mib(20)).unwrap().take();
        assert_eq!(budget.taken(), (mib(50), mib(50)));
        assert_eq!(budget.take(Bytes::MAX).unwrap_err().missing, Bytes::MAX);
        let mut fifty = fifty;
        fifty.trim_to(mib(60));
        assert_eq!(budget.taken().0, mib(50));
        fifty.trim_to(mib(20));
        assert_eq!(budget.taken().0, mib(20));
        drop(fifty);
        assert_eq!(budget.taken(), (Bytes::ZERO, mib(50)));
        // What could be granted is the whole limit, whatever is granted now.
        assert!(budget.could_grant(mib(60), mib(40)) && !budget.could_grant(mib(60), mib(41)));
        assert!(!budget.could_grant(Bytes::MAX, mib(1)));
    }

    #[test]
    fn a_little_is_granted_when_arrays_hold_all() {
        let budget = Arc::new(Budget::new(mib(640)));
        let all = budget.take(mib(640)).unwrap();
        assert!(budget.enter(mib(10)).is_some());
        assert!(budget.enter(mib(10) + Bytes::new(1)).is_none());
        budget.offer(mib(10)).unwrap().take();
        assert_eq!(budget.offer(mib(11)).unwrap_err().missing, mib(1));
        assert_eq!(budget.trim(|| panic!("nothing of the limit is granted")), Bytes::ZERO);
        assert!(budget.could_grant(mib(10), mib(640)) && !budget.could_grant(mib(11), mib(640)));
        drop(all);
        budget.offer(mib(30)).unwrap().take();
        assert_eq!(budget.taken().1, mib(20));
        assert!(budget.enter(mib(30)).is_some());
        // The pool gives all back but what programs under way use.
        assert_eq!(budget.trim(|| mib(15)), mib(15));
        assert_eq!(budget.taken().1, mib(5));
        assert!(budget.enter(mib(15)).is_some() && budget.enter(mib(16)).is_none());
    }

    #[test]
    fn a_fixed_share_neither_grows_nor_shrinks() {
        let budget = Arc::new(Budget::with_share(mib(100), mib(60)));
        assert_eq!((budget.limit(), budget.share()), (mib(100), Some(mib(60))));
        assert_eq!(Budget::new(mib(100)).share(), None);
        // Arrays have all of the limit, whatever programs take, and none of the share.
        let all = budget.take(mib(100)).unwrap();
        assert!(budget.enter(mib(60)).is_some() && budget.enter(mib(61)).is_none());
        assert_eq!(budget.take(Bytes::new(1)).unwrap_err().missing, Bytes::new(1));
        drop(all);
        budget.offer(mib(60)).unwrap().take();
        assert_eq!(budget.offer(mib(61)).unwrap_err().missing, mib(1));
        assert!(budget.enter(mib(61)).is_none());
        assert!(budget.could_grant(mib(60), mib(100)) && !budget.could_grant(mib(61), Bytes::ZERO));
        assert_eq!(budget.trim(|| panic!("nothing is granted")), Bytes::ZERO);
        assert!(budget.enter(mib(60)).is_some());
        assert_eq!(budget.taken(), (Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn a_grant_is_not_taken_back_under_an_execution() {
        let nothing_free = Budget { free: Bytes::ZERO, open: AtomicU64::new(0), ..Budget::new(mib(100)) };
        let budget = Arc::new(nothing_free);
        budget.offer(mib(30)).unwrap().take();
        assert!(budget.enter(mib(31)).is_none());
        let entered = budget.enter(mib(30)).unwrap();
        let trim = || panic!("the pool is in use");
        assert_eq!(budget.trim(trim), Bytes::ZERO);
        assert_eq!(budget.taken().1, mib(30));
        drop(entered);
        // The pool still has 10 MiB in use by programs under way.
        assert_eq!(budget.trim(|| mib(10)), mib(20));
        assert!(budget.enter(mib(11)).is_none());
        assert!(budget.enter(mib(10)).is_some());
        let _rest = budget.take(mib(90)).unwrap();
        // A pool that others use too has more than was granted.
        assert_eq!(budget.trim(|| mib(50)), Bytes::ZERO);
    }
}
