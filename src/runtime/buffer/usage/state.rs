//! What is known about the bytes of a buffer, and how each event changes it. See [`super`] for the words.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::last_use::{LastUse, Undonated};
use crate::memory::{Execution, MoveBarrier};

/// What became of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The caller may use it.
    Live,
    /// Its owner deleted it.
    Deleted,
    /// A program consumed it, memory and handle.
    Donated,
}

/// What a use of bytes is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum User {
    /// A transfer, or a query.
    #[default]
    Transfer,
    /// An execution on the bytes' device.
    Execution,
}

/// What reads bytes without the engine's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A copy by pjrt-arena.
    Copy,
    /// A program on another client of the engine.
    Program,
}

/// How far the execution is that writes the bytes of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// It is under way, and uses the bytes until its operation is reaped.
    Pending {
        /// Whether it may fail yet.
        may_fail: bool,
    },
    /// It is done and succeeded.
    Defined,
    /// It is done and failed.
    Failed,
}

impl Definition {
    /// Whether the execution is under way.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Pending { .. })
    }

    /// Whether the bytes are good, or will be: a program that reads them does not fail because of them.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Defined | Self::Pending { may_fail: false })
    }
}

/// Whether a program may be donated bytes that nobody wants any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Any may: no program that uses them fails.
    Any,
    /// One may that fails anyway if this one does.
    Behind(Execution),
    /// None may.
    Nobody,
}

/// What is known about the bytes, and `body`, which says where they are.
pub struct State<T> {
    life: Life,
    users: u32,
    executions: u32,
    pub(super) copies: u32,
    pub(super) borrows: u32,
    pub(super) pending_donations: u32,
    references: u32,
    told: bool,
    pub(super) referring: bool,
    address_known: bool,
    defined: bool,
    may_fail: bool,
    /// Which programs may be donated the bytes, as far as their readers go.
    readers: Trust,
    pub(super) moving: bool,
    /// A transfer or a query has used the bytes. The engine may tell of its end before it notes it for itself.
    transferred: bool,
    /// Of the last launch, where that could have been donated the bytes, and nothing has used them since. In a box,
    /// which most buffers never need.
    last_use: Option<Box<LastUse>>,
    pub(super) body: T,
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
    /// That of a live buffer whose bytes are not defined yet.
    pub(super) fn new(body: T) -> Self {
        Self {
            life: Life::Live,
            users: 0,
            executions: 0,
            copies: 0,
            borrows: 0,
            pending_donations: 0,
            references: 0,
            told: false,
            referring: false,
            address_known: false,
            defined: false,
            may_fail: true,
            readers: Trust::Any,
            moving: false,
            transferred: false,
            last_use: None,
            body,
        }
    }

    /// What became of the buffer.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Ends the caller's ownership; whether the buffer was live.
    pub fn end(&mut self, life: Life) -> bool {
        let was_live = self.life == Life::Live;
        if was_live {
            self.life = life;
            if self.last_use.is_some() {
                self.end_last_use();
            }
        }
        was_live
    }

    /// Makes the buffer live again with other bytes, still to be written; it was deleted, and nothing used or
    /// referenced the old ones.
    pub fn revive(&mut self) {
        debug_assert!(self.life == Life::Deleted && self.is_free() && !self.address_known && !self.moving);
        debug_assert!(self.pending_donations == 0, "donated after its end");
        (self.life, self.defined) = (Life::Live, false);
        (self.may_fail, self.readers, self.transferred) = (true, Trust::Any, false);
    }

    /// The bytes are those of an execution's result.
    pub fn define_by(&mut self, writing: Definition) {
        match writing {
            Definition::Pending { may_fail } => {
                self.may_fail = may_fail;
                self.begin_use(User::Execution);
            }
            Definition::Defined => self.mark_defined(),
            Definition::Failed => {}
        }
    }

    /// A program has consumed the bytes.
    pub fn donate(&mut self) {
        self.life = Life::Donated;
    }

    /// Begins an execution that may write to the bytes, and of which the engine's buffer does not know, unless they
    /// are used or referenced; whether it did. No other use begins from then on.
    #[must_use]
    pub fn donate_exclusively(&mut self) -> bool {
        let alone = self.life == Life::Live && self.is_unused() && !self.is_referenced();
        if alone {
            self.donate();
            self.begin_use(User::Execution);
        }
        alone
    }

    /// The execution that was donated the bytes exclusively did not consume them: the buffer is live again.
    pub fn undo_donation(&mut self) {
        debug_assert!(self.life == Life::Donated, "undone without a donation");
        self.life = Life::Live;
    }

    /// Begins a use of the bytes.
    pub fn begin_use(&mut self, user: User) {
        self.users += 1;
        match user {
            User::Execution => self.executions += 1,
            User::Transfer => self.transferred = true,
        }
        self.note_use();
    }

    /// A use of the bytes that is over at once: it keeps nothing, but a launch before it could not have been donated
    /// them.
    #[inline]
    pub fn note_use(&mut self) {
        if self.last_use.is_some() {
            self.use_again();
        }
    }

    /// Begins a use of the bytes by a launch that could have been donated them, as `argument`. `replaceable` says
    /// whether a result could have taken their place.
    pub fn begin_undonated_use(&mut self, argument: &Arc<Undonated>, launch: u32, replaceable: bool) {
        // The same array as two arguments can be donated as neither.
        let twice = self.last_use.as_ref().is_some_and(|last| last.is_of(launch));
        self.begin_use(User::Execution);
        if twice || self.is_referenced() || self.address_known {
            argument.mark_used_again();
        } else {
            self.last_use = Some(Box::new(argument.read_by(launch, replaceable)));
        }
    }

    /// The bytes are used after the last launch that could have been donated them.
    #[cold]
    fn use_again(&mut self) {
        if let Some(last) = self.last_use.take() {
            last.used_again();
        }
    }

    /// The bytes end without another use.
    #[cold]
    fn end_last_use(&mut self) {
        if let Some(last) = self.last_use.take() {
            last.ended();
        }
    }

    /// Ends a use of the bytes.
    pub fn end_use(&mut self, user: User) {
        debug_assert!(self.users > 0, "uses ended more often than begun");
        self.users -= 1;
        if user == User::Execution {
            debug_assert!(self.executions > 0, "executions ended more often than begun");
            self.executions -= 1;
        }
    }

    /// Whether nothing but executions on the bytes' device uses them.
    pub fn is_used_by_executions_alone(&self) -> bool {
        self.users == self.executions && self.references == 0 && !self.address_known
    }

    /// Begins a use of the bytes that the engine does not know of, unless a launch is under way that may write to
    /// them; whether it did.
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

    /// Ends a launch that was donated the bytes: it has consumed them, or will not write to them.
    pub fn end_donation(&mut self) {
        debug_assert!(self.pending_donations > 0, "launches ended more often than begun");
        self.pending_donations -= 1;
    }

    /// Whether a launch under way is donated the bytes.
    pub fn has_pending_donation(&self) -> bool {
        self.pending_donations > 0
    }

    /// Whether outsiders hold the address and have yet to release it.
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

    /// Adds an outsider that holds the address; whether no outsider held it before.
    pub fn add_reference(&mut self) -> bool {
        self.references += 1;
        self.references == 1 && !self.address_known
    }

    /// Removes an outsider; whether no outsider holds the address now. `None` if there was none.
    pub fn drop_reference(&mut self) -> Option<bool> {
        self.references = self.references.checked_sub(1)?;
        Some(self.references == 0 && !self.address_known)
    }

    /// Whether the engine knows that outsiders hold the address.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// The engine is about to be told that outsiders hold the address, or that none does any more; see
    /// [`super::Usage::lock_to_refer`].
    pub fn begin_referring(&mut self) {
        debug_assert!(!self.referring, "told twice at once");
        self.referring = true;
    }

    /// What the engine was told: whether outsiders hold the address.
    pub fn end_telling(&mut self, told: bool) {
        debug_assert!(self.referring, "told by more than one thread");
        self.told = told;
    }

    /// Removes all outsiders that have yet to release the address; whether there was one.
    pub fn forget_references(&mut self) -> bool {
        std::mem::take(&mut self.references) > 0 && !self.address_known
    }

    /// Whether an outsider was given the address for ever.
    pub fn is_address_known(&self) -> bool {
        self.address_known
    }

    /// An outsider was given the address for ever; whether no outsider held it before.
    pub fn expose_address(&mut self) -> bool {
        let first = self.references == 0 && !self.address_known;
        self.address_known = true;
        first
    }

    /// The bytes are written and good.
    pub fn mark_defined(&mut self) {
        self.defined = true;
    }

    /// An unsure program reads the bytes.
    pub fn mark_read_by_unsure(&mut self, run: Execution) {
        let first = self.readers == Trust::Any || self.readers == Trust::Behind(run);
        self.readers = if first { Trust::Behind(run) } else { Trust::Nobody };
    }

    /// The program that was to write the bytes has failed.
    pub fn mark_failed(&mut self) {
        self.may_fail = true;
    }

    /// What is known of the execution that writes the bytes. One that has failed is like one that may fail.
    pub fn definition(&self) -> Definition {
        if self.defined { Definition::Defined } else { Definition::Pending { may_fail: self.may_fail } }
    }

    /// Which programs may be donated the bytes once nobody wants them any more. What an unsure program reads fails with
    /// it, whoever writes it.
    pub fn trust(&self) -> Trust {
        if self.readers == Trust::Any && !self.definition().is_good() { Trust::Nobody } else { self.readers }
    }

    /// Whether a transfer or a query has used the bytes since they were written.
    pub fn is_transferred(&self) -> bool {
        self.transferred
    }

    /// Whether the bytes are written and good.
    pub fn is_defined(&self) -> bool {
        self.defined
    }

    /// Whether the bytes can be freed.
    pub fn is_free(&self) -> bool {
        self.life != Life::Live && self.users == 0 && self.references == 0
    }

    /// Why the bytes may not move; `None` if they may.
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
