//! Milestones: points in a device's work, or things that the host says, with how they turned out.
//!
//! ```text
//!  pending --recorded--> the mark stands in a stream: other streams can wait for it
//!     |                        |
//!     +------- finished <------+   the host may know; watchers are called
//! ```
//! A `PJRT_Event` is a share of one, and so is what a buffer knows about when its contents are there.
//!
//! The driver's race detector believes that the host has seen something only when the host asks it. So the mark is
//! asked where the outcome is handed to the caller, and not before: a caller that never looks has not synchronised.

use std::{ffi::c_void, mem, sync::Arc};

use cudarc::driver::sys::{CUevent, CUstream};
use parking_lot::{Condvar, Mutex};

use crate::{
    cpu::Raw,
    driver::Context,
    entry::{Entry, required, text},
    error::{Error, Result},
    sys,
};

/// A recorded event of the driver.
pub struct Mark {
    context: Context,
    event: CUevent,
    stream: CUstream,
}

// SAFETY: the driver's handles may be used on any thread.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// Takes ownership of an event that was recorded in `stream`.
    pub fn new(context: Context, event: CUevent, stream: CUstream) -> Self {
        Self { context, event, stream }
    }

    /// The event.
    pub fn event(&self) -> CUevent {
        self.event
    }

    /// The stream that it was recorded in.
    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// Tells the driver that the host has seen that the event happened.
    fn seen(&self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the event is alive. The answer is known.
            unsafe { (self.context.driver.cuEventQuery)(self.event) };
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the event is ours, and this is its end. What something waits for lives on in the driver.
            unsafe { (self.context.driver.cuEventDestroy_v2)(self.event) };
        }
    }
}

type Watcher = Box<dyn FnOnce(&Milestone) + Send>;

#[derive(Default)]
struct State {
    mark: Option<Arc<Mark>>,
    recorded: bool,
    finished: bool,
    failure: Option<Error>,
    /// Called once it is recorded.
    followers: Vec<Watcher>,
    /// Called once it is finished.
    watchers: Vec<Watcher>,
}

/// See the module.
#[derive(Default)]
pub struct Milestone {
    state: Mutex<State>,
    changed: Condvar,
}

impl Milestone {
    /// One that nothing is known of yet.
    pub fn pending() -> Arc<Self> {
        Arc::default()
    }

    /// One of work that has yet to run: should it never do so, that is an error.
    pub fn of_work() -> Arc<Self> {
        let milestone = Self::pending();
        milestone.state.lock().failure = Some(Error::internal("the device did not run the work"));
        milestone
    }

    /// One that has happened.
    pub fn done(outcome: Result) -> Arc<Self> {
        let milestone = Self::pending();
        milestone.finish_with(outcome);
        milestone
    }

    /// Says how the work turned out; called by the work itself, before it counts as finished. Where it was given up
    /// before, that is how it ended.
    pub fn ran(&self, outcome: Result) {
        self.state.lock().ran(outcome);
    }

    /// The work stands in a stream now.
    pub fn record(&self, mark: Arc<Mark>) {
        let followers = {
            let mut state = self.state.lock();
            (state.mark, state.recorded) = (Some(mark), true);
            self.changed.notify_all();
            mem::take(&mut state.followers)
        };
        followers.into_iter().for_each(|follower| follower(self));
    }

    /// It happened.
    pub fn finish(&self) {
        self.end(None);
    }

    /// It happened, like this.
    pub fn finish_with(&self, outcome: Result) {
        self.end(Some(outcome));
    }

    /// In one step, so that work which is given up while it runs does not say how it ended in between.
    fn end(&self, outcome: Option<Result>) {
        let (followers, watchers) = {
            let mut state = self.state.lock();
            if let Some(outcome) = outcome {
                state.ran(outcome);
            }
            (state.recorded, state.finished) = (true, true);
            self.changed.notify_all();
            (mem::take(&mut state.followers), mem::take(&mut state.watchers))
        };
        followers.into_iter().chain(watchers).for_each(|watcher| watcher(self));
    }

    /// The failure, if the work has run and failed.
    pub fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Blocks until a stream can wait for it, and gives what to wait for; `None` when it needs no waiting. As in XLA,
    /// whose launches block for events that are not recorded yet.
    pub fn recorded(&self) -> Option<Arc<Mark>> {
        let mut state = self.state.lock();
        while !state.recorded {
            self.changed.wait(&mut state);
        }
        state.mark.clone()
    }

    /// Whether it happened; then the host has seen it.
    pub fn is_finished(&self) -> bool {
        let state = self.state.lock();
        if state.finished {
            state.seen();
        }
        state.finished
    }

    /// Whether it happened, for our own bookkeeping: the host has seen nothing by it.
    pub fn is_over(&self) -> bool {
        self.state.lock().finished
    }

    /// Blocks until it happened, and gives the outcome.
    ///
    /// # Errors
    /// That of the work.
    pub fn wait(&self) -> Result {
        let mut state = self.state.lock();
        while !state.finished {
            self.changed.wait(&mut state);
        }
        state.outcome()
    }

    /// Has `watcher` called once it happened: now, on this thread, if it has.
    pub fn when_finished(&self, watcher: impl FnOnce(&Milestone) + Send + 'static) {
        let mut state = self.state.lock();
        if !state.finished {
            state.watchers.push(Box::new(watcher));
            return;
        }
        drop(state);
        watcher(self);
    }

    /// Has `follower` called once a stream can wait for it: now, on this thread, if one can.
    pub fn when_recorded(&self, follower: impl FnOnce(&Milestone) + Send + 'static) {
        let mut state = self.state.lock();
        if !state.recorded {
            state.followers.push(Box::new(follower));
            return;
        }
        drop(state);
        follower(self);
    }

    /// The outcome, for the host to see; for milestones that happened.
    ///
    /// # Errors
    /// That of the work.
    pub fn outcome(&self) -> Result {
        self.state.lock().outcome()
    }

    /// A handle for the C API, which ends it with `PJRT_Event_Destroy`.
    pub fn into_raw(self: Arc<Self>) -> *mut sys::PJRT_Event {
        Arc::into_raw(self).cast_mut().cast()
    }
}

impl State {
    fn ran(&mut self, outcome: Result) {
        if !self.finished {
            self.failure = outcome.err();
        }
    }

    fn seen(&self) {
        if let Some(mark) = &self.mark {
            mark.seen();
        }
    }

    fn outcome(&self) -> Result {
        self.seen();
        self.failure.clone().map_or(Ok(()), Err)
    }
}

/// The milestone behind a handle.
///
/// # Errors
/// INVALID_ARGUMENT for NULL.
///
/// # Safety
/// `event` must be NULL or a live event of this engine.
unsafe fn borrow<'a>(event: *mut sys::PJRT_Event, function: &str) -> Result<&'a Milestone> {
    let event = required(event, function, "event")?;
    // SAFETY: every event that leaves this library is a share of a milestone.
    Ok(unsafe { &*event.cast::<Milestone>() })
}

impl Entry for sys::PJRT_Event_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        if !self.event.is_null() {
            // SAFETY: the handle is a share that the caller gives up.
            drop(unsafe { Arc::from_raw(self.event.cast::<Milestone>()) });
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Event_IsReady_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        self.is_ready = unsafe { borrow(self.event, "PJRT_Event_IsReady")? }.is_finished();
        Ok(())
    }
}

impl Entry for sys::PJRT_Event_Error_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let milestone = unsafe { borrow(self.event, "PJRT_Event_Error")? };
        if !milestone.is_finished() {
            // XLA ends the process here.
            return Err(Error::new(
                sys::PJRT_Error_Code_FAILED_PRECONDITION,
                "PJRT_Event_Error is only for events that are ready",
            ));
        }
        milestone.outcome()
    }
}

impl Entry for sys::PJRT_Event_Await_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        unsafe { borrow(self.event, "PJRT_Event_Await")? }.wait()
    }
}

impl Entry for sys::PJRT_Event_OnReady_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let milestone = unsafe { borrow(self.event, "PJRT_Event_OnReady")? };
        let callback = self.callback.ok_or_else(|| Error::invalid("PJRT_Event_OnReady: callback is NULL"))?;
        let argument = Raw::<c_void>(self.user_arg);
        milestone.when_finished(move |milestone| {
            let argument = argument;
            let error = milestone.outcome().map_or_else(Error::into_raw, |()| std::ptr::null_mut());
            // SAFETY: the caller's promise: it is called once, with an error of its own, and must not unwind.
            unsafe { callback(error, argument.0) };
        });
        Ok(())
    }
}

impl Entry for sys::PJRT_Event_Create_Args {
    unsafe fn run(&mut self) -> Result {
        self.event = Milestone::pending().into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Event_Set_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive, and the text as long as it says.
        let (milestone, message) =
            unsafe { (borrow(self.event, "PJRT_Event_Set")?, text(self.error_message, self.error_message_size)) };
        let outcome = match self.error_code {
            sys::PJRT_Error_Code_OK => Ok(()),
            code => Err(Error::new(code, message)),
        };
        milestone.finish_with(outcome);
        Ok(())
    }
}
