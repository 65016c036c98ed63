//! Who uses, holds, frees and moves the bytes of one buffer.
//!
//! ```text
//!   users > 0      executions and transfers under way: the bytes stay where they are
//!   executions > 0       so many of the users are executions, which a GPU does one after another
//!   copies > 0     so many of the users are we ourselves: the engine, which does not know, must not end the bytes
//!   references > 0 outsiders hold the address until they say otherwise: likewise
//!   given for good an outsider holds the address for ever: likewise
//!   not defined      nobody knows whether the bytes are good: likewise
//!   moving         the mover has them; everybody else waits, for as long as one compaction takes
//!   pending_donations > 0     so many launches are under way that are given the bytes, and may write to them at once: no copy begins
//!   borrows > 0      so many of the copies are programs on another client of the engine. They take long, and who waited for one
//!                  could be who it waits for: a launch does not get the bytes
//!
//!   owner let go, no user, no reference: the bytes are free
//! ```
//!
//! The mover holds no lock while it moves: `moving` keeps the others out. It waits for nobody, so whoever waits for it,
//! a host callback included, waits for copies and no longer (engine behaviour T9).
//!
//! A launch says that it takes the bytes before it waits for their copies. So it waits for those that were under way, one
//! memcpy long, and those wait for nobody; nobody waits for a launch. Whoever comes to copy meanwhile has the engine do it,
//! which knows what it has launched and what not.

use std::ops::{Deref, DerefMut};

use crate::{
    memory::MoveBarrier,
    sync::{Condvar, Mutex, MutexGuard},
};

/// What became of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Usable.
    Live,
    /// Its owner deleted it.
    Deleted,
    /// A program took its memory over; the engine consumed its handle.
    Donated,
}

/// What uses bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum User {
    /// A transfer, or a question.
    #[default]
    Transfer,
    /// An execution on their device.
    Execution,
}

/// Who reads bytes without the engine's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// We, who copy them.
    Copy,
    /// A program on another client of the engine.
    Program,
}

/// How far the run is that writes the bytes of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// It uses them, and does so until the flight lands.
    Pending,
    /// It is done and went well.
    Defined,
    /// It is done and left an error.
    Failed,
}

/// What is known about the bytes, and `body`, which says where they are.
pub struct State<T> {
    life: Life,
    users: u32,
    executions: u32,
    copies: u32,
    borrows: u32,
    pending_donations: u32,
    references: u32,
    address_known: bool,
    defined: bool,
    moving: bool,
    body: T,
}

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.body
    }
}

impl<T> State<T> {
    /// What became of the buffer.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The owner lets go; whether it was the owner's still.
    pub fn end(&mut self, life: Life) -> bool {
        let was_live = self.life == Life::Live;
        if was_live {
            self.life = life;
        }
        was_live
    }

    /// Begins anew with other bytes, still to be written, after an end at which nobody used or held the old ones.
    pub fn reuse(&mut self, body: T) {
        debug_assert!(self.life == Life::Deleted && self.is_free() && !self.address_known && !self.moving);
        debug_assert!(self.pending_donations == 0, "given to a program after its end");
        (self.life, self.defined, self.body) = (Life::Live, false, body);
    }

    /// The bytes are those of a run's result.
    pub fn define_by(&mut self, writing: Definition) {
        match writing {
            Definition::Pending => self.begin_use(User::Execution),
            Definition::Defined => self.mark_defined(),
            Definition::Failed => {}
        }
    }

    /// A program took the bytes over.
    pub fn donate(&mut self) {
        self.life = Life::Donated;
    }

    /// Begins a run that may write to the bytes, and that the engine of their buffer does not know of, unless they are
    /// used or outsiders say when no longer; whether it did. Nobody else begins to use them.
    #[must_use]
    pub fn donate_exclusively(&mut self) -> bool {
        let alone = self.life == Life::Live && self.is_unused() && !self.is_referenced();
        if alone {
            self.donate();
            self.begin_use(User::Execution);
        }
        alone
    }

    /// The run that took the bytes alone did not write to them: they are their owner's again.
    pub fn undo_donation(&mut self) {
        debug_assert!(self.life == Life::Donated, "given back by who has it not");
        self.life = Life::Live;
    }

    /// Begins a use of the bytes.
    pub fn begin_use(&mut self, user: User) {
        self.users += 1;
        if user == User::Execution {
            self.executions += 1;
        }
    }

    /// Ends a use of the bytes.
    pub fn end_use(&mut self, user: User) {
        debug_assert!(self.users > 0, "landed more often than taken up");
        self.users -= 1;
        if user == User::Execution {
            debug_assert!(self.executions > 0, "executions ended more often than begun");
            self.executions -= 1;
        }
    }

    /// Whether executions on their device alone use the bytes.
    pub fn is_used_by_executions_alone(&self) -> bool {
        self.users == self.executions && self.references == 0 && !self.address_known
    }

    /// Begins a use of the bytes that the engine does not know of, unless a launch is under way that may write to them;
    /// whether it did.
    #[must_use]
    pub fn begin_copy(&mut self, reader: Reader) -> bool {
        if self.pending_donations > 0 {
            return false;
        }
        self.begin_use(User::Transfer);
        self.copies += 1;
        if reader == Reader::Program {
            self.borrows += 1;
        }
        true
    }

    /// Whether a use of the bytes is under way that the engine does not know of.
    pub fn is_copied(&self) -> bool {
        self.copies > 0
    }

    /// Ends a launch that was given the bytes: it has them for good, or will not write to them.
    pub fn end_donation(&mut self) {
        debug_assert!(self.pending_donations > 0, "launches ended more often than begun");
        self.pending_donations -= 1;
    }

    /// Whether a launch is under way that is given the bytes.
    pub fn has_pending_donation(&self) -> bool {
        self.pending_donations > 0
    }

    /// Whether outsiders hold the address and will say when no longer.
    pub fn is_referenced(&self) -> bool {
        self.references > 0
    }

    /// How many executions and transfers use the bytes.
    pub fn users(&self) -> u32 {
        self.users
    }

    /// Whether no execution or transfer uses the bytes.
    pub fn is_unused(&self) -> bool {
        self.users == 0
    }

    /// One more outsider holds the address; whether it is the first that does.
    pub fn add_reference(&mut self) -> bool {
        self.references += 1;
        self.references == 1 && !self.address_known
    }

    /// One less; whether nobody outside holds the address now. `None` if there was none.
    pub fn drop_reference(&mut self) -> Option<bool> {
        self.references = self.references.checked_sub(1)?;
        Some(self.references == 0 && !self.address_known)
    }

    /// Nobody outside refers to the buffer any more, whatever they said; whether somebody did.
    pub fn forget_references(&mut self) -> bool {
        std::mem::take(&mut self.references) > 0 && !self.address_known
    }

    /// The address was given out for good; whether nobody held it before.
    pub fn expose_address(&mut self) -> bool {
        let first = self.references == 0 && !self.address_known;
        self.address_known = true;
        first
    }

    /// The bytes are written and good.
    pub fn mark_defined(&mut self) {
        self.defined = true;
    }

    /// Whether the bytes are written and good.
    pub fn is_defined(&self) -> bool {
        self.defined
    }

    /// Whether the bytes are free to go.
    pub fn is_free(&self) -> bool {
        self.life != Life::Live && self.users == 0 && self.references == 0
    }

    /// Why the bytes stay where they are; `None` if they may move.
    pub fn move_barrier(&self) -> Option<MoveBarrier> {
        if self.address_known {
            Some(MoveBarrier::AddressKnown)
        } else if self.references > 0 {
            Some(MoveBarrier::Referenced)
        } else if self.life != Life::Live {
            Some(MoveBarrier::Gone)
        } else if self.users > 0 {
            Some(MoveBarrier::InUse)
        } else if !self.defined {
            Some(MoveBarrier::NotDefined)
        } else {
            None
        }
    }
}

/// See the module's documentation.
pub struct Usage<T> {
    state: Mutex<State<T>>,
    /// The bytes were moved, or no copy of them is under way any more.
    changed: Condvar,
}

impl<T> Usage<T> {
    /// Of a live buffer that is still to be written.
    pub fn new(body: T) -> Self {
        let state = State {
            life: Life::Live,
            users: 0,
            executions: 0,
            copies: 0,
            borrows: 0,
            pending_donations: 0,
            references: 0,
            address_known: false,
            defined: false,
            moving: false,
            body,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Everything that changes. Waits while the bytes are being moved.
    pub fn lock(&self) -> MutexGuard<'_, State<T>> {
        let mut state = self.state.lock();
        while state.moving {
            self.changed.wait(&mut state);
        }
        state
    }

    /// As [`Self::lock`], for a launch that may write to the bytes: from here to [`State::end_donation`] no copy begins, and those
    /// that were under way are over. `None` if the bytes are lent, and so not to be had; then no launch has begun.
    pub fn lock_for_donation(&self) -> Option<MutexGuard<'_, State<T>>> {
        let mut state = self.lock();
        if state.borrows > 0 {
            return None;
        }
        state.pending_donations += 1;
        // The bytes are in no use by the launch yet: they may be moved in between.
        while state.moving || state.copies > 0 && state.life == Life::Live {
            self.changed.wait(&mut state);
        }
        Some(state)
    }

    /// Ends what [`State::begin_copy`] began.
    pub fn end_copy(&self, reader: Reader) -> MutexGuard<'_, State<T>> {
        let mut state = self.lock();
        debug_assert!(state.copies > 0, "copies ended more often than begun");
        state.copies -= 1;
        if reader == Reader::Program {
            debug_assert!(state.borrows > 0, "borrows ended more often than begun");
            state.borrows -= 1;
        }
        state.end_use(User::Transfer);
        if state.copies == 0 && state.pending_donations > 0 {
            self.changed.notify_all();
        }
        state
    }

    /// A look at where the bytes are, whoever has them in hand.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.state.lock().body)
    }

    /// What keeps the bytes where they are at this instant; nobody waits. A buffer that is being moved may move.
    pub fn move_barrier(&self) -> Option<MoveBarrier> {
        self.state.lock().move_barrier()
    }

    /// Takes the bytes in hand to move them, if they may move and `look` finds what it wants: from then on everybody
    /// else waits for [`Self::unlock_after_move`].
    pub fn lock_for_move<R>(&self, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let mut state = self.state.lock();
        if state.moving || state.move_barrier().is_some() {
            return None;
        }
        let found = look(&state.body)?;
        state.moving = true;
        Some(found)
    }

    /// Ends what [`Self::lock_for_move`] began, after `change` has said where the bytes are now.
    pub fn unlock_after_move<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state.body);
        state.moving = false;
        drop(state);
        self.changed.notify_all();
        result
    }
}
