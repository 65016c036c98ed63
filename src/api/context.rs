//! `PJRT_ExecuteContext`.

use std::sync::Arc;

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Outcome, process},
    runtime::execute::context::Context,
    sys,
};

impl Entry for sys::PJRT_ExecuteContext_Create_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        call.out().context = Arc::into_raw(Arc::new(Context::new(process::engine()?))).cast_mut().cast();
        Ok(())
    }
}

impl Entry for sys::PJRT_ExecuteContext_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        call.required(call.context, "context")?;
        drop(call.take());
        Ok(())
    }
}

impl Entry for sys::PJRT_FFI_UserData_Add_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let context = call.lent("context")?;
        // SAFETY: the data lives as long as the executions that get the context, as the call asks.
        unsafe { context.add(call.user_data.type_id, call.user_data.data) }
    }
}
