//! `PJRT_Executable_GetCostAnalysis`.

use crate::{
    api::{call::Call, entry::Entry},
    engine::{Failure, Live, Outcome, process},
    error::Code,
    runtime::executable::{
        cost::{ANALYZE, Analyze, Cost},
        description::without_destinations,
        loaded::Program,
        registry::EXECUTABLES,
    },
    sys,
};

/// Installs `analyze` for programs that the engine does not analyse. The first one stays.
///
/// # Safety
/// `analyze` must be callable from any thread as long as the process lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pjrt_arena_install_cost_analysis(analyze: Analyze) {
    let _ = ANALYZE.set(analyze);
}

impl Entry for sys::PJRT_Executable_GetCostAnalysis_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable, "executable")?;
        let engine = process::engine()?;
        let without_destinations = |program: &Program| {
            // SAFETY: the executable is not NULL, so it is alive, as the call asks, and it is of this program.
            without_destinations(unsafe { Live::new(engine, executable) }, program).ok()
        };
        let (theirs, out) = call.forward();
        match theirs {
            Err(Failure::Engine(refused)) if refused.has(Code::Unimplemented) => {
                // The program lives until the executable is destroyed, and so does what it keeps.
                let program = EXECUTABLES.get(executable);
                let Some(cost) = program.as_ref().and_then(|program| known(program, without_destinations)) else {
                    return Err(refused.into());
                };
                (out.properties, out.num_properties) = (cost.values.as_ptr(), cost.values.len());
            }
            theirs => *out = theirs?,
        }
        Ok(())
    }
}

/// What the program costs, if that is known or can be found out; `code` gives its format and bytes.
fn known(program: &Program, code: impl FnOnce(&Program) -> Option<(String, Vec<u8>)>) -> Option<&Cost> {
    if program.cost.get().is_none() {
        // Several threads may ask at once. With this cell none waits for another, which could wait for a lock of
        // Python's that the first one has.
        let (format, code) = code(program)?;
        let _ = program.cost.set(Cost::ask(&format, &code)?);
    }
    program.cost.get()
}
