//! What is armed, and the calls of each function.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::table::SLOTS;

/// What is done at the call that a test names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It fails.
    Fail,
    /// It comes later.
    Delay,
    /// The event that it gives has happened with an error.
    Event,
    /// It throws a C++ exception before the engine is asked.
    Throw,
    /// An execution fails when all devices have begun it: none of its results is given.
    Late,
    /// It throws a C++ exception after the engine has done it; what the engine gave is destroyed.
    ThrowAfter,
    /// It waits until the test lets it go.
    Hold,
}

impl Kind {
    /// The kind with this number, by which tests name it.
    pub fn of(number: u32) -> Option<Self> {
        let all = [Self::Fail, Self::Delay, Self::Event, Self::Throw, Self::Late, Self::ThrowAfter, Self::Hold];
        all.get(number as usize).copied()
    }
}

#[derive(Clone, Copy)]
struct Armed {
    slot: usize,
    left: u64,
    kind: Kind,
}

static CALLS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];
static ARMED: Mutex<Option<Armed>> = Mutex::new(None);
/// Whether something is armed, so that calls take no lock otherwise.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static FIRED: AtomicBool = AtomicBool::new(false);

/// Whether a call is held.
static HELD: Mutex<bool> = Mutex::new(false);
static HELD_CHANGED: Condvar = Condvar::new();

/// Holds the calling thread until [`let_go`].
pub fn hold() {
    let mut held = HELD.lock();
    *held = true;
    while *held {
        HELD_CHANGED.wait(&mut held);
    }
}

/// Whether a call is held.
pub fn is_held() -> bool {
    *HELD.lock()
}

/// Lets the call go that is held.
pub fn let_go() {
    *HELD.lock() = false;
    HELD_CHANGED.notify_all();
}

/// Arms a fault at the `nth` call of the function from now on.
pub fn arm(slot: usize, nth: u64, kind: Kind) {
    FIRED.store(false, Ordering::SeqCst);
    *ARMED.lock() = Some(Armed { slot, left: nth, kind });
    IS_ARMED.store(true, Ordering::SeqCst);
}

/// Takes it back; gives whether it happened.
pub fn disarm() -> bool {
    IS_ARMED.store(false, Ordering::SeqCst);
    *ARMED.lock() = None;
    FIRED.load(Ordering::SeqCst)
}

/// Calls of the function so far.
pub fn calls(slot: usize) -> u64 {
    CALLS.get(slot).map_or(0, |calls| calls.load(Ordering::SeqCst))
}

/// Counts a call of the function; what is to be done at this one.
pub fn next(slot: usize) -> Option<Kind> {
    CALLS[slot].fetch_add(1, Ordering::SeqCst);
    if !IS_ARMED.load(Ordering::SeqCst) {
        return None;
    }
    let mut armed = ARMED.lock();
    let this = armed.as_mut().filter(|armed| armed.slot == slot)?;
    this.left = this.left.checked_sub(1)?;
    if this.left > 0 {
        return None;
    }
    let kind = this.kind;
    *armed = None;
    FIRED.store(true, Ordering::SeqCst);
    Some(kind)
}
