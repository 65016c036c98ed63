//! The profiler extension, for engines that have none: a trace of JAX's profiler then shows what memory did.
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

use crate::{
    api::entry::PADDING,
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
    fn stop(&mut self) {
        if std::mem::take(&mut self.records) {
            self.data = TIMELINE.end().map(|recording| recording.encode()).unwrap_or_default();
        }
    }
}

/// The extension in memory: words of zero follow it, as they follow the engine's (`extensions.rs`).
#[repr(C)]
struct Padded {
    extension: sys::PJRT_Profiler_Extension,
    padding: [usize; PADDING],
}

/// The extension. It lives until the process ends.
pub fn extension() -> *mut sys::PJRT_Extension_Base {
    let api = sys::PLUGIN_Profiler_Api {
        struct_size: size_of::<sys::PLUGIN_Profiler_Api>(),
        priv_: ptr::null_mut(),
        error_destroy: Some(error_destroy),
        error_message: Some(error_message),
        error_get_code: Some(error_get_code),
        create: Some(create),
        destroy: Some(destroy),
        start: Some(start),
        stop: Some(stop),
        collect_data: Some(collect_data),
    };
    let base = sys::PJRT_Extension_Base {
        struct_size: size_of::<sys::PJRT_Profiler_Extension>(),
        type_: sys::PJRT_Extension_Type_Profiler,
        next: ptr::null_mut(),
    };
    let profiler_api = Box::leak(Box::new(api));
    let extension = sys::PJRT_Profiler_Extension { base, profiler_api, traceme_context_id: 0 };
    ptr::from_mut(Box::leak(Box::new(Padded { extension, padding: [0; PADDING] }))).cast()
}

/// Runs `body` on the caller's struct; failures and panics become errors of this API.
///
/// # Safety
/// `args` must be NULL or valid, and not be used by another thread during the call.
unsafe fn guard<A>(args: *mut A, body: impl FnOnce(&mut A) -> Result<()>) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: the struct is NULL or valid, and this thread's during the call, as this function asks.
    let args = unsafe { args.as_mut() }.ok_or_else(|| Error::invalid_argument("a profiler's argument struct is NULL"));
    let outcome = catch_unwind(AssertUnwindSafe(|| args.and_then(body))).unwrap_or_else(|panic| {
        Err(Error::new(Code::Internal, format!("the profiler panicked: {}; this is a bug", panicked(&*panic))))
    });
    match outcome {
        Ok(()) => ptr::null_mut(),
        Err(error) => Box::into_raw(Box::new(error)).cast(),
    }
}

/// The profiler behind a handle.
///
/// # Safety
/// `handle` must be NULL or from `create`, alive, and not be used by another thread during the call.
unsafe fn profiler<'a>(handle: *mut sys::PLUGIN_Profiler) -> Result<&'a mut Profiler> {
    // SAFETY: the handle is NULL or a live profiler, and this thread's during the call, as this function asks.
    unsafe { handle.cast::<Profiler>().as_mut() }.ok_or_else(|| Error::invalid_argument("the profiler is NULL"))
}

unsafe extern "C" fn create(args: *mut sys::PLUGIN_Profiler_Create_Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: callers of the API pass NULL or a valid struct, with a live handle, that no other thread uses meanwhile.
    unsafe {
        guard(args, |args| {
            args.profiler = Box::into_raw(Box::<Profiler>::default()).cast();
            Ok(())
        })
    }
}

unsafe extern "C" fn destroy(args: *mut sys::PLUGIN_Profiler_Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: callers of the API pass NULL or a valid struct; the handle is NULL or of `create`, and not used again.
    unsafe {
        guard(args, |args| {
            if !args.profiler.is_null() {
                let mut profiler = Box::from_raw(args.profiler.cast::<Profiler>());
                profiler.stop();
            }
            Ok(())
        })
    }
}

unsafe extern "C" fn start(args: *mut sys::PLUGIN_Profiler_Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: callers of the API pass NULL or a valid struct, with a live handle, that no other thread uses meanwhile.
    unsafe {
        guard(args, |args| {
            let profiler = profiler(args.profiler)?;
            TIMELINE.begin()?;
            profiler.records = true;
            Ok(())
        })
    }
}

unsafe extern "C" fn stop(args: *mut sys::PLUGIN_Profiler_Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: callers of the API pass NULL or a valid struct, with a live handle, that no other thread uses meanwhile.
    unsafe {
        guard(args, |args| {
            profiler(args.profiler)?.stop();
            Ok(())
        })
    }
}

unsafe extern "C" fn collect_data(args: *mut sys::PLUGIN_Profiler_CollectData_Args) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: callers of the API pass NULL or a valid struct, with a live handle, that no other thread uses meanwhile.
    unsafe {
        guard(args, |args| {
            let data = &mut profiler(args.profiler)?.data;
            args.buffer_size_in_bytes = data.len();
            if args.buffer.is_null() {
                args.buffer = data.as_mut_ptr();
            } else if args.buffer != data.as_mut_ptr() {
                // SAFETY: the caller has made room for as many bytes as it was told; its buffer does not overlap the
                // profiler's.
                ptr::copy_nonoverlapping(data.as_ptr(), args.buffer, data.len());
            }
            Ok(())
        })
    }
}

unsafe extern "C" fn error_destroy(args: *mut sys::PLUGIN_Profiler_Error_Destroy_Args) {
    // SAFETY: callers of the API pass NULL or a valid struct; the error is NULL or of `guard`, and not used again.
    unsafe {
        if let Some(args) = args.as_ref().filter(|args| !args.error.is_null()) {
            drop(Box::from_raw(args.error.cast::<Error>()));
        }
    }
}

unsafe extern "C" fn error_message(args: *mut sys::PLUGIN_Profiler_Error_Message_Args) {
    // SAFETY: callers of the API pass NULL or a valid struct; the error is NULL or of `guard`, and alive.
    unsafe {
        let Some(args) = args.as_mut() else { return };
        let message = args.error.cast::<Error>().as_ref().map_or("", |error| &error.message);
        (args.message, args.message_size) = (message.as_ptr().cast(), message.len());
    }
}

unsafe extern "C" fn error_get_code(
    args: *mut sys::PLUGIN_Profiler_Error_GetCode_Args,
) -> *mut sys::PLUGIN_Profiler_Error {
    // SAFETY: callers of the API pass NULL or a valid struct; the error is NULL or of `guard`, and alive.
    unsafe {
        guard(args, |args| {
            args.code = args.error.cast::<Error>().as_ref().map_or(0, |error| error.code as i32);
            Ok(())
        })
    }
}
