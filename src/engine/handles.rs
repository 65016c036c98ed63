//! Owners of what the engine hands out.

use std::{
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    engine::{Engine, EngineError, live::Live, order},
    error::Error,
    sys,
};

/// What is told when an event has happened.
pub trait Completion: Send + Sync + 'static {
    /// The engine whose event it is.
    fn engine(&self) -> &'static Engine;

    /// The event has happened, and without an error if it `succeeded`. Called once, on any thread: it must not block,
    /// nor destroy buffers of the engine (engine behaviour T3: an engine calls back while it still holds what the
    /// destruction waits for).
    fn complete(&self, succeeded: bool);
}

/// Called by the engine when an event has happened. A panic does not unwind into the engine's thread.
///
/// # Safety
/// `share` must be one share of an `Arc<T>`, which this takes back; `error` NULL, or the engine's and the callback's to
/// destroy.
unsafe extern "C" fn completed<T: Completion>(error: *mut sys::PJRT_Error, share: *mut c_void) {
    order::taken(share);
    order::taken(&raw const order::CALLED);
    // SAFETY: the pointer is the share that `notify` gave away, and nobody else takes it back.
    let completion = unsafe { Arc::from_raw(share.cast::<T>()) };
    let succeeded = error.is_null();
    // SAFETY: the error is NULL, or the engine's and the callback's to destroy.
    drop(unsafe { EngineError::check(completion.engine(), error) });
    tell(&*completion, succeeded);
}

/// Tells of the end. A panic goes no further.
fn tell(completion: &impl Completion, succeeded: bool) {
    if catch_unwind(AssertUnwindSafe(|| completion.complete(succeeded))).is_err() {
        log::error!("a completion callback of pjrt-arena panicked; this is a bug");
    }
}

/// The event that has happened without an error: one for all who ask for such a one. The engine does not know it.
static HAPPENED: u64 = 0;

/// Whether an event is the one that has happened, of which the engine must not be asked.
#[inline]
pub fn has_happened(event: *const sys::PJRT_Event) -> bool {
    std::ptr::eq(event.cast(), &raw const HAPPENED)
}

/// An event that we own: one of the engine, or that which has happened.
pub struct EngineEvent {
    engine: &'static Engine,
    /// Alive until this is dropped, however long that takes; so it does not leave this file. `None` has happened.
    event: Option<Live<'static, sys::PJRT_Event>>,
}

impl EngineEvent {
    /// Owns an event that the engine handed to us; `None` for NULL.
    ///
    /// # Safety
    /// `event` must be NULL, or a live event of `engine` that nobody else destroys.
    pub unsafe fn own(engine: &'static Engine, event: *mut sys::PJRT_Event) -> Option<Self> {
        // SAFETY: an event that is not NULL is alive, and nobody else destroys it, as this function asks.
        (!event.is_null()).then(|| Self { engine, event: Some(unsafe { Live::new(engine, event) }) })
    }

    /// The event that has happened, without an error.
    pub fn happened(engine: &'static Engine) -> Self {
        Self { engine, event: None }
    }

    /// A new event that has happened with this error.
    ///
    /// # Errors
    /// The engine's; UNIMPLEMENTED before 0.89.
    pub fn failed(engine: &'static Engine, error: &Error) -> Result<Self, EngineError> {
        // SAFETY: the first struct has only an out field. The event is new and nobody else's; the text outlives the
        // call.
        unsafe {
            let made = engine.call(sys::PJRT_Event_Create_Args::default())?.event;
            let event = Self { engine, event: Some(Live::new(engine, made)) };
            engine.call(sys::PJRT_Event_Set_Args {
                event: made,
                error_code: sys::PJRT_Error_Code(error.code as u32),
                error_message: error.message.as_ptr().cast(),
                error_message_size: error.message.len(),
                ..Default::default()
            })?;
            Ok(event)
        }
    }

    /// The engine whose event it is.
    pub fn engine(&self) -> &'static Engine {
        self.engine
    }

    /// Whether the event has happened, with or without an error.
    pub fn is_ready(&self) -> bool {
        self.event.is_none_or(|event| event.ask::<sys::PJRT_Event_IsReady_Args>().is_ok_and(|answer| answer.is_ready))
    }

    /// Blocks until the event has happened.
    ///
    /// # Errors
    /// The error that the event carries.
    pub fn wait(&self) -> Result<(), EngineError> {
        self.event.map_or(Ok(()), |event| event.ask::<sys::PJRT_Event_Await_Args>().map(drop))
    }

    /// Tells `completion` once the event has happened: now, on this thread, if it has, else later on a thread of the
    /// engine. The event itself may be destroyed before that.
    pub fn notify<T: Completion>(&self, completion: Arc<T>) {
        let Some(event) = self.event else { return tell(&*completion, true) };
        let share = Arc::into_raw(completion).cast_mut().cast::<c_void>();
        order::given(share);
        // SAFETY: the event is alive. The engine calls back once, with the share that is given here.
        let registered = unsafe {
            self.engine.call(sys::PJRT_Event_OnReady_Args {
                event: event.raw(),
                callback: Some(completed::<T>),
                user_arg: share,
                ..Default::default()
            })
        };
        if registered.is_err() {
            // A refused registration never calls back.
            let succeeded = self.wait().is_ok();
            // SAFETY: the share was not given to the engine after all.
            tell(&*unsafe { Arc::from_raw(share.cast::<T>()) }, succeeded);
        }
    }

    /// Hands the event over to the caller, who destroys it.
    pub fn into_raw(self) -> *mut sys::PJRT_Event {
        match std::mem::ManuallyDrop::new(self).event {
            Some(event) => event.raw(),
            None => (&raw const HAPPENED).cast_mut().cast(),
        }
    }
}

impl Drop for EngineEvent {
    fn drop(&mut self) {
        if let Some(event) = self.event {
            let args = sys::PJRT_Event_Destroy_Args { event: event.raw(), ..Default::default() };
            // SAFETY: we own the event, and this is the only time that it is destroyed.
            drop(unsafe { self.engine.call(args) });
        }
    }
}
