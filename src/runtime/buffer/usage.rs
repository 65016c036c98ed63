//! What uses, references, frees and moves the bytes of one buffer.
//!
//! ```text
//!   users > 0              executions and transfers under way: the bytes may not move
//!   executions > 0         so many of the users are executions, which a GPU does one after another
//!   copies > 0             so many of the users are copies by pjrt-arena, which the engine does not know of: it must
//!                          not free the bytes
//!   references > 0         outsiders hold the address until they release it: the bytes may not move
//!   told                   the engine knows of them
//!   referring              the engine is being told of them, or of their end: other outsiders wait
//!   address known          an outsider holds the address for ever: likewise
//!   not defined            it is not known whether the bytes are good: likewise
//!   may fail               a program that may fail has yet to write the bytes
//!   unsure reader          a program that may fail reads them: see below
//!   last use               the last launch that read the bytes, and could have been donated them: see `last_use.rs`
//!   transferred            a transfer or a query used the bytes: the engine may note its end later than it tells of it
//!   moving                 a compaction moves the bytes; every other thread waits, as long as one compaction takes
//!   pending_donations > 0  so many launches under way are donated the bytes, and may write to them at once: no copy
//!                          begins
//!   borrows > 0            so many of the copies are programs on another client of the engine. They take long, and a
//!                          launch that waited for one could be what that program waits for: no launch is donated them
//!
//!   deleted or donated, no user, no reference: the bytes are free
//! ```
//!
//! A program fails once it was launched only by a custom call of its own, or by an argument that holds an error: such
//! a program is unsure. An array is sure if no unsure program reads it, and the one that writes it is none or has ended
//! well. A program that is donated what nobody wants any more ([`crate::runtime::device_memory::dropped`]) gets what is
//! sure; or what one unsure program alone reads, if it reads a result of that one itself, as in `x = step(x)`. Else the
//! engine would pass on an error that has nothing to do with it.
//!
//! A compaction holds no lock while it moves bytes: `moving` keeps other threads out. It waits for nothing, so a
//! thread that waits for it, a host callback included, waits as long as the copies take and no longer (engine
//! behaviour T9).
//!
//! A launch announces its donation before it waits for copies. So it waits for the copies that were under way, one
//! memcpy long, and those wait for nothing; nothing waits for a launch. A copy that is wanted meanwhile is left to
//! the engine, which orders it after the programs that it has launched.

// Said here because the models of loom compile this file from elsewhere.
#[path = "usage/last_use.rs"]
mod last_use;
#[path = "usage/state.rs"]
mod state;

use std::{
    thread,
    time::{Duration, Instant},
};

pub use last_use::{Undonated, always_dropped};
pub use state::{Definition, Life, Reader, State, Trust, User};

use crate::{
    memory::MoveBarrier,
    sync::{Condvar, Mutex, MutexGuard},
};

/// Longer than any thread has the lock of a state, even if it is not run meanwhile.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// See the module's documentation.
pub struct Usage<T> {
    state: Mutex<State<T>>,
    /// Notified when the bytes were moved, and when the last copy of them has ended.
    changed: Condvar,
}

impl<T> Usage<T> {
    /// The usage of a live buffer that is not defined yet.
    pub fn new(body: T) -> Self {
        Self { state: Mutex::new(State::new(body)), changed: Condvar::new() }
    }

    /// The state, locked. Waits while the bytes are being moved.
    pub fn lock(&self) -> MutexGuard<'_, State<T>> {
        let mut state = self.state.lock();
        while state.moving {
            self.changed.wait(&mut state);
        }
        state
    }

    /// In a child after fork: the state, locked, unless a thread of the parent's was moving the bytes, was
    /// lending them, or had the lock.
    pub fn lock_at_rest(&self) -> Option<MutexGuard<'_, State<T>>> {
        // Other threads of this process have it for a moment only; the parent's never give it back.
        let begun = Instant::now();
        let state = loop {
            match self.state.try_lock() {
                Some(state) => break state,
                None if begun.elapsed() > LOCK_WAIT => return None,
                None => thread::yield_now(),
            }
        };
        Some(state).filter(|state| !state.moving && !state.referring)
    }

    /// As [`Self::lock`], for an outsider that comes or goes: waits also while the engine is told of others. Its list
    /// of those who refer to a buffer has no lock of its own.
    pub fn lock_to_refer(&self) -> MutexGuard<'_, State<T>> {
        let mut state = self.state.lock();
        while state.moving || state.referring {
            self.changed.wait(&mut state);
        }
        state
    }

    /// Others may tell the engine again; the state, locked.
    pub fn end_referring(&self) -> MutexGuard<'_, State<T>> {
        let mut state = self.lock();
        state.referring = false;
        self.changed.notify_all();
        state
    }

    /// What became of the buffer, even while the bytes are being moved.
    pub fn life(&self) -> Life {
        self.state.lock().life()
    }

    /// As [`Self::lock`], for a launch that may write to the bytes: from here to [`State::end_donation`] no copy
    /// begins, and the copies that were under way have ended. `None` if the bytes are lent; then no donation has
    /// begun.
    pub fn lock_for_donation(&self) -> Option<MutexGuard<'_, State<T>>> {
        let mut state = self.lock();
        if state.borrows > 0 {
            return None;
        }
        state.pending_donations += 1;
        // The launch does not use the bytes yet: a compaction may move them in between.
        while state.moving || state.copies > 0 && state.life() == Life::Live {
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

    /// Looks at the body, even while the bytes are being moved.
    pub fn peek<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.state.lock().body)
    }

    /// As [`Self::peek`], if the bytes may move at this instant.
    pub fn peek_movable<R>(&self, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let state = self.state.lock();
        if state.move_barrier().is_some() { None } else { look(&state.body) }
    }

    /// Why the bytes may not move at this instant; waits for nothing. A buffer that is being moved may move.
    pub fn move_barrier(&self) -> Option<MoveBarrier> {
        self.state.lock().move_barrier()
    }

    /// Locks the bytes for a move, if they may move and `look` finds what it wants: from then on every other thread
    /// waits for [`Self::unlock_after_move`].
    pub fn lock_for_move<R>(&self, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let mut state = self.state.lock();
        if state.moving || state.move_barrier().is_some() {
            return None;
        }
        let found = look(&state.body)?;
        state.moving = true;
        Some(found)
    }

    /// Locks the bytes as for a move, if one user and no outsider uses them and `look` finds what it wants.
    pub fn lock_alone<R>(&self, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let mut state = self.lock();
        if state.users() != 1 || state.is_referenced() || state.referring {
            return None;
        }
        let found = look(&state.body)?;
        state.moving = true;
        Some(found)
    }

    /// Ends what [`Self::lock_for_move`] or [`Self::lock_alone`] began; `change` records where the bytes are now.
    pub fn unlock_after_move<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.state.lock();
        state.moving = false;
        // Who is woken waits for the lock then; even if `change` panics, nobody waits for ever.
        self.changed.notify_all();
        change(&mut state.body)
    }
}
