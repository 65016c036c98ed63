//! Programs that the engine has loaded: the description of one, and one that is compiled from a text of ours.

use crate::{
    engine::{EngineError, Live, Raw, failure::discard},
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

/// Compiles a program in the form of text, with these serialised options.
///
/// # Errors
/// The engine's.
pub fn compile_text(
    client: Live<'_, sys::PJRT_Client>,
    text: &str,
    options: &[u8],
) -> Result<Raw<sys::PJRT_LoadedExecutable>, EngineError> {
    let format = "mlir";
    let mut program = sys::PJRT_Program {
        struct_size: size_of::<sys::PJRT_Program>(),
        code: text.as_ptr().cast_mut().cast(),
        code_size: text.len(),
        format: format.as_ptr().cast(),
        format_size: format.len(),
        ..Default::default()
    };
    // SAFETY: the client is alive, and texts and options outlive the call, which only reads them.
    let compiled = unsafe {
        client.engine().call(sys::PJRT_Client_Compile_Args {
            client: client.raw(),
            program: &raw mut program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            ..Default::default()
        })?
    };
    Ok(Raw(compiled.executable))
}
