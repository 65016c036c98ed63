//! `PJRT_Executable_OutputMemoryKinds`.

use std::borrow::Cow;

use crate::{
    api::{call::Call, entry::Entry},
    engine::Outcome,
    runtime::executable::{
        bound::{OWN_KIND, OutputKinds},
        registry::EXECUTABLES,
    },
    sys::{self, slice, text},
};

impl Entry for sys::PJRT_Executable_OutputMemoryKinds_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let executable = call.required(call.executable, "executable")?;
        let (answer, out) = call.forward();
        let Some(program) = EXECUTABLES.get(executable).filter(|program| !program.plan.bound.is_empty()) else {
            *out = answer?;
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
        out.memory_kinds = kinds.pointers.as_ptr().cast();
        out.memory_kind_sizes = kinds.sizes.as_ptr();
        out.num_outputs = kinds.pointers.len();
        Ok(())
    }
}
