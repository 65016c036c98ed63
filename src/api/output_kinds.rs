//! `PJRT_Executable_OutputMemoryKinds`.

use std::borrow::Cow;

use crate::{
    api::entry::Entry,
    engine::{Outcome, failure::required, process},
    runtime::executable::{
        bound::{OWN_KIND, OutputKinds},
        registry::EXECUTABLES,
    },
    sys::{self, slice, text},
};

impl Entry for sys::PJRT_Executable_OutputMemoryKinds_Args {
    unsafe fn run(&mut self) -> Outcome {
        let executable = required(self.executable, "PJRT_Executable_OutputMemoryKinds", "executable")?;
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        let answer = unsafe { process::engine()?.call(*self) };
        let Some(program) = EXECUTABLES.get(executable).filter(|program| !program.plan.bound.is_empty()) else {
            *self = answer?;
            return Ok(());
        };
        let kinds = program.output_kinds.get_or_init(|| {
            let names: Vec<Cow<'_, str>> = match &answer {
                // SAFETY: names and lists have the lengths that the engine gives, and live as long as the executable,
                // which the caller keeps alive during the call.
                Ok(answer) => unsafe {
                    let sizes = slice(answer.memory_kind_sizes, answer.num_outputs);
                    let names = slice(answer.memory_kinds, answer.num_outputs).iter().zip(sizes);
                    names.map(|(&name, &size)| text(name, size)).collect()
                },
                Err(_) => vec![Cow::Borrowed(OWN_KIND); program.results.len()],
            };
            OutputKinds::new(names, &program.plan.bound)
        });
        // The lists live as long as the program, which the executable keeps. `Raw` is a pointer and nothing else.
        self.memory_kinds = kinds.pointers.as_ptr().cast();
        self.memory_kind_sizes = kinds.sizes.as_ptr();
        self.num_outputs = kinds.pointers.len();
        Ok(())
    }
}
