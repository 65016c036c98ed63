//! `PJRT_LoadedExecutable_Execute`.

use crate::{
    api::{call::Call, entry::Entry},
    engine::Outcome,
    error::Error,
    runtime::{
        executable::registry::LOADED,
        execute::{call::NAME, execute},
    },
    sys,
};

impl Entry for sys::PJRT_LoadedExecutable_Execute_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable, "executable")?;
        let loaded = LOADED.get(executable).ok_or_else(|| {
            Error::invalid_argument(format!("{NAME}: {executable:p} is no executable of this plugin"))
        })?;
        // SAFETY: the lists are as long as their numbers, and handles and context alive, as the call asks.
        unsafe { execute(&loaded, &call) }
    }
}
