//! The FFI extension: handlers of custom calls and their types.

use crate::{
    api::entry::Entry,
    engine::{Outcome, abi::Handler, extensions},
    handlers::ffi::{Bundle, note_deleter, register_handler},
    sys::{self, text},
};

impl Entry for sys::PJRT_FFI_Register_Handler_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the texts are as long as the caller's struct says, and the handler is NULL or an XLA FFI handler
        // for as long as the process lives, as `run` asks.
        unsafe {
            let name = text(self.target_name, self.target_name_size);
            let platform = text(self.platform_name, self.platform_name_size);
            let execute = std::mem::transmute::<*mut std::ffi::c_void, Option<Handler>>(self.handler);
            register_handler(&name, &platform, Bundle { execute, ..Bundle::default() }, self.traits.0)
        }
    }
}

impl Entry for sys::PJRT_FFI_Type_Register_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        *self = unsafe { extensions::register_type(*self)? };
        // SAFETY: the type's info is NULL or valid during the call, as `run` asks.
        let info = unsafe { self.type_info.as_ref() };
        note_deleter(self.type_id, info.and_then(|info| info.deleter));
        Ok(())
    }
}
