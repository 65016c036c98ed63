//! What an executable says of its program, and the same program on another client.

use crate::{
    engine::{Engine, Outcome},
    program::hlo,
    runtime::executable::loaded::Program,
    sys::{self, slice},
};

/// What the engine says of the optimised program: its format and its bytes.
///
/// # Safety
/// `executable` must be alive.
pub unsafe fn optimized(engine: &'static Engine, executable: *mut sys::PJRT_Executable) -> Outcome<(String, Vec<u8>)> {
    let mut program = sys::PJRT_Program { struct_size: size_of::<sys::PJRT_Program>(), ..Default::default() };
    let args =
        sys::PJRT_Executable_OptimizedProgram_Args { executable, program: &raw mut program, ..Default::default() };
    // SAFETY: without a place for the code the engine only says how long it is.
    unsafe { engine.call(args)? };
    let mut code = vec![0_u8; program.code_size];
    program.code = code.as_mut_ptr().cast();
    // SAFETY: the code has the room that the engine asked for.
    let format = unsafe {
        engine.call(args)?;
        String::from_utf8_lossy(slice(program.format.cast::<u8>(), program.format_size)).into_owned()
    };
    Ok((format, code))
}

/// The optimised program as the user should see it: its format and its bytes.
///
/// # Safety
/// `executable` must be alive, and of this program.
pub unsafe fn shown(
    engine: &'static Engine,
    executable: *mut sys::PJRT_Executable,
    program: &Program,
) -> Outcome<(String, Vec<u8>)> {
    // SAFETY: the caller's promise.
    let (format, code) = unsafe { optimized(engine, executable)? };
    if program.plan.destinations.is_empty() {
        return Ok((format, code));
    }
    let shown = hlo::Format::from_name(format.as_bytes())
        .zip(program.plan.arguments)
        .map(|(format, arguments)| hlo::hide_parameters(&code, format, arguments));
    Ok(match shown {
        Some(Ok(shown)) => (format, shown),
        Some(Err(reject)) => {
            log::warn!("the optimised program is shown with its destinations: {reject}");
            (format, code)
        }
        None => (format, code),
    })
}

/// Loads the same program on another client of the engine.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The executable and the client must be alive.
pub unsafe fn copy(
    engine: &'static Engine,
    loaded: *mut sys::PJRT_LoadedExecutable,
    client: *mut sys::PJRT_Client,
) -> Outcome<*mut sys::PJRT_LoadedExecutable> {
    // SAFETY: the caller's promise; the engine's blob lives until its deleter is called.
    unsafe {
        let described = engine
            .call(sys::PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: loaded, ..Default::default() })?;
        let executable = described.executable;
        let blob = engine.call(sys::PJRT_Executable_Serialize_Args { executable, ..Default::default() });
        let copy = blob.and_then(|blob| {
            let copy = engine.call(sys::PJRT_Executable_DeserializeAndLoad_Args {
                client,
                serialized_executable: blob.serialized_bytes,
                serialized_executable_size: blob.serialized_bytes_size,
                ..Default::default()
            });
            if let Some(delete) = blob.serialized_executable_deleter {
                delete(blob.serialized_executable);
            }
            copy
        });
        engine.call(sys::PJRT_Executable_Destroy_Args { executable, ..Default::default() })?;
        Ok(copy?.loaded_executable)
    }
}
