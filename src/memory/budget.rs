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
//! The limit may be that of a larger budget ([`Whole`]), which other processes take from as well: then what is held or
//! granted here is taken from that, too.
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
    error::{Code, Error},
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
    /// What this is a part of.
    whole: Option<Arc<dyn Whole>>,
    books: Mutex<Books>,
    /// What is granted, to be looked at without the lock; only what is free while the rest is being taken back.
    open: AtomicU64,
    /// Executions that look, or have looked and are not yet through.
    entering: AtomicUsize,
}

/// A larger budget, which others take from as well. Both functions are called with the lock of the part.
pub trait Whole: Send + Sync + fmt::Debug {
    /// Takes bytes of it.
    ///
    /// # Errors
    /// The numbers, if it has not so much left; or why it cannot be used.
    fn take(&self, bytes: Bytes) -> Result<(), Beyond>;

    /// Returns bytes that were taken.
    fn give(&self, bytes: Bytes);
}

/// A larger budget gives nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// What could have been taken.
    pub available: Bytes,
    /// What others have, or are to have.
    pub others: Bytes,
    /// Why it cannot be used, where that is the reason.
    pub broken: Option<Error>,
}

#[derive(Debug, Default)]
struct Books {
    held: Bytes,
    granted: Bytes,
}

/// The limit leaves no room.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// What other processes have of it, if that is the reason.
    pub others: Option<Bytes>,
    /// Why the larger budget cannot be used, if that is the reason.
    pub broken: Option<Error>,
}

impl Over {
    /// The code of the error: RESOURCE_EXHAUSTED, or INTERNAL where less would be refused as well.
    pub fn code(&self) -> Code {
        if self.broken.is_some() { Code::Internal } else { Code::ResourceExhausted }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.broken {
            return f.write_str(&error.message);
        }
        write!(
            f,
            "{} more would pass the limit of {} by {}: arrays hold {}, programs' scratch {}",
            self.wanted, self.limit, self.missing, self.held, self.granted
        )?;
        match self.others {
            Some(others) => write!(f, ", other processes of the group {others}"),
            None => Ok(()),
        }
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
    /// What it takes of the larger budget, until it is granted.
    taken: Bytes,
}

impl Offer<'_> {
    /// Grants it.
    pub fn take(mut self) {
        self.books.granted = self.granted;
        self.taken = Bytes::ZERO;
        self.budget.open.store((self.budget.free + self.granted).get(), Ordering::SeqCst);
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.budget.give_to_whole(self.taken);
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

    /// Takes `bytes` out of it, or all of it where it is less: a charge of their own.
    pub fn split_off(&mut self, bytes: Bytes) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), bytes }
    }

    /// What was charged stays so for good: the memory could not be given back.
    pub fn keep_for_good(self) {
        std::mem::forget(self);
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
        Self { limit, free, fixed: false, whole: None, books, open, entering: AtomicUsize::new(0) }
    }

    /// The same, as a part of a larger budget with the same limit.
    pub fn part_of(mut self, whole: Arc<dyn Whole>) -> Self {
        self.whole = Some(whole);
        self
    }

    /// A budget of `limit` for the arena alone: the engine has `share` beside it, no more and no less.
    pub fn with_share(limit: Bytes, share: Bytes) -> Self {
        let mut budget = Self::new(limit);
        (budget.free, budget.fixed, budget.open) = (share, true, AtomicU64::new(share.get()));
        budget
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
        let held = self.fits(bytes, books.held, books.granted, &books)?;
        self.take_of_whole(bytes, &books)?;
        books.held = held;
        Ok(Charge { budget: Arc::clone(self), bytes })
    }

    fn put_back(&self, bytes: Bytes) {
        let mut books = self.books.lock();
        debug_assert!(books.held >= bytes, "more is returned than was taken");
        books.held = books.held.saturating_sub(bytes);
        self.give_to_whole(bytes);
    }

    fn take_of_whole(&self, bytes: Bytes, books: &Books) -> Result<(), Over> {
        let Some(whole) = &self.whole else { return Ok(()) };
        whole.take(bytes).map_err(|Beyond { available, others, broken }| Over {
            wanted: bytes,
            missing: bytes.saturating_sub(available),
            held: books.held,
            granted: books.granted,
            limit: self.limit,
            others: Some(others),
            broken,
        })
    }

    fn give_to_whole(&self, bytes: Bytes) {
        if let Some(whole) = &self.whole
            && !bytes.is_zero()
        {
            whole.give(bytes);
        }
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
            let (limit, others, broken) = (self.limit, None, None);
            return Err(Over { wanted: more, missing: more, held, granted, limit, others, broken });
        }
        let granted = self.fits(more, books.granted, books.held, &books)?;
        self.take_of_whole(more, &books)?;
        Ok(Offer { budget: self, books, granted, taken: more })
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
                others: None,
                broken: None,
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
        self.give_to_whole(before - books.granted);
        before - books.granted
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let granted = self.books.lock().granted;
        self.give_to_whole(granted);
    }
}

#[cfg(test)]
mod tests;
