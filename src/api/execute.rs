//! `PJRT_LoadedExecutable_Execute`.

use crate::{
    api::entry::Entry,
    engine::{Outcome, failure::required},
    error::Error,
    runtime::{
        executable::registry::LOADED,
        execute::{call::NAME, execute},
    },
    sys,
};

impl Entry for sys::PJRT_LoadedExecutable_Execute_Args {
    unsafe fn run(&mut self) -> Outcome {
        let executable = required(self.executable, NAME, "executable")?;
        let loaded = LOADED.get(executable).ok_or_else(|| {
            Error::invalid_argument(format!("{NAME}: {executable:p} is no executable of this plugin"))
        })?;
        // SAFETY: the lists are as long as their numbers, and handles and context alive, as `run` asks.
        unsafe { execute(&loaded, self) }
    }
}
