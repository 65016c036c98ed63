//! Registering handlers for custom calls with the engine: whole bundles, and with an answer, neither of which PJRT
//! has.

use crate::{
    api::text::{CText, text_functions},
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

text_functions! {
    /// Registers the handlers of the custom call `name` with the engine: an empty text means that it took them,
    /// anything else is one sentence that says why not, with the name. `platform` is "cpu" or "Host" (or "CUDA",
    /// "ROCM"); `traits` is a sum of `XLA_FFI_Handler_TraitsBits`. Handlers may be of another version of XLA FFI than
    /// the engine's, as long as this library knows what changed. Loads the engine; no client is needed. Registering the
    /// same again does nothing. The functions of `bundle` must stay as long as the process.
    pub fn pjrt_arena_ffi_register_handler(
        name: CText<'_>,
        platform: CText<'_>,
        bundle: *const sys::XLA_FFI_Handler_Bundle,
        traits: u32
    ) -> String {
        let (name, platform) = (name.to_string_lossy(), platform.to_string_lossy());
        // SAFETY: `bundle` points to a bundle, and its handlers stay as long as the process, as this function asks.
        sentence(unsafe { ffi::register_handler(&name, &platform, *bundle, traits) })
    }

    /// Registers a type of handlers' states or user data with the engine, under `*type_id`, or under an id that the
    /// engine chooses and writes there when it is 0. `info` may be NULL: then nothing frees objects of the type.
    /// Answers as [`pjrt_arena_ffi_register_handler`] does.
    pub fn pjrt_arena_ffi_register_type(
        name: CText<'_>,
        platform: CText<'_>,
        type_id: *mut sys::XLA_FFI_TypeId,
        info: *const sys::XLA_FFI_TypeInfo
    ) -> String {
        let (name, platform) = (name.to_string_lossy(), platform.to_string_lossy());
        // SAFETY: the id is valid to read and to write, and the info NULL or valid, as this function asks.
        sentence(unsafe {
            let deleter = info.as_ref().and_then(|info| info.deleter);
            let registered = ffi::register_type(&name, &platform, (*type_id).type_id, deleter);
            registered.map(|id| (*type_id).type_id = id)
        })
    }
}

/// Whether handlers for the CPU are of use to the engine: 1 if it computes there or does not say where, 0 if it is
/// known to be for a GPU, or cannot be loaded.
#[unsafe(no_mangle)]
pub extern "C" fn pjrt_arena_ffi_is_for_cpu() -> std::ffi::c_int {
    let gpu = |kind| kind != EngineKind::Cpu;
    (process::engine().is_ok() && !process::kind().is_some_and(gpu)).into()
}
