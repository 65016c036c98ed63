//! All that the driver knows, under one lock, and the frame around each of its functions.
//!
//! One lock is enough here: it is never held while an operation runs, and a host thread that waits lets go of it.

use std::{
    cell::Cell,
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::LazyLock,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    capture::Capture,
    clock::{Clock, Line},
    control::{Books, Settings},
    device::Gpu,
    event::Event,
    memory::{Span, Stale},
    race::Races,
    status::{self, Answer, Failure, Status, misuse},
    stream::Stream,
    vmm::Physical,
};

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::default()));

/// Told whenever an operation is done, or a stream has ended.
pub static CHANGED: Condvar = Condvar::new();

/// The state, locked.
pub type Driver = MutexGuard<'static, State>;

/// See the module's documentation.
#[derive(Default)]
pub struct State {
    /// What the environment and tests have set.
    pub settings: Settings,
    /// Violations, counts of calls, and calls that fail by order.
    pub books: Books,
    /// Whether `cuInit` was called.
    pub started: bool,
    /// Operations that run at this moment, where the host may not touch the GPUs' memory otherwise.
    pub at_work: usize,
    /// The GPUs, by ordinal.
    pub gpus: Vec<Gpu>,
    /// What lies at which address: allocations, pinned memory, reservations, the pools' segments.
    pub spans: BTreeMap<u64, Span>,
    /// Addresses that nobody may use any more, but that an operation which runs now does.
    pub stale: Vec<Stale>,
    /// What `cuMemCreate` gave, by handle.
    pub physical: BTreeMap<u64, Physical>,
    /// The streams, by number.
    pub streams: BTreeMap<Line, Stream>,
    /// Those that are being captured.
    pub captures: BTreeMap<Line, Capture>,
    /// The events, by handle.
    pub events: BTreeMap<u64, Event>,
    /// What the host has seen.
    pub host: Clock,
    /// What a call has waited for that synchronises: to pools nothing else has ended.
    pub waited_for: Clock,
    /// Who used which bytes.
    pub races: Races,
    last: u64,
}

impl State {
    /// A number that nothing had before, so that a stale handle is never mistaken for another.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The state after the end of all work: as at first, but numbers go on.
    pub fn cleared(&self) -> Self {
        Self { last: self.last, ..Self::default() }
    }
}

/// Locks the state.
pub fn lock() -> Driver {
    STATE.lock()
}

/// Locks the state unless another thread, or this one, has it.
pub fn try_lock() -> Option<Driver> {
    STATE.try_lock()
}

thread_local! {
    /// Whether a function given to `cuLaunchHostFunc` runs on this thread.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
    /// What came before the kernel that runs on this thread, until it calls the driver.
    static BEFORE_KERNEL: Cell<Option<Clock>> = const { Cell::new(None) };
}

/// Runs `function` as a kernel that comes after what `before` has seen. If it calls the driver, the host has seen that
/// too: such a kernel stands for a program that works on the host as well.
pub fn as_kernel(before: Clock, function: impl FnOnce()) {
    BEFORE_KERNEL.with(|cell| cell.set(Some(before)));
    function();
    BEFORE_KERNEL.with(Cell::take);
}

/// Runs `function` as one that may not call the driver.
pub fn as_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.with(|inside| inside.set(true));
    function();
    IN_HOST_FUNCTION.with(|inside| inside.set(false));
}

/// The frame of a function that needs `cuInit`.
pub fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    call_to_hip(name, |driver| {
        if !driver.started {
            return Err(misuse(status::NOT_INITIALIZED, "called before cuInit"));
        }
        body(driver)
    })
}

/// The frame of a function that starts the driver where nobody has.
pub fn call_to_hip(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    framed(name, |driver| {
        if IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or_default() {
            return Err(misuse(status::NOT_PERMITTED, "called inside of a function that cuLaunchHostFunc runs"));
        }
        if let Some(before) = BEFORE_KERNEL.try_with(Cell::take).unwrap_or_default() {
            driver.observe(&before);
        }
        driver.refuse_while_capturing(name)?;
        body(driver)
    })
}

/// The frame of any function: counts, fails by order, notes violations, and lets no panic out.
pub fn framed(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    let framed = AssertUnwindSafe(|| {
        let mut driver = lock();
        let answer = match driver.books.begin(name) {
            Some(code) => Err(Failure::from(code)),
            None => body(&mut driver),
        };
        let Err(Failure { code, violation }) = answer else { return status::SUCCESS };
        if let Some(sentence) = violation {
            driver.violation(format!("{name}: {sentence}"));
        }
        code
    });
    panic::catch_unwind(framed).unwrap_or(status::UNKNOWN)
}
