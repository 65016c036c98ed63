//! The FFI extension: handlers of custom calls and their types.

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Outcome, abi::Handler},
    handlers::ffi::{Bundle, note_deleter, register_handler},
    sys,
};

impl Entry for sys::PJRT_FFI_Register_Handler_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let name = String::from_utf8_lossy(call.target_name());
        let platform = String::from_utf8_lossy(call.platform_name());
        // SAFETY: the handler is NULL or an XLA FFI handler for as long as the process lives, as the call asks.
        unsafe {
            let execute = std::mem::transmute::<*mut std::ffi::c_void, Option<Handler>>(call.handler);
            register_handler(&name, &platform, Bundle { execute, ..Bundle::default() }, call.traits.0)
        }
    }
}

impl Entry for sys::PJRT_FFI_Type_Register_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        // SAFETY: the type's info is NULL or valid during the call, as the call asks.
        let deleter = unsafe { call.type_info.as_ref() }.and_then(|info| info.deleter);
        let (theirs, out) = call.forward();
        *out = theirs?;
        note_deleter(out.type_id, deleter);
        Ok(())
    }
}
