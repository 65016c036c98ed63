//! `PJRT_Error`: codes and payloads, of pjrt-arena's errors or the engine's.

use crate::{
    api::{entry::Entry, own_error::own},
    engine::{Outcome, failure::required, process},
    sys,
};

impl Entry for sys::PJRT_Error_GetCode_Args {
    unsafe fn run(&mut self) -> Outcome {
        let error = required(self.error.cast_mut(), "PJRT_Error_GetCode", "error")?;
        // SAFETY: the error is not NULL, and alive during the call, as `run` asks.
        if let Some(own) = unsafe { own(error) } {
            self.code = sys::PJRT_Error_Code(own.error.code as u32);
            return Ok(());
        }
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and its error is the engine's.
        let args = unsafe { process::engine()?.call(*self)? };
        self.code = args.code;
        Ok(())
    }
}

impl Entry for sys::PJRT_Error_ForEachPayload_Args {
    unsafe fn run(&mut self) -> Outcome {
        let error = required(self.error.cast_mut(), "PJRT_Error_ForEachPayload", "error")?;
        // SAFETY: the error is not NULL, and alive during the call, as `run` asks.
        if unsafe { own(error) }.is_none() {
            // SAFETY: the struct satisfies the function's contract, as `run` asks, and its error is the engine's.
            unsafe { process::engine()?.call(*self)? };
        }
        Ok(())
    }
}
