//! `PJRT_Executable_GetCostAnalysis`.

use crate::{
    api::entry::Entry,
    engine::{Engine, Live, Outcome, failure::required, process},
    error::Code,
    runtime::executable::{
        cost::{ANALYZE, Analyze, Cost},
        description::without_destinations,
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
    unsafe fn run(&mut self) -> Outcome {
        let executable = required(self.executable, "PJRT_Executable_GetCostAnalysis", "executable")?;
        let engine = process::engine()?;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        match unsafe { engine.call(*self) } {
            Ok(args) => *self = args,
            // SAFETY: the executable is not NULL, so it is alive, as `run` asks.
            Err(refused) if refused.has(Code::Unimplemented) && unsafe { answer(self, engine, executable) } => {}
            Err(refused) => return Err(refused.into()),
        }
        Ok(())
    }
}

/// Answers what the program costs, if that is known or can be found out; says whether it is.
///
/// # Safety
/// `executable` must be alive.
unsafe fn answer(
    args: &mut sys::PJRT_Executable_GetCostAnalysis_Args,
    engine: &'static Engine,
    executable: *mut sys::PJRT_Executable,
) -> bool {
    // The program lives until the executable is destroyed, and so does what it keeps.
    let Some(program) = EXECUTABLES.get(executable) else { return false };
    if program.cost.get().is_none() {
        // Several threads may ask at once. With this cell none waits for another, which could wait for a lock of
        // Python's that the first one has.
        // SAFETY: the executable is alive, as this function asks, and of this program.
        let Ok((format, code)) = without_destinations(unsafe { Live::new(engine, executable) }, &program) else {
            return false;
        };
        let Some(cost) = Cost::ask(&format, &code) else { return false };
        let _ = program.cost.set(cost);
    }
    let Some(cost) = program.cost.get() else { return false };
    (args.properties, args.num_properties) = (cost.values.as_ptr(), cost.values.len());
    true
}
