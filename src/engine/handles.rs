//! Owners of what the engine hands out.

use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::Arc,
};

use crate::{
    engine::{Engine, process},
    error::{Code, Error},
    sys,
};

/// An error of the engine, or our word for what it cannot say itself.
pub enum EngineError {
    /// An error object of the engine; we own it.
    Engine {
        /// Whose error it is.
        engine: &'static Engine,
        /// Never NULL.
        error: *mut sys::PJRT_Error,
    },
    /// It lacks the function, or threw an exception.
    Own(Error),
}

impl EngineError {
    /// `Err` if `error` is not NULL.
    ///
    /// # Safety
    /// `error` must be NULL or an error of `engine` that the caller owns.
    pub(crate) unsafe fn check(engine: &'static Engine, error: *mut sys::PJRT_Error) -> Result<(), Self> {
        if error.is_null() { Ok(()) } else { Err(Self::Engine { engine, error }) }
    }

    /// The engine has no such function.
    pub(super) fn missing(engine: &Engine, function: &str) -> Self {
        Self::Own(Error::unimplemented(format!(
            "the engine {} (PJRT C API 0.{}) has no function {function}",
            engine.path().display(),
            engine.minor()
        )))
    }

    /// The error's message, copied.
    pub fn message(&self) -> String {
        match self {
            Self::Own(error) => error.message.clone(),
            Self::Engine { engine, error } => {
                let mut args = sys::PJRT_Error_Message_Args { error: *error, ..Default::default() };
                args.struct_size = size_of_val(&args);
                if let Some(message) = engine.table().PJRT_Error_Message {
                    // SAFETY: the error is alive, the struct is of the newest size.
                    unsafe { message(&raw mut args) };
                }
                if args.message.is_null() {
                    return String::new();
                }
                // SAFETY: the engine's message has `message_size` bytes and lives as long as the error.
                let bytes = unsafe { slice::from_raw_parts(args.message.cast::<u8>(), args.message_size) };
                String::from_utf8_lossy(bytes).into_owned()
            }
        }
    }

    /// Whether it says that memory, or another bounded resource, is exhausted.
    pub fn is_exhausted(&self) -> bool {
        self.has(Code::ResourceExhausted)
    }

    /// Whether this is its code.
    pub fn has(&self, code: Code) -> bool {
        match self {
            Self::Own(error) => error.code == code,
            Self::Engine { engine, error } => {
                let args = sys::PJRT_Error_GetCode_Args { error: *error, ..Default::default() };
                // SAFETY: the error is alive.
                let answer = unsafe { engine.call(args) };
                answer.is_ok_and(|args| args.code.0 == code as u32)
            }
        }
    }

    /// Hands the error object over to whoever will destroy it.
    ///
    /// # Errors
    /// Our own error.
    pub fn into_raw(self) -> Result<*mut sys::PJRT_Error, Error> {
        let this = std::mem::ManuallyDrop::new(self);
        match &*this {
            Self::Engine { error, .. } => Ok(*error),
            Self::Own(error) => Err(error.clone()),
        }
    }
}

impl Drop for EngineError {
    fn drop(&mut self) {
        if let Self::Engine { engine, error } = self {
            let mut args = sys::PJRT_Error_Destroy_Args { error: *error, ..Default::default() };
            args.struct_size = size_of_val(&args);
            if let Some(destroy) = engine.table().PJRT_Error_Destroy {
                // SAFETY: we own the error, and this is the only time that it is destroyed.
                unsafe { destroy(&raw mut args) };
            }
        }
    }
}

impl fmt::Debug for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        match &error {
            EngineError::Own(own) => own.clone(),
            EngineError::Engine { .. } => Error::new(Code::Internal, error.message()),
        }
    }
}

/// Destroys an error that the engine gave to a callback; NULL is fine.
fn discard(error: *mut sys::PJRT_Error) {
    if let Some((engine, _)) = process::loaded() {
        // SAFETY: the error is NULL, or the engine's and the callback's to destroy.
        drop(unsafe { EngineError::check(engine, error) });
    }
}

/// What is told when an event has happened.
pub trait Completion: Send + Sync + 'static {
    /// The event has happened, and without an error if it `succeeded`. Called once, on any thread: it must not block, nor destroy
    /// buffers of the engine (trap T3: an engine calls back while it still holds what the destruction waits for).
    fn complete(&self, succeeded: bool);
}

/// Called by the engine when an event has happened. A panic does not unwind into the engine's thread.
///
/// # Safety
/// `share` must be one share of an `Arc<T>`, which this takes back; `error` NULL, or the engine's and the callback's to
/// destroy.
unsafe extern "C" fn completed<T: Completion>(error: *mut sys::PJRT_Error, share: *mut c_void) {
    // SAFETY: the pointer is the share that `notify` gave away, and nobody else takes it back.
    let completion = unsafe { Arc::from_raw(share.cast::<T>()) };
    let succeeded = error.is_null();
    discard(error);
    if catch_unwind(AssertUnwindSafe(|| completion.complete(succeeded))).is_err() {
        log::error!("a completion callback of pjrt-arena panicked; this is a bug");
    }
}

/// An event of the engine that we own.
pub struct EngineEvent {
    engine: &'static Engine,
    event: *mut sys::PJRT_Event,
}

// SAFETY: events may be used and destroyed on any thread.
unsafe impl Send for EngineEvent {}
// SAFETY: as above, by several threads at once too.
unsafe impl Sync for EngineEvent {}

impl EngineEvent {
    /// # Safety
    /// `event` must be a live event of `engine` that nobody else destroys.
    pub(super) unsafe fn new(engine: &'static Engine, event: *mut sys::PJRT_Event) -> Self {
        Self { engine, event }
    }

    /// Whether the event has happened, with or without an error.
    pub fn is_ready(&self) -> bool {
        // SAFETY: the event is alive.
        unsafe {
            self.engine
                .call(sys::PJRT_Event_IsReady_Args { event: self.event, ..Default::default() })
                .is_ok_and(|a| a.is_ready)
        }
    }

    /// Blocks until the event has happened.
    ///
    /// # Errors
    /// The error that the event carries.
    pub fn wait(&self) -> Result<(), EngineError> {
        // SAFETY: the event is alive.
        unsafe { self.engine.call(sys::PJRT_Event_Await_Args { event: self.event, ..Default::default() }) }.map(drop)
    }

    /// Tells `completion` once the event has happened: now, on this thread, if it has, else later on a thread of the engine.
    /// The event itself may be destroyed before that.
    pub fn notify<T: Completion>(&self, completion: Arc<T>) {
        let share = Arc::into_raw(completion).cast_mut().cast::<c_void>();
        // SAFETY: the event is alive. The engine calls back once, with the share that is given here.
        let registered = unsafe {
            self.engine.call(sys::PJRT_Event_OnReady_Args {
                event: self.event,
                callback: Some(completed::<T>),
                user_arg: share,
                ..Default::default()
            })
        };
        if registered.is_err() {
            // A refused registration never calls back.
            drop(self.wait());
            // SAFETY: the share was not given to the engine after all; there is no error to give.
            unsafe { completed::<T>(ptr::null_mut(), share) };
        }
    }

    /// Hands the event over to whoever will destroy it.
    pub fn into_raw(self) -> *mut sys::PJRT_Event {
        std::mem::ManuallyDrop::new(self).event
    }
}

impl Drop for EngineEvent {
    fn drop(&mut self) {
        // SAFETY: we own the event, and this is the only time that it is destroyed.
        drop(unsafe { self.engine.call(sys::PJRT_Event_Destroy_Args { event: self.event, ..Default::default() }) });
    }
}

/// A handle of the engine with nothing of ours around it, that may travel between threads.
#[repr(transparent)]
pub struct Raw<T>(pub *mut T);

// Not derived: the derive would ask the same of `T`, which is only a name.
impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

// SAFETY: PJRT handles may be used from any thread; `Raw` never dereferences one.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// The absent handle.
    pub const NULL: Self = Self(ptr::null_mut());

    /// Whether there is no handle.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}
