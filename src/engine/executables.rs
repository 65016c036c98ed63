//! The description of a program that the engine has loaded.

use crate::{
    engine::{EngineError, Live, failure::discard},
    sys,
};

/// What the engine says of a loaded program: a handle that is made for each who asks. Dropped, it is destroyed.
pub struct Description<'a>(Live<'a, sys::PJRT_Executable>);

impl<'a> Description<'a> {
    /// That of `loaded`.
    ///
    /// # Errors
    /// The engine's.
    pub fn of(loaded: Live<'a, sys::PJRT_LoadedExecutable>) -> Result<Self, EngineError> {
        let (engine, loaded_executable) = (loaded.engine(), loaded.raw());
        let args = sys::PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable, ..Default::default() };
        // SAFETY: the program is alive, and the function asks for nothing else. The description is new, and alive until
        // its owner destroys it.
        Ok(Self(unsafe { Live::new(engine, engine.call(args)?.executable) }))
    }

    /// The description, as long as this owns it.
    pub fn live(&self) -> Live<'_, sys::PJRT_Executable> {
        self.0
    }
}

impl Drop for Description<'_> {
    fn drop(&mut self) {
        let args = sys::PJRT_Executable_Destroy_Args { executable: self.0.raw(), ..Default::default() };
        // SAFETY: the description is owned here, and this is its end.
        discard(unsafe { self.0.engine().call(args) }, "destroy the description of a program");
    }
}
