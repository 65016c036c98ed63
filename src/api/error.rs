//! `PJRT_Error`: codes and payloads, ours or the engine's.

use crate::{
    api::{entry::Entry, own_error::own},
    engine::{Outcome, failure::required, process},
    sys,
};

impl Entry for sys::PJRT_Error_GetCode_Args {
    unsafe fn run(&mut self) -> Outcome {
        let error = required(self.error.cast_mut(), "PJRT_Error_GetCode", "error")?;
        // SAFETY: the error is alive.
        if let Some(own) = unsafe { own(error) } {
            self.code = sys::PJRT_Error_Code(own.error.code as u32);
            return Ok(());
        }
        // SAFETY: the error is the engine's.
        let args = unsafe { process::engine()?.call(*self)? };
        self.code = args.code;
        Ok(())
    }
}

impl Entry for sys::PJRT_Error_ForEachPayload_Args {
    unsafe fn run(&mut self) -> Outcome {
        let error = required(self.error.cast_mut(), "PJRT_Error_ForEachPayload", "error")?;
        // SAFETY: the error is alive.
        if unsafe { own(error) }.is_none() {
            // SAFETY: the error is the engine's.
            unsafe { process::engine()?.call(*self)? };
        }
        Ok(())
    }
}
