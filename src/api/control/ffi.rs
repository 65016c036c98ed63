//! Registering handlers for custom calls with the engine: whole bundles, and with an answer, neither of which PJRT
//! has.

use std::ffi::{CStr, c_char};

use crate::{
    api::control::{tell, write_text},
    config::EngineKind,
    engine::{Failure, process},
    handlers::ffi,
    sys,
};

/// What went wrong, in one sentence; empty when nothing did.
fn sentence(outcome: Result<(), Failure>) -> String {
    match outcome {
        Ok(()) => String::new(),
        Err(Failure::Own(error)) => error.message,
        Err(Failure::Engine(error)) => error.message(),
    }
}

/// Registers the handlers of the custom call `name` with the engine: an empty text means that it took them, anything
/// else is one sentence that says why not, with the name. `platform` is "cpu" or "Host" (or "CUDA", "ROCM"); `traits`
/// is a sum of `XLA_FFI_Handler_TraitsBits`. Handlers may be of another version of XLA FFI than the engine's, as long
/// as this library knows what changed. Loads the engine; no client is needed. Registering the same again does
/// nothing.
///
/// # Safety
/// `name` and `platform` must be C strings, `bundle` point to an `XLA_FFI_Handler_Bundle` of functions that stay as
/// long as the process, and `buffer` be NULL or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_ffi_register_handler(
    name: *const c_char,
    platform: *const c_char,
    bundle: *const sys::XLA_FFI_Handler_Bundle,
    traits: u32,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let text = tell(|| {
        // SAFETY: name, platform and bundle are valid, and the handlers stay as long as the process, as this function
        // asks.
        sentence(unsafe {
            let (name, platform) = (CStr::from_ptr(name), CStr::from_ptr(platform));
            ffi::register_handler(&name.to_string_lossy(), &platform.to_string_lossy(), *bundle, traits)
        })
    });
    // SAFETY: the buffer is NULL or has `capacity` bytes, as this function asks.
    unsafe { write_text(&text, buffer, capacity) }
}

/// Registers a type of handlers' states or user data with the engine, under `*type_id`, or under an id that the engine
/// chooses and writes there when it is 0. `info` may be NULL: then nothing frees objects of the type. Answers as
/// [`pjrt_arena_ffi_register_handler`] does.
///
/// # Safety
/// `name` and `platform` must be C strings, `type_id` point to an id, `info` be NULL or an `XLA_FFI_TypeInfo`, and
/// `buffer` be NULL or have `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_ffi_register_type(
    name: *const c_char,
    platform: *const c_char,
    type_id: *mut sys::XLA_FFI_TypeId,
    info: *const sys::XLA_FFI_TypeInfo,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let text = tell(|| {
        // SAFETY: name, platform and id are valid, and the info is NULL or valid, as this function asks.
        let id = unsafe {
            let (name, platform) = (CStr::from_ptr(name), CStr::from_ptr(platform));
            let deleter = info.as_ref().and_then(|info| info.deleter);
            ffi::register_type(&name.to_string_lossy(), &platform.to_string_lossy(), (*type_id).type_id, deleter)
        };
        // SAFETY: the id is valid to write, as this function asks.
        sentence(id.map(|id| unsafe { (*type_id).type_id = id }))
    });
    // SAFETY: the buffer is NULL or has `capacity` bytes, as this function asks.
    unsafe { write_text(&text, buffer, capacity) }
}

/// Whether handlers for the CPU are of use to the engine: 1 if it computes there or does not say where, 0 if it is
/// known to be for a GPU, or cannot be loaded.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_ffi_is_for_cpu() -> std::ffi::c_int {
    let gpu = |kind| kind != EngineKind::Cpu;
    (process::engine().is_ok() && !process::kind().is_some_and(gpu)).into()
}
