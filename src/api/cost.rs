//! `PJRT_Executable_GetCostAnalysis`.

use crate::{
    api::entry::Entry,
    engine::{Engine, Outcome, failure::required, process},
    error::Code,
    runtime::executable::{
        cost::{ANALYZE, Analyze, Cost},
        description::shown,
        registry::EXECUTABLES,
    },
    sys,
};

/// From now on programs that the engine does not analyse are given to `analyze`. The first one stays.
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
            // SAFETY: the caller's promise.
            Err(refused) if refused.has(Code::Unimplemented) && unsafe { answer(self, engine, executable) } => {}
            Err(refused) => return Err(refused.into()),
        }
        Ok(())
    }
}

/// Shows what the program costs, if that is found out or known; says whether it is.
///
/// # Safety
/// `executable` must be alive.
unsafe fn answer(
    args: &mut sys::PJRT_Executable_GetCostAnalysis_Args,
    engine: &'static Engine,
    executable: *mut sys::PJRT_Executable,
) -> bool {
    // It lives as long as the executable is not destroyed, and so does what it keeps.
    let Some(program) = EXECUTABLES.get(executable) else { return false };
    if program.cost.get().is_none() {
        // Several may ask at once. The cell does not have one of them wait for another, who may wait for a lock of
        // Python's that the first one holds. SAFETY: the caller's promise.
        let Ok((format, code)) = (unsafe { shown(engine, executable, &program) }) else { return false };
        let Some(cost) = Cost::ask(&format, &code) else { return false };
        let _ = program.cost.set(cost);
    }
    let Some(cost) = program.cost.get() else { return false };
    (args.properties, args.num_properties) = (cost.values.as_ptr(), cost.values.len());
    true
}
