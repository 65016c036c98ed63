//! Events: await, ask, register, destroy.

use std::{
    ffi::c_void,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use pjrt_arena::engine::order;

use crate::{
    Plugin, call,
    raw::{Failure, Result},
    sys,
};

/// How long a test waits for something that must happen before it calls it a hang.
pub const HANG: Duration = Duration::from_secs(300);

/// An owned `PJRT_Event`.
pub struct Event {
    plugin: &'static Plugin,
    raw: *mut sys::PJRT_Event,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Takes ownership; `None` for null.
    pub fn own(plugin: &'static Plugin, raw: *mut sys::PJRT_Event) -> Option<Self> {
        (!raw.is_null()).then_some(Self { plugin, raw })
    }

    /// Blocks until ready.
    ///
    /// # Errors
    /// The event's error.
    pub fn wait(&self) -> Result<()> {
        call!(self.plugin, PJRT_Event_Await { event: self.raw }).map(drop)
    }

    /// Whether the event has happened.
    pub fn is_ready(&self) -> bool {
        call!(self.plugin, PJRT_Event_IsReady { event: self.raw }).expect("PJRT_Event_IsReady").is_ready
    }

    /// The event's error; the event must be ready.
    ///
    /// # Errors
    /// The event's error.
    pub fn error(&self) -> Result<()> {
        call!(self.plugin, PJRT_Event_Error { event: self.raw }).map(drop)
    }

    /// Registers a callback; the signal is set to what the callback was given.
    pub fn on_ready(&self) -> Signal<Result<()>> {
        struct Registration {
            plugin: &'static Plugin,
            signal: Signal<Result<()>>,
        }
        extern "C" fn ready(error: *mut sys::PJRT_Error, user: *mut c_void) {
            order::taken(user);
            // SAFETY: `user` is the box below, and an event calls back exactly once.
            let registration = unsafe { Box::from_raw(user.cast::<Registration>()) };
            let outcome: Result<(), Failure> = registration.plugin.check(error);
            registration.signal.set(outcome);
        }
        let signal = Signal::default();
        let registration = Box::into_raw(Box::new(Registration { plugin: self.plugin, signal: signal.clone() }));
        order::given(registration);
        call!(
            self.plugin,
            PJRT_Event_OnReady { event: self.raw, callback: Some(ready), user_arg: registration.cast() }
        )
        .expect("PJRT_Event_OnReady");
        signal
    }

    /// The handle.
    pub fn raw(&self) -> *mut sys::PJRT_Event {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        call!(self.plugin, PJRT_Event_Destroy { event: self.raw }).expect("PJRT_Event_Destroy");
    }
}

/// A value that another thread delivers once.
pub struct Signal<T>(Arc<(Mutex<Option<T>>, Condvar)>);

impl<T> Clone for Signal<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Signal<T> {
    fn default() -> Self {
        Self(Arc::new((Mutex::new(None), Condvar::new())))
    }
}

impl<T: Clone> Signal<T> {
    /// Delivers the value.
    ///
    /// # Panics
    /// When it was delivered before: what is promised once must not happen twice.
    pub fn set(&self, value: T) {
        let before = self.0.0.lock().expect("no holder panics").replace(value);
        assert!(before.is_none(), "delivered twice");
        self.0.1.notify_all();
    }

    /// The value, if it was delivered.
    pub fn get(&self) -> Option<T> {
        self.0.0.lock().expect("no holder panics").clone()
    }

    /// Waits for the value.
    ///
    /// # Panics
    /// After [`HANG`].
    #[track_caller]
    pub fn wait(&self) -> T {
        let start = Instant::now();
        let mut value = self.0.0.lock().expect("no holder panics");
        while value.is_none() {
            assert!(start.elapsed() < HANG, "nothing arrived within {HANG:?}");
            value = self.0.1.wait_timeout(value, Duration::from_secs(1)).expect("no holder panics").0;
        }
        value.clone().expect("just seen")
    }
}

/// Runs `f` on another thread and gives a signal of its result, so that a hang is a failed test and not a stuck one.
pub fn elsewhere<T: Clone + Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Signal<T> {
    let signal = Signal::default();
    let done = signal.clone();
    std::thread::spawn(move || done.set(f()));
    signal
}
