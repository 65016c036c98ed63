//! Whether a thread runs the handler of a custom call.
//!
//! A program waits for the programs that its handler runs. So a program that such a thread runs gets a nested client
//! of the engine, where it queues behind no other program (`runtime/execute/nested.rs`).

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

thread_local! {
    /// How many handlers of custom calls this thread runs, one inside another.
    static HANDLERS: Cell<usize> = const { Cell::new(0) };
}

/// How many programs are under way that threads of handlers run, of all clients: a callback into Python does not say
/// whose program it is part of. So while a handler's thread runs a program of one client, what callbacks of another
/// client run gets nested clients, too: as many as run at the same time, which are used again.
static PROGRAMS: AtomicUsize = AtomicUsize::new(0);

/// Whether this thread runs a handler of a custom call.
pub fn is_in_handler() -> bool {
    HANDLERS.get() > 0
}

/// This thread runs a handler of a custom call, until this is dropped.
pub struct InHandler(());

impl InHandler {
    /// The handler begins.
    pub fn enter() -> Self {
        HANDLERS.set(HANDLERS.get() + 1);
        Self(())
    }

    /// A callback into Python begins, which may be one of a program that a handler's thread runs.
    pub fn enter_callback() -> Option<Self> {
        (PROGRAMS.load(Ordering::SeqCst) > 0).then(Self::enter)
    }
}

impl Drop for InHandler {
    fn drop(&mut self) {
        HANDLERS.set(HANDLERS.get() - 1);
    }
}

/// A program that the thread of a handler runs, until this is dropped.
pub struct ProgramOfHandler(());

impl ProgramOfHandler {
    /// The program begins; `None` if no handler's thread runs it.
    pub fn begin() -> Option<Self> {
        is_in_handler().then(|| {
            PROGRAMS.fetch_add(1, Ordering::SeqCst);
            Self(())
        })
    }
}

impl Drop for ProgramOfHandler {
    fn drop(&mut self) {
        PROGRAMS.fetch_sub(1, Ordering::SeqCst);
    }
}
