//! The profiler extension: a trace of JAX's profiler then shows what memory did. An engine that has one keeps it, unless
//! JAX takes that by itself.
//!
//! ```text
//!  jax.profiler.start_trace   create, start          TIMELINE takes events
//!  jax.profiler.stop_trace    stop, collect_data     the events as an XSpace, which the caller adds to its own
//!                             destroy
//! ```
//!
//! Callers do not set `struct_size` (XLA, `plugin_tracer.cc`), so it is ignored. Some ask for the size and then pass
//! a buffer, newer ones read the profiler's buffer, which lives as long as the profiler: both are served.

use std::{
    mem::size_of,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    api::{
        call::Call,
        entry::padded,
        owned::{delete, owned},
    },
    engine::failure::panicked,
    error::{Code, Error, Result},
    report::timeline::TIMELINE,
    sys,
};

/// What a `PLUGIN_Profiler` handle points to.
#[derive(Default)]
struct Profiler {
    records: bool,
    /// The recording that was stopped last, as an `XSpace`.
    data: Vec<u8>,
}

impl Profiler {
    fn start(&mut self) -> Result<()> {
        TIMELINE.begin()?;
        self.records = true;
        Ok(())
    }

    fn stop(&mut self) {
        if std::mem::take(&mut self.records) {
            self.data = TIMELINE.end().map(|recording| recording.encode()).unwrap_or_default();
        }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The extension, with `next` behind it in the chain. It lives until the process ends.
pub fn extension(next: *mut sys::PJRT_Extension_Base) -> *mut sys::PJRT_Extension_Base {
    let api = sys::PLUGIN_Profiler_Api {
        struct_size: size_of::<sys::PLUGIN_Profiler_Api>(),
        priv_: ptr::null_mut(),
        error_destroy: Some(error_destroy),
        error_message: Some(error_message),
        error_get_code: Some(exported::<ErrorGetCode>),
        create: Some(exported::<Create>),
        destroy: Some(destroy),
        start: Some(exported::<Start>),
        stop: Some(exported::<Stop>),
        collect_data: Some(exported::<CollectData>),
    };
    let base = sys::PJRT_Extension_Base {
        struct_size: size_of::<sys::PJRT_Profiler_Extension>(),
        type_: sys::PJRT_Extension_Type_Profiler,
        next,
    };
    let profiler_api = Box::leak(Box::new(api));
    padded(sys::PJRT_Profiler_Extension { base, profiler_api, traceme_context_id: 0 }).cast()
}

macro_rules! handles {
    ($($handle:ident: $of:ty { $($args:ident)* })*) => {$($(
        impl<'a> Call<'a, sys::$args> {
            #[doc = concat!("What `", stringify!($handle), "` stands for, if it is not NULL.")]
            fn $handle(&self) -> Option<&'a $of> {
                // SAFETY: the handle is NULL or alive during the call, as `Call::new` asks, and of `owned`; `destroy`
                // and `error_destroy`, which end it, make no call of their struct.
                unsafe { self.$handle.cast::<$of>().as_ref() }
            }
        }
    )*)*};
}

handles! {
    profiler: Mutex<Profiler> { PLUGIN_Profiler_Args PLUGIN_Profiler_CollectData_Args }
    error: Error { PLUGIN_Profiler_Error_Message_Args PLUGIN_Profiler_Error_GetCode_Args }
}

/// The profiler, or an error that it is NULL.
fn required(profiler: Option<&Mutex<Profiler>>) -> Result<MutexGuard<'_, Profiler>> {
    profiler.map(Mutex::lock).ok_or_else(|| Error::invalid_argument("the profiler is NULL"))
}

/// A function of this API that may fail.
trait Function {
    /// Its argument struct.
    type Args;

    /// Its body.
    fn run(call: Call<'_, Self::Args>) -> Result<()>;
}

/// The exported function.
///
/// # Safety
/// `args` must be NULL or valid for the function, and not be used by another thread during the call.
unsafe extern "C" fn exported<F: Function>(args: *mut F::Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: the struct is NULL or valid, and this thread's during the call, as this function asks.
    guard(unsafe { args.as_mut().map(|args| Call::new(args)) }, F::run)
}

/// Runs `body` on the caller's struct; failures and panics become errors of this API.
fn guard<A>(args: Option<A>, body: impl FnOnce(A) -> Result<()>) -> *mut sys::PLUGIN_Profiler_Error {
    let args = args.ok_or_else(|| Error::invalid_argument("a profiler's argument struct is NULL"));
    let outcome = catch_unwind(AssertUnwindSafe(|| args.and_then(body))).unwrap_or_else(|panic| {
        Err(Error::new(Code::Internal, format!("the profiler panicked: {}; this is a bug", panicked(&*panic))))
    });
    outcome.map_or_else(|error| owned(error).0, |()| ptr::null_mut())
}

struct Create;

impl Function for Create {
    type Args = sys::PLUGIN_Profiler_Create_Args;

    fn run(call: Call<'_, Self::Args>) -> Result<()> {
        call.out().profiler = owned(Mutex::new(Profiler::default())).0;
        Ok(())
    }
}

struct Start;

impl Function for Start {
    type Args = sys::PLUGIN_Profiler_Args;

    fn run(call: Call<'_, Self::Args>) -> Result<()> {
        required(call.profiler())?.start()
    }
}

struct Stop;

impl Function for Stop {
    type Args = sys::PLUGIN_Profiler_Args;

    fn run(call: Call<'_, Self::Args>) -> Result<()> {
        required(call.profiler())?.stop();
        Ok(())
    }
}

struct CollectData;

impl Function for CollectData {
    type Args = sys::PLUGIN_Profiler_CollectData_Args;

    fn run(call: Call<'_, Self::Args>) -> Result<()> {
        let mut profiler = required(call.profiler())?;
        let data = &mut profiler.data;
        let out = call.out();
        out.buffer_size_in_bytes = data.len();
        if out.buffer.is_null() {
            out.buffer = data.as_mut_ptr();
        } else if out.buffer != data.as_mut_ptr() {
            // SAFETY: the caller has made room for as many bytes as it was told, and passes it as `Call::new` asks; its
            // buffer does not overlap the profiler's.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), out.buffer, data.len()) };
        }
        Ok(())
    }
}

struct ErrorGetCode;

impl Function for ErrorGetCode {
    type Args = sys::PLUGIN_Profiler_Error_GetCode_Args;

    fn run(call: Call<'_, Self::Args>) -> Result<()> {
        let code = call.error().map_or(0, |error| error.code as i32);
        call.out().code = code;
        Ok(())
    }
}

/// # Safety
/// `args` must be NULL or valid; its profiler NULL or of [`Create`], and not be used again.
unsafe extern "C" fn destroy(args: *mut sys::PLUGIN_Profiler_Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: the struct is NULL or valid; the profiler is NULL or of `owned`, and this is its end, as this function
    // asks.
    unsafe {
        guard(args.as_ref(), |args| {
            delete::<Mutex<Profiler>, _>(args.profiler);
            Ok(())
        })
    }
}

/// # Safety
/// `args` must be NULL or valid; its error NULL or of this API, and not be used again.
unsafe extern "C" fn error_destroy(args: *mut sys::PLUGIN_Profiler_Error_Destroy_Args) {
    // SAFETY: the struct is NULL or valid; the error is NULL or of `owned`, and this is its end, as this function asks.
    unsafe {
        if let Some(args) = args.as_ref() {
            delete::<Error, _>(args.error);
        }
    }
}

/// # Safety
/// `args` must be NULL or valid; its error NULL or of this API, and alive.
unsafe extern "C" fn error_message(args: *mut sys::PLUGIN_Profiler_Error_Message_Args) {
    // SAFETY: the struct is NULL or valid, and this thread's during the call, as this function asks.
    let Some(call) = (unsafe { args.as_mut().map(|args| Call::new(args)) }) else { return };
    let message = call.error().map_or("", |error| &error.message);
    let out = call.out();
    (out.message, out.message_size) = (message.as_ptr().cast(), message.len());
}
