//! `PJRT_ExecuteContext`.

use std::sync::Arc;

use crate::{
    api::entry::Entry,
    engine::{Outcome, failure::required, process},
    runtime::execute::context::Context,
    sys,
};

impl Entry for sys::PJRT_ExecuteContext_Create_Args {
    unsafe fn run(&mut self) -> Outcome {
        self.context = Arc::into_raw(Arc::new(Context::new(process::engine()?))).cast_mut().cast();
        Ok(())
    }
}

impl Entry for sys::PJRT_ExecuteContext_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        let context = required(self.context, "PJRT_ExecuteContext_Destroy", "context")?;
        // SAFETY: the handle is not NULL, so it is the pointer of an `Arc` whose strong count the caller gives up.
        drop(unsafe { Arc::from_raw(context.cast::<Context>()) });
        Ok(())
    }
}
