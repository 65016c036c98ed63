//! `PJRT_Error`: codes and payloads, of pjrt-arena's errors or the engine's.

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Outcome, process},
    sys,
};

impl Entry for sys::PJRT_Error_GetCode_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        call.required(call.error.cast_mut(), "error")?;
        let code = match call.own_error() {
            Some(own) => sys::PJRT_Error_Code(own.error.code as u32),
            // SAFETY: the struct satisfies the function's contract, as a call's does, and its error is the engine's.
            None => unsafe { process::engine()?.call(*call)? }.code,
        };
        call.out().code = code;
        Ok(())
    }
}

impl Entry for sys::PJRT_Error_ForEachPayload_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        call.required(call.error.cast_mut(), "error")?;
        if call.own_error().is_none() {
            // SAFETY: the struct satisfies the function's contract, as a call's does, and its error is the engine's.
            unsafe { process::engine()?.call(*call)? };
        }
        Ok(())
    }
}
