//! When an array that is written in pieces is delivered, or fails.
//!
//! ```text
//!   stage     Open --- last transfer ---> Closed
//!               \----- SetBufferError, Destroy ---> Failed
//!   receiver  NotRetrieved -- RetrieveBuffer --> Served   nothing is left to do: the caller has a view of the block
//!               \----- before the end ----> Promised      the caller has an alias buffer without bytes
//!   due       not Open, no copy under way, Promised: the alias gets a view of the block, or the error
//! ```
//!
//! The bytes are copied without a lock: `copies` keeps the block in place, and the thread that ends the last copy
//! does what is due, without the lock.

use crate::sync::Mutex;

/// Which transfers are still accepted.
enum Stage<R> {
    /// Any transfer.
    Open,
    /// None: the last transfer was accepted.
    Closed,
    /// None: the array holds this error.
    Failed(R),
}

/// Whether the caller has the array.
enum Receiver<P> {
    /// Not yet.
    NotRetrieved,
    /// It was retrieved before its bytes were complete.
    Promised(P),
    /// It was retrieved, and is complete or an error.
    Served,
}

struct State<P, B, R> {
    stage: Stage<R>,
    receiver: Receiver<P>,
    /// Calls that write bytes at this moment.
    copies: usize,
    /// The block, until the receiver has it.
    block: Option<B>,
}

/// What is to be done once the lock is released: each thing once.
#[must_use]
pub(super) enum Due<P, B, R> {
    /// The promise gets the block, which is complete.
    Deliver(P, B),
    /// The array is an error, also for whom it was promised to.
    Fail(Option<P>, R),
}

/// Why no more transfers are accepted.
pub(super) enum Refusal<R> {
    /// The last one was accepted.
    Complete,
    /// The array holds this error.
    Failed(R),
}

/// How a receiver is given the array.
pub(super) enum Receipt<T, P> {
    /// It is.
    Served(T),
    /// It is promised.
    Promised(T, P),
}

/// The state of one array: `B` is its block, `P` a promise of it, and `R` why it fails.
pub(super) struct Delivery<P, B, R>(Mutex<State<P, B, R>>);

impl<P, B, R: Clone> Delivery<P, B, R> {
    /// Of an array that nobody has written to. It lies in `block`, if it is one of ours.
    pub(super) fn new(block: Option<B>) -> Self {
        Self(Mutex::new(State { stage: Stage::Open, receiver: Receiver::NotRetrieved, copies: 0, block }))
    }

    /// Accepts a write, which must [end](Self::end); no write is accepted after the `last` one.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub(super) fn begin(&self, last: bool) -> Result<(), Refusal<R>> {
        let mut state = self.0.lock();
        state.require_open()?;
        if last {
            state.stage = Stage::Closed;
        }
        state.copies += 1;
        Ok(())
    }

    /// Ends a write that was begun.
    pub(super) fn end(&self) -> Option<Due<P, B, R>> {
        let mut state = self.0.lock();
        state.copies -= 1;
        state.due()
    }

    /// The array becomes an error.
    ///
    /// # Errors
    /// Why it does not: it is complete, or one already.
    pub(super) fn fail(&self, reason: R) -> Result<Option<Due<P, B, R>>, Refusal<R>> {
        let mut state = self.0.lock();
        state.require_open()?;
        state.stage = Stage::Failed(reason);
        Ok(state.due())
    }

    /// No more transfers will come: an array that is still open becomes an error.
    pub(super) fn abandon(&self, reason: impl FnOnce() -> R) -> Option<Due<P, B, R>> {
        let mut state = self.0.lock();
        if matches!(state.stage, Stage::Open) {
            state.stage = Stage::Failed(reason());
        }
        state.due()
    }

    /// Gives the array to its receiver, with the lock held: `give` takes the block, where that is complete, or makes a
    /// promise. `None` if the array was retrieved before.
    ///
    /// # Errors
    /// Those of `give`, after which the array is still to be retrieved.
    #[expect(clippy::type_complexity, reason = "what is given, and what is due because it was promised")]
    pub(super) fn retrieve<T, E>(
        &self,
        give: impl FnOnce(Option<&mut Option<B>>) -> Result<Receipt<T, P>, E>,
    ) -> Option<Result<(T, Option<Due<P, B, R>>), E>> {
        let mut state = self.0.lock();
        if !matches!(state.receiver, Receiver::NotRetrieved) {
            return None;
        }
        let complete = matches!(state.stage, Stage::Closed) && state.copies == 0;
        let given = give(complete.then_some(&mut state.block));
        Some(given.map(|receipt| match receipt {
            Receipt::Served(given) => {
                state.receiver = Receiver::Served;
                (given, None)
            }
            Receipt::Promised(given, promise) => {
                state.receiver = Receiver::Promised(promise);
                (given, state.due())
            }
        }))
    }
}

impl<P, B, R: Clone> State<P, B, R> {
    fn require_open(&self) -> Result<(), Refusal<R>> {
        match &self.stage {
            Stage::Open => Ok(()),
            Stage::Closed => Err(Refusal::Complete),
            Stage::Failed(reason) => Err(Refusal::Failed(reason.clone())),
        }
    }

    /// What is due now that something changed. Each thing is due once: a promise is taken out, and an array fails
    /// once, when its last copy has ended.
    fn due(&mut self) -> Option<Due<P, B, R>> {
        if self.copies > 0 || matches!(self.stage, Stage::Open) {
            return None;
        }
        let promise = match std::mem::replace(&mut self.receiver, Receiver::NotRetrieved) {
            Receiver::Promised(promise) => {
                self.receiver = Receiver::Served;
                Some(promise)
            }
            other => {
                self.receiver = other;
                None
            }
        };
        if let Stage::Failed(reason) = &self.stage {
            // The bytes will not be used.
            self.block = None;
            return Some(Due::Fail(promise, reason.clone()));
        }
        // Without a promise the block stays until the buffer is retrieved.
        let promise = promise?;
        self.block.take().map(|block| Due::Deliver(promise, block))
    }
}
