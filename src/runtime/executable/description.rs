//! What an executable says of its optimised program.

use crate::{
    engine::{Live, Outcome},
    program::hlo,
    runtime::executable::loaded::Program,
    sys::{self, slice},
};

/// What the engine says of the optimised program: its format and its bytes.
///
/// # Errors
/// The engine's.
pub fn optimized(executable: Live<'_, sys::PJRT_Executable>) -> Outcome<(String, Vec<u8>)> {
    let (engine, executable) = (executable.engine(), executable.raw());
    let mut program = sys::PJRT_Program { struct_size: size_of::<sys::PJRT_Program>(), ..Default::default() };
    let args =
        sys::PJRT_Executable_OptimizedProgram_Args { executable, program: &raw mut program, ..Default::default() };
    // SAFETY: the executable is alive; with `code` NULL the engine only says how long it is.
    unsafe { engine.call(args)? };
    let mut code = vec![0_u8; program.code_size];
    program.code = code.as_mut_ptr().cast();
    // SAFETY: the executable is alive; `code` has the length that the engine asked for, and lives for the call. The
    // engine's format name lives as long as it is loaded.
    let format = unsafe {
        engine.call(args)?;
        String::from_utf8_lossy(slice(program.format.cast::<u8>(), program.format_size)).into_owned()
    };
    Ok((format, code))
}

/// The optimised program without destinations, for the user: its format and its bytes.
/// `executable` is one of `program`.
///
/// # Errors
/// The engine's.
pub fn without_destinations(
    executable: Live<'_, sys::PJRT_Executable>,
    program: &Program,
) -> Outcome<(String, Vec<u8>)> {
    let (format, code) = optimized(executable)?;
    if program.plan.destinations.is_empty() {
        return Ok((format, code));
    }
    let hidden = hlo::Format::from_name(format.as_bytes())
        .zip(program.plan.arguments)
        .map(|(format, arguments)| hlo::hide_parameters(&code, format, arguments));
    Ok(match hidden {
        Some(Ok(hidden)) => (format, hidden),
        Some(Err(reject)) => {
            log::warn!("the optimised program is shown with its destinations: {reject}");
            (format, code)
        }
        None => (format, code),
    })
}
